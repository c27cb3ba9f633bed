"""Cells as runs of MLflow, in an experiment for each study.

With our names, a cell is a run, with the runs of its jobs inside. With those of radT, each job is a
run; the first of a cell has the others inside. Names of runs, parameters and metrics are radT's.
"""

import os
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException

from analysis.files import one_line
from analysis.report.export import SERIES, TrackedCell, TrackedRun

BATCH = 1000  # metrics that MLflow takes in a request
OURS = {f"system/{name}": name for name in SERIES}  # metric → its readings
RADT = {
    "system/DCGMI - GR Engine Active": "gract",
    "system/DCGMI - SM Active": "smact",
    "system/DCGMI - Tensor Active": "tenso",
    "system/DCGMI - DRAM Active": "drama",
    "system/DCGMI - Power Usage": "power",
    "system/SMI - Power Draw": "power",
    "system/SMI - GPU Util": "gpu_util",
    "system/SMI - Mem Used": "memory_used",
}


def write_runs(cells: list[TrackedCell], folder: Path, names: str) -> tuple[int, str]:
    """Write the cells that the experiment lacks; returns how many, and where.

    names: `mlflow` or `radt`. Raises ValueError with MLflow's words.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").as_uri()
    name = f"{folder.name} radT" if names == "radt" else folder.name
    try:
        client = MlflowClient(uri)
        existing = client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else client.create_experiment(name)
        exported = _exported_cells(client, experiment)
        new = [cell for cell in cells if cell.whole.name not in exported]
        for number, cell in enumerate(new, len(exported) + 1):
            if names == "radt":
                _write_cell(client, experiment, cell, _radt_runs(cell, number), RADT)
            else:
                _write_cell(client, experiment, cell, [cell.whole, *cell.jobs], OURS)
    except MlflowException as error:
        raise ValueError(f"{uri}: {one_line(error)}") from error
    return len(new), f"experiment {name} of {uri}"


def _radt_runs(cell: TrackedCell, number: int) -> list[TrackedRun]:
    """A run for each job; its letters say device, job, MPS.

    Metrics and readings of the set and the card stand at the first job. radT, which can watch each
    process, would repeat them at every job.
    """
    jobs = []
    for position, job in enumerate(cell.jobs):
        letter = f"0_{chr(ord('A') + position)}" if len(cell.jobs) > 1 else "0"
        if job.params["method"].startswith("mps"):
            letter += "_MPS"
        params = job.params | {"model": job.params["workload"], "workload": str(number)}
        name = f"({number} {letter}) {cell.whole.name}"
        jobs.append(job._replace(name=name, params=params | {"letter": letter}))
    first = jobs[0]
    readings = first.readings if len(first.readings) else cell.whole.readings
    jobs[0] = first._replace(metrics=cell.whole.metrics | first.metrics, readings=readings)
    return jobs


def _exported_cells(client: MlflowClient, experiment: str) -> set[str]:
    """Cells that the experiment has.

    A cell whose first run still goes on is of an interrupted export: its runs are deleted.
    """
    page = client.search_runs([experiment], max_results=BATCH)
    runs: list[Run] = [*page]
    while page.token:
        page = client.search_runs([experiment], max_results=BATCH, page_token=page.token)
        runs += page
    of_cells = [(run.data.tags["cell"], run.info) for run in runs if "cell" in run.data.tags]
    interrupted = {cell for cell, info in of_cells if info.status == "RUNNING"}
    for cell, info in of_cells:
        if cell in interrupted:
            client.delete_run(info.run_id)
    return {cell for cell, _ in of_cells} - interrupted


def _write_cell(
    client: MlflowClient,
    experiment: str,
    cell: TrackedCell,
    runs: list[TrackedRun],
    series_names: dict[str, str],
) -> None:
    """Write the runs of a cell; the first is the parent of the others, and ends last."""
    began, ended = round(1000 * cell.began), round(1000 * cell.ended)
    tags, run_ids = {"cell": cell.whole.name}, []
    for run in runs:
        run_id = client.create_run(experiment, began, tags, run.name).info.run_id
        run_ids.append(run_id)
        tags["mlflow.parentRunId"] = run_ids[0]
        metrics = [Metric(name, number, ended, 0) for name, number in run.metrics.items()]
        metrics += _series(run, series_names)
        params = [Param(name, text) for name, text in run.params.items()]
        client.log_batch(run_id, (), params)
        for start in range(0, len(metrics), BATCH):
            client.log_batch(run_id, metrics[start : start + BATCH])
    for run_id in reversed(run_ids):
        client.set_terminated(run_id, "FINISHED" if cell.completed else "FAILED", ended)


def _series(run: TrackedRun, names: dict[str, str]) -> list[Metric]:
    """Readings as metrics whose steps are milliseconds since the first; with radT's names, 0."""
    stamps = (1000 * run.readings["at"]).round().astype("int64").tolist()
    metrics = []
    for name, column in names.items():
        for stamp, reading in zip(stamps, run.readings[column].tolist(), strict=True):
            if reading == reading:  # NaN was not read
                step = 0 if names is RADT else stamp - stamps[0]
                metrics.append(Metric(name, reading, stamp, step))
    return metrics
