"""What `make bench` measures: workloads under methods as cells of the plan, and their data."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation import sharing as methods
from workflow.collocation.gpu import cores
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.run.task import member_specs
from workflow.collocation.sharing.base import Sharing
from workflow.collocation.spec.grid import Cell, expand
from workflow.collocation.spec.load import load_workloads
from workflow.collocation.spec.study import CONFIG, Study

WARMUP_S, SETTLE_S = 1.0, 0.5


@dataclass(frozen=True)
class Case:
    """So many members of a workload, each with the machine's cores divided by `cores_for`."""

    workload: str
    arm: str
    method: str
    n: int
    cores_for: int

    def __str__(self) -> str:
        return f"{self.arm} {self.n}x {self.method}, cores for {self.cores_for}"


R26 = "resnet26_cifar10_b128"
CUDA_CASES = {
    "alone": Case(R26, "bf16_autograd", "naive", 1, 16),
    "mps7": Case(R26, "bf16_autograd", "mps", 7, 16),
    "mps16": Case(R26, "bf16_autograd", "mps", 16, 16),
    "naive7": Case(R26, "bf16_autograd", "naive", 7, 16),
    "graph": Case(R26, "graph", "naive", 1, 16),
}
TINY = "tiny_resnet_digits_b32"
CPU_CASES = {
    "alone": Case(TINY, "paper_step", "naive", 1, 2),
    "naive2": Case(TINY, "paper_step", "naive", 2, 2),
}


def cell_of(case: Case, seconds: float) -> Cell:
    """The plan's cell of a case, measured for that long."""
    times = {"window_s": seconds, "warmup_s": WARMUP_S, "settle_s": SETTLE_S}
    study = Study(
        description="bench",
        replicates=1,
        measure={"kind": "window", "min_steps": 10, "tune": "together", **times},
        cores_for=case.cores_for,
        ladders=[
            {
                "workloads": [case.workload],
                "arms": [case.arm],
                "counts": {case.n: [case.method]},
            }
        ],
    )
    cells = expand(study, load_workloads(CONFIG / "workloads.yaml"))
    return next(cell for cell in cells if cell.n == case.n and cell.method == case.method)


def prepare(cell: Cell, data: Path) -> Path:
    """Make the cell's dataset ready; the file that says so."""
    job = cell.spec.members[0].job
    ready = data / "ready" / "bench" / f"{job.dataset}.json"
    arguments = ["prepare", job.dataset, "--root", data, "--ready", ready]
    arguments += ["--input-size", job.input_size]
    subprocess.run([sys.executable, "-m", "models.data", *map(str, arguments)], check=True)
    return ready


@contextmanager
def entered(
    cell: Cell, ready: Path, device: gpu.Device | None, folder: Path
) -> Iterator[tuple[Sharing, list[dict]]]:
    """Hold the device and set the cell's method up; with it the specs of its members.

    ready: as `prepare` gives it. Raises GpuBusy, NotInForce or Unsupported.
    """
    dataset = json.loads(ready.read_text())
    sets, _ = cores.plan_sides(cell.spec.shares(), numa=device.numa_node if device else None)
    key, holder = device.uuid if device else "cpu", {"study": "bench", "cell": cell.id}
    with (
        device_lock(key, holder, lambda other: print(f"waiting for the device: {other}")),
        methods.enter(cell.spec.to_json(), device, folder) as sharing,
    ):
        environments = [sharing.environment(index) for index in range(cell.n)]
        where, named = "cuda" if device else "cpu", {dataset["dataset"]: dataset}
        yield (
            sharing,
            member_specs(cell.spec, where, sets, environments, named, folder / "members"),
        )


def in_short(evidence: dict) -> str:
    """What a check of the method saw: `verified True, server 7, 2 clients`."""
    counted = {key: len(value) for key, value in evidence.items() if isinstance(value, dict | list)}
    told = (f"{counted[k]} {k}" if k in counted else f"{k} {v}" for k, v in evidence.items())
    return ", ".join(told)
