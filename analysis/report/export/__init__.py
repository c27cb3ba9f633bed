"""A study's cells for an experiment tracker.

Reads runs.parquet, estimates.parquet and the cells' gpu.parquet of the folder, and computes no
number. A cell that the tracker has is left as it is, so exporting again adds what is new.
"""

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.estimates import runs
from analysis.estimates import table as estimates
from analysis.files import read_table
from workflow.collocation.study.redaction import secrets_in

# Where the user has none: a store in a folder, no word to its makers, no line for each run, and an
# error within seconds.
MLFLOW = dict.fromkeys(("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"), "true")
MLFLOW |= {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
OF_SETS = ("rate", "stp", "slowdown_worst", "s", "gract", "smact", "tenso", "drama", "power")
OF_SETS += ("memory", "energy_per_sample")
MEASURED = {"samples_per_s": 1.0, "step_ms_p50": 1.0, "gpu_memory": 1e-9}  # in GB, as of sets
# Parameters of a cell and of its jobs, and those of a job.
COMMON = ("implementation", "replicate", "host", "hardware", "status", "telemetry_source")
OF_JOB = ("scenario", "method", "workload", "condition")
SERIES = ("gract", "smact", "tenso", "drama", "power", "gpu_util", "memory_used")
SAME = ["at", "scenario", "implementation", "method", "window"]


class Run(NamedTuple):
    """A cell, or a job of it. readings: SERIES (memory in MiB) by `at`, seconds since 1970; of the
    card, or of the MIG instance that is the job's own.
    """

    name: str
    params: dict[str, str]
    metrics: dict[str, float]
    readings: pd.DataFrame


class Cell(NamedTuple):
    """whole: its name is the cell's id with its attempt; its metrics are `stp`, or where it has
    several conditions or windows, `stp/mps`. began, ended: seconds since 1970.
    """

    whole: Run
    jobs: list[Run]
    began: float
    ended: float
    completed: bool


def cells(folder: Path) -> list[Cell]:
    """Those that started jobs, of the GPU model that the estimates are of.

    Readings have no clock of their own: the last is put at the cell's end, later than it was by the
    second or two that a cell takes to stop. Raises OSError or ValueError where a table is missing.
    """
    members = runs.prepare_runs(runs.read_runs(folder / "runs.parquet")).members
    members = members[members["current"] & members["member"].notna()]
    published = _published(members, estimates.read_estimates(folder / "estimates.parquet"))
    return [
        _cell(at, rows, published.get(at, {}), _readings(folder / "cells" / at / "gpu.parquet"))
        for at, rows in members.groupby("at", sort=False)
    ]


def _readings(path: Path) -> pd.DataFrame:
    """Those of a cell; none where it ran on a CPU."""
    columns = ["t_ns", "entity", *SERIES]
    if not path.exists():
        return pd.DataFrame(columns=columns, dtype=float)
    return read_table(path, columns).to_pandas()


def _published(members: pd.DataFrame, numbers: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Cell with its attempt → numbers of its sets, as estimates have them."""
    sets = members[~members["again"]].drop_duplicates([*SAME, "condition"])
    found = pd.concat([estimates.select(numbers, quantity, job="") for quantity in OF_SETS])
    found = found[["quantity", *SAME[1:], "replicates"]].explode("replicates").dropna()
    found["at"] = [one["cell"] for one in found["replicates"]]
    named: dict[str, dict[str, float]] = {}
    for e in found.merge(sets[[*SAME, "condition"]], on=SAME).itertuples():
        key = "/".join(filter(None, (e.quantity, e.condition or e.window)))
        named.setdefault(e.at, {})[key] = e.replicates["value"]
    return named


def _cell(at: str, rows: pd.DataFrame, metrics: dict[str, float], readings: pd.DataFrame) -> Cell:
    first = rows.iloc[0]
    began = datetime.fromisoformat(first["started_at"]).timestamp()
    ended = began + first["total_s"]
    readings = readings.assign(at=ended + (readings["t_ns"] - readings["t_ns"].max()) / 1e9)
    readings["memory_used"] /= 2**20
    scenario, _, method, *_ = at.split("/")
    common = _told(first, COMMON) | {"jobs": f"{first['n']:.0f}"}
    params = common | {"scenario": scenario, "method": method}
    whole = Run(at, params, metrics, readings[readings["entity"] == "gpu"])
    jobs = []
    for _, own in rows.groupby("member"):
        job = own.iloc[0]
        about = common | _told(job, OF_JOB) | {"job": f"{job['member']:.0f}"}
        measured = {
            "/".join(filter(None, (name, row["window"]))): row[name] * scale
            for row in own.to_dict("records")
            for name, scale in MEASURED.items()
            if pd.notna(row[name])
        }
        instance = readings[(readings["entity"] == job["entity"]) & (job["entity"] != "gpu")]
        jobs.append(Run(f"{about['job']} {job['workload']}", about, measured, instance))
    return Cell(whole, jobs, began, ended, first["status"] == runs.COMPLETED)


def _told(row: pd.Series, names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(row[name]) for name in names if pd.notna(row[name]) and row[name] != ""}


def export(folder: Path, names: str) -> str:
    """Export a study's cells into MLflow; gives how many are new, how many were there, and where.

    names: of runs and metrics, `mlflow` for our own or `radt` for those of radT. Raises ValueError
    with one line for a tracker that cannot be written to.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if re.fullmatch(r"[^/]*:\d+(/.*)?", uri):  # MLflow would make a folder of that name
        raise ValueError(f"MLFLOW_TRACKING_URI={uri}: has no scheme; give http://{uri}")
    found = cells(folder)
    texts = [run._replace(readings=None) for cell in found for run in (cell.whole, *cell.jobs)]
    if kinds := sorted({kind for _, kind in secrets_in("\n".join(map(str, texts)))}):
        raise ValueError(f"{folder}: not exported: it holds secrets: {', '.join(kinds)}")
    os.environ.update(MLFLOW | os.environ)
    try:
        from analysis.report.export.mlflow_runs import write
    except ModuleNotFoundError as error:
        what = f"{sys.executable} -m pip install -c envs/constraints.txt mlflow-skinny"
        raise ValueError(f"{error}: {what}") from None
    new, where = write(found, folder.resolve(), names)
    return f"{new} cells exported, {len(found) - new} were there: {where}"
