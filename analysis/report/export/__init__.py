"""A study's cells for an experiment tracker.

It reads runs.parquet, estimates.parquet and the cells' gpu.parquet, and computes no number. Cells
that the tracker has are skipped, so exporting again adds what is new.
"""

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.estimates import runs, table
from analysis.files import read_table
from workflow.collocation.study.redaction import secrets_in

# Defaults of MLflow's environment: a store in a folder, no telemetry, no line for each run, and
# errors within seconds.
MLFLOW = dict.fromkeys(("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"), "true")
MLFLOW |= {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
SET_METRICS = ("rate", "stp", "slowdown_worst", "s", "gract", "smact", "tenso", "drama", "power")
SET_METRICS += ("memory", "energy_per_sample")
JOB_METRICS = {"samples_per_s": 1.0, "step_ms_p50": 1.0, "gpu_memory": 1e-9}  # → scale, to GB
PARAMS = ("implementation", "replicate", "host", "hardware", "status", "telemetry_source")
JOB_PARAMS = ("scenario", "method", "workload", "condition")
SERIES = ("gract", "smact", "tenso", "drama", "power", "gpu_util", "memory_used")
_SET = ["at", "scenario", "implementation", "method", "window"]  # columns that identify a set


class TrackedRun(NamedTuple):
    """A run in the tracker: a cell, or a job of it.

    readings: SERIES (memory in MiB) by `at`, seconds since 1970, of the card or of the job's own
    MIG instance.
    """

    name: str
    params: dict[str, str]
    metrics: dict[str, float]
    readings: pd.DataFrame


class TrackedCell(NamedTuple):
    """A cell and its jobs as runs.

    whole: named by the cell's id with its attempt; its metrics are `stp`, or if it has several
    conditions or windows, `stp/mps`. began, ended: seconds since 1970.
    """

    whole: TrackedRun
    jobs: list[TrackedRun]
    began: float
    ended: float
    completed: bool


def tracked_cells(folder: Path) -> list[TrackedCell]:
    """Cells of a study that started jobs, on the GPU model that the estimates are of.

    Readings have no clock: the last is put at the cell's end, which is a second or two late.
    Raises OSError or ValueError if a table is missing.
    """
    members = runs.prepare_runs(runs.read_runs(folder / "runs.parquet")).members
    members = members[members["current"] & members["member"].notna()]
    metrics = _set_metrics(members, table.read_estimates(folder / "estimates.parquet"))
    cells = []
    for cell, rows in members.groupby("at", sort=False):
        readings = _readings(folder / "cells" / cell / "gpu.parquet")
        cells.append(_tracked_cell(cell, rows, metrics.get(cell, {}), readings))
    return cells


def _readings(path: Path) -> pd.DataFrame:
    """Telemetry of a cell; empty if it ran on a CPU."""
    columns = ["t_ns", "entity", *SERIES]
    if not path.exists():
        return pd.DataFrame(columns=columns, dtype=float)
    return read_table(path, columns).to_pandas()


def _set_metrics(members: pd.DataFrame, estimates: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Cell with its attempt → metrics of its sets, as the estimates have them."""
    sets = members[~members["again"]].drop_duplicates([*_SET, "condition"])
    set_estimates = pd.concat(
        [table.select(estimates, quantity, job="") for quantity in SET_METRICS]
    )
    set_estimates = (
        set_estimates[["quantity", *_SET[1:], "replicates"]].explode("replicates").dropna()
    )
    set_estimates["at"] = [cells["cell"] for cells in set_estimates["replicates"]]
    metrics: dict[str, dict[str, float]] = {}
    for number in set_estimates.merge(sets[[*_SET, "condition"]], on=_SET).itertuples():
        suffix = number.condition or number.window
        name = f"{number.quantity}/{suffix}" if suffix else number.quantity
        metrics.setdefault(number.at, {})[name] = number.replicates["value"]
    return metrics


def _tracked_cell(
    cell: str, members: pd.DataFrame, metrics: dict[str, float], readings: pd.DataFrame
) -> TrackedCell:
    first = members.iloc[0]
    began = datetime.fromisoformat(first["started_at"]).timestamp()
    ended = began + first["total_s"]
    readings = readings.assign(at=ended + (readings["t_ns"] - readings["t_ns"].max()) / 1e9)
    readings["memory_used"] /= 2**20
    scenario, _, method, *_ = cell.split("/")
    common = _params(first, PARAMS) | {"jobs": f"{first['n']:.0f}"}
    params = common | {"scenario": scenario, "method": method}
    whole = TrackedRun(cell, params, metrics, readings[readings["entity"] == "gpu"])
    jobs = []
    for _, windows in members.groupby("member"):
        job = windows.iloc[0]
        params = common | _params(job, JOB_PARAMS) | {"job": f"{job['member']:.0f}"}
        on_instance = (readings["entity"] == job["entity"]) & (job["entity"] != "gpu")
        name = f"{params['job']} {job['workload']}"
        jobs.append(TrackedRun(name, params, _job_metrics(windows), readings[on_instance]))
    return TrackedCell(whole, jobs, began, ended, first["status"] == runs.COMPLETED)


def _job_metrics(windows: pd.DataFrame) -> dict[str, float]:
    metrics = {}
    for row in windows.to_dict("records"):
        for name, scale in JOB_METRICS.items():
            if pd.notna(row[name]):
                full_name = f"{name}/{row['window']}" if row["window"] else name
                metrics[full_name] = row[name] * scale
    return metrics


def _params(row: pd.Series, names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(row[name]) for name in names if pd.notna(row[name]) and row[name] != ""}


def export_study(folder: Path, names: str) -> str:
    """Export a study's cells into MLflow; returns how many are new, how many were there, and where.

    names: `mlflow` names runs and metrics as we do, `radt` as radT does. Raises ValueError with one
    line for a tracker that cannot be written to.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if re.fullmatch(r"[^/]*:\d+(/.*)?", uri):  # MLflow would make a folder of that name
        raise ValueError(f"MLFLOW_TRACKING_URI={uri}: has no scheme; give http://{uri}")
    cells = tracked_cells(folder)
    texts = [str(run._replace(readings=None)) for cell in cells for run in (cell.whole, *cell.jobs)]
    if kinds := sorted({kind for _, kind in secrets_in("\n".join(texts))}):
        raise ValueError(f"{folder}: not exported: it holds secrets: {', '.join(kinds)}")
    os.environ.update(MLFLOW | os.environ)
    try:
        from analysis.report.export.mlflow_runs import write_runs
    except ModuleNotFoundError as error:
        command = f"{sys.executable} -m pip install -c envs/constraints.txt mlflow-skinny"
        raise ValueError(f"{error}: {command}") from None
    new, where = write_runs(cells, folder.resolve(), names)
    return f"{new} cells exported, {len(cells) - new} were there: {where}"
