"""Cells as runs of MLflow; an experiment is a study.

mlflow: a run for each cell, with those of its jobs inside. radt: a run for each job, those of a
cell inside the first, with the names that radT gives to runs, parameters and metrics.
"""

import os
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from analysis.files import one_line
from analysis.report.export import SERIES, Cell, Run

MOST = 1000  # metrics of a request
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


def _radt(cell: Cell, number: int) -> list[Run]:
    """Letters say device, job, MPS. What was measured of the set and the card is at its first job:
    radT can watch each process, which repeats it.
    """
    found = []
    for place, job in enumerate(cell.jobs):
        letter = f"0_{chr(ord('A') + place)}" if cell.jobs[1:] else "0"
        letter += "_MPS" if job.params["method"].startswith("mps") else ""
        params = job.params | {"model": job.params["workload"], "workload": str(number)}
        name = f"({number} {letter}) {cell.whole.name}"
        found.append(Run(name, params | {"letter": letter}, job.metrics, job.readings))
    first, whole = found[0], cell.whole
    readings = first.readings if len(first.readings) else whole.readings
    found[0] = first._replace(metrics=whole.metrics | first.metrics, readings=readings)
    return found


def write(cells: list[Cell], folder: Path, to: str) -> tuple[int, str]:
    """Those that are not there; how many, and where. Raises ValueError with MLflow's words."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").as_uri()
    name = folder.name + " radT" * (to == "radt")
    try:
        client = MlflowClient(uri)
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        there = _there(client, experiment)
        new = [cell for cell in cells if cell.whole.name not in there]
        for number, cell in enumerate(new, len(there) + 1):
            nested = _radt(cell, number) if to == "radt" else [cell.whole, *cell.jobs]
            _write(client, experiment, cell, nested, RADT if to == "radt" else OURS)
    except MlflowException as error:
        raise ValueError(f"{uri}: {one_line(error)}") from error
    return len(new), f"experiment {name} of {uri}"


def _there(client: MlflowClient, experiment: str) -> set[str]:
    """Cells that the experiment has. Of one whose first run goes on, an export was interrupted: its
    runs are deleted.
    """
    found = [*(page := client.search_runs([experiment], max_results=MOST))]
    while page.token:
        found += (page := client.search_runs([experiment], "", 1, MOST, page_token=page.token))
    ours = [(run.data.tags["cell"], run.info) for run in found if "cell" in run.data.tags]
    cut = {cell for cell, info in ours if info.status == "RUNNING"}
    for cell, info in ours:
        if cell in cut:
            client.delete_run(info.run_id)
    return {cell for cell, _ in ours} - cut


def _write(
    client: MlflowClient, experiment: str, cell: Cell, nested: list[Run], names: dict
) -> None:
    """The first is the parent of the others, and ends last. Steps of readings are milliseconds
    since the first reading; radT's are 0.
    """
    began, ended = round(1000 * cell.began), round(1000 * cell.ended)
    tags, made = {"cell": cell.whole.name}, []
    for run in nested:
        made.insert(0, client.create_run(experiment, began, tags, run.name).info.run_id)
        tags["mlflow.parentRunId"] = made[-1]
        stamps = (1000 * run.readings["at"]).round().astype("int64").tolist()
        metrics = [Metric(key, value, ended, 0) for key, value in run.metrics.items()]
        metrics += [
            Metric(name, value, stamp, 0 if names is RADT else stamp - stamps[0])
            for name, column in names.items()
            for stamp, value in zip(stamps, run.readings[column].tolist(), strict=True)
            if value == value  # NaN: not read
        ]
        params = [Param(key, value) for key, value in run.params.items()]
        client.log_batch(made[0], (), params)
        for start in range(0, len(metrics), MOST):
            client.log_batch(made[0], metrics[start : start + MOST])
    for run_id in made:
        client.set_terminated(run_id, "FINISHED" if cell.completed else "FAILED", ended)
