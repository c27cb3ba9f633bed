"""Runs single cells for a bench, without Snakemake: plan, prepare data, start, read the record."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import Device, cores
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.run.task import Task, member_specs
from workflow.collocation.sharing.base import Method
from workflow.collocation.study.definition import CONFIG, Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.layout import RUN
from workflow.collocation.study.load import load_workloads

CORES_FOR = 16  # each member gets its share of the cores as in a set of this many jobs


class Case(NamedTuple):
    """Some equal jobs under one method."""

    workload: str
    implementation: str
    method: str
    jobs: int


def cell_of(case: Case, window_s: float) -> Cell:
    """The cell that a study would plan for a case, with a window of this many seconds."""
    ladder = {
        "workloads": [case.workload],
        "implementations": [case.implementation],
        "counts": {case.jobs: [case.method]},
    }
    study = Study(
        description="bench",
        measure={
            "kind": "window",
            "autotune": "concurrent",
            "window_s": window_s,
            "warmup_s": 1.0,
            "settle_s": 0.5,
            "min_steps": 10,
        },
        cores_for=max(case.jobs, CORES_FOR),
        ladders=[ladder],
    )
    cells = expand(study, load_workloads(CONFIG / "workloads.yaml"))
    return next(cell for cell in cells if cell.n == case.jobs and cell.method == case.method)


def prepare(cell: Cell, data: Path) -> Path:
    """Prepare the cell's dataset in the folder `data`; returns the file that says it is ready."""
    job = cell.spec.members[0].job
    ready = data / "ready" / "bench" / f"{job.dataset}.json"
    command = [sys.executable, "-m", "models.data", "prepare", job.dataset]
    command += ["--root", str(data), "--ready", str(ready), "--input-size", str(job.input_size)]
    subprocess.run(command, check=True)
    return ready


def start_cell(
    cell: Cell, ready: Path, device: Device | None, folder: Path, **settings
) -> subprocess.Popen:
    """Start the conductor of a cell, which writes run.json into `folder`.

    settings: further fields of its Task.
    """
    task = Task(
        study="bench",
        cell=cell.id,
        output=folder / RUN,
        spec=cell.spec,
        gpu=device.uuid if device else "cpu",
        data=[ready],
        **settings,
    )
    job_file = folder / "job.json"
    task.write(job_file)
    command = [sys.executable, "-m", "workflow.collocation.run.cell", str(job_file)]
    return subprocess.Popen(command)


def record_of(conductor: subprocess.Popen, folder: Path) -> dict:
    """Wait for a conductor, and read run.json; exits unless the cell completed."""
    code, path = conductor.wait(), folder / RUN
    record = json.loads(path.read_text("utf-8")) if code == 0 else {"status": f"exit code {code}"}
    if record["status"] != "completed":
        sys.exit(f"bench: the cell ended: {record['status']}: {record.get('reason')}")
    return record


@contextmanager
def entered(
    cell: Cell, dataset: dict, device: Device | None, folder: Path
) -> Iterator[tuple[Method, list[MemberSpec]]]:
    """Lock the device and set up the cell's method; gives the method and its members' specs."""
    core_sets, _ = cores.plan_conditions(
        cell.spec.shares(), numa=device.numa_node if device else None
    )
    lock_key = device.uuid if device else "cpu"
    with (
        device_lock(lock_key, {"study": "bench", "cell": cell.id}, lambda holder: None),
        methods.enter(cell.spec, device, folder) as sharing,
    ):
        specs = member_specs(
            cell.spec,
            "cuda" if device else "cpu",
            core_sets,
            [sharing.environment(member) for member in range(cell.n)],
            {dataset["dataset"]: dataset},
            folder,
            replicate=1,
        )
        yield sharing, specs
