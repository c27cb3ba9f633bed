"""Cells that a bench measures without Snakemake: planned, prepared, started, read."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import cores
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.run.task import Task, member_specs
from workflow.collocation.study.definition import CONFIG, Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.load import load_workloads

CORES_FOR = 16  # each member has the cores of a set of so many


def cell_of(case: tuple, seconds: float) -> Cell:
    """The plan's cell of a case, measured for that long."""
    workload, implementation, method, n = case
    times = {"window_s": seconds, "warmup_s": 1.0, "settle_s": 0.5, "min_steps": 10}
    study = Study(
        description="bench",
        measure={"kind": "window", "autotune": "concurrent", **times},
        cores_for=max(n, CORES_FOR),
        ladders=[
            {"workloads": [workload], "implementations": [implementation], "counts": {n: [method]}}
        ],
    )
    cells = expand(study, load_workloads(CONFIG / "workloads.yaml"))
    return next(cell for cell in cells if cell.n == n and cell.method == method)


def prepare(cell: Cell, data: Path) -> Path:
    """Make the cell's dataset ready; the file that says so."""
    job = cell.spec.members[0].job
    ready = data / "ready" / "bench" / f"{job.dataset}.json"
    command = [sys.executable, "-m", "models.data", "prepare", job.dataset, "--root", data]
    command += ["--ready", ready, "--input-size", job.input_size]
    subprocess.run(list(map(str, command)), check=True)
    return ready


def started(cell: Cell, ready: Path, device, folder: Path, **told) -> subprocess.Popen:
    """The conductor of the cell, in `folder`; its run.json will be there."""
    gpu, output = device.uuid if device else "cpu", folder / "run.json"
    told |= {"output": output, "spec": cell.spec, "gpu": gpu, "data": [ready]}
    task = Task(study="bench", cell=cell.id, **told)
    task.write(folder / "job.json")
    command = [sys.executable, "-m", "workflow.collocation.run.cell", str(folder / "job.json")]
    return subprocess.Popen(command)


def record_of(conductor: subprocess.Popen, folder: Path) -> dict:
    """What the conductor recorded, once it has ended; ends the bench where that was not well."""
    code, path = conductor.wait(), folder / "run.json"
    record = json.loads(path.read_text("utf-8")) if code == 0 else {"status": f"exit code {code}"}
    if record["status"] != "completed":
        sys.exit(f"bench: the cell ended: {record['status']}: {record.get('reason')}")
    return record


@contextmanager
def entered(cell: Cell, dataset: dict, device, folder: Path) -> Iterator[tuple]:
    """The cell's method, in force, and the specs of its members."""
    sets, _ = cores.plan_conditions(cell.spec.shares(), numa=device.numa_node if device else None)
    key, where = (device.uuid, "cuda") if device else ("cpu", "cpu")
    with (
        device_lock(key, {"study": "bench", "cell": cell.id}, lambda holder: None),
        methods.enter(cell.spec, device, folder) as sharing,
    ):
        environments = [sharing.environment(index) for index in range(cell.n)]
        named = {dataset["dataset"]: dataset}
        yield sharing, member_specs(cell.spec, where, sets, environments, named, folder, 1)
