"""Whether a cell can be measured here and now: its device, what it lacks, how long it waits."""

import shutil
import sysconfig
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import Device, find_devices
from workflow.collocation.process_lifetime import stopped
from workflow.collocation.run.progress import Display
from workflow.collocation.run.task import Task
from workflow.collocation.sharing.evidence import GpuBusy, require_free
from workflow.collocation.study.cell import CellSpec, ImplementationSpec
from workflow.collocation.study.definition import parse_seconds
from workflow.collocation.study.errors import ConfigError, NotInForce

LATE = "the time budget is used up"
TRITON = (7, 0)  # the least compute capability that torch.compile works on
LOOK_S = 1.0  # between two looks at who else is on the card


class Postponed(Exception):
    """The cell is not measured now, which costs no attempt; with this sentence."""


def device_of(task: Task) -> tuple[Device | None, str | None]:
    """The GPU, None where there is none; and why, if the cell was planned for one, or if no cell
    of this run is measured any more.

    Raises ConfigError, or NotInForce where the driver does not answer, if it was not.
    """
    if task.ended is not None:  # it may be for want of the GPU
        return None, task.ended
    try:
        devices, why_not = find_devices(task.gpu)
    except (ConfigError, NotInForce) as error:
        if not task.needs_gpu:
            raise
        devices, why_not = [], str(error)
    if task.needs_gpu and not devices:
        return None, f"planned for a GPU, and there is none now: {why_not}"
    return next(iter(devices), None), None


def refusal(spec: CellSpec, device: Device | None) -> str | None:
    """The reason in a line, or None. Reads only."""
    for member in spec.members:
        package = member.job.package
        if package and not find_spec(package.partition("==")[0]):
            return f"'{member.workload}' needs a package: pip install {package}"
    return _of_implementation(spec.implementation, device) or methods.refusal(spec, device)


def _of_implementation(implementation: ImplementationSpec, device: Device | None) -> str | None:
    if implementation.cuda_graph and device is None:
        return "a CUDA graph needs an NVIDIA GPU, and there is none on this machine"
    if not implementation.compile or device is None:
        return None
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    needs = [
        (find_spec("triton"), "the Python package triton, which PyTorch's builds for CUDA bring"),
        (any(map(shutil.which, ("gcc", "clang"))), "a C compiler (gcc or clang)"),
        (headers, "Python's headers (such as the package python3-dev)"),
        (device.capability >= TRITON, "a GPU of compute capability 7.0 or more"),
    ]
    lacks = ", and ".join(what for there, what in needs if not there)
    return f"torch.compile needs {lacks}" if lacks else None


@dataclass
class Patience:
    """A cell's, whose task says how much it has: `wait` for others on the card, and a deadline.

    Who has waited in vain leaves the reason in the file `task.given_up`, and no cell of this run
    waits again.
    """

    task: Task
    display: Display
    device: Device | None
    hopeless_from: float | None = None  # since when whoever holds the lock may never let it go
    said: dict | None = None  # of whom it was said that he holds the lock

    def give_up(self, why: str) -> NoReturn:
        """Neither this cell nor any after it is measured in this run."""
        if self.task.given_up is not None and self.task.ended is None:
            self.task.given_up.write_text(why, encoding="utf-8")
        raise Postponed(why)

    def check(self) -> None:
        """Raise Postponed if the run has given up, or the cell would outlast the time budget."""
        if self.task.ended is not None:
            raise Postponed(self.task.ended)
        deadline = self.task.deadline
        if deadline is not None and time.time() + self.task.estimate_s > deadline:
            raise Postponed(LATE)

    def for_lock(self, holder: dict) -> None:
        """Say who holds the device's lock; raise Postponed if it is to be waited for no longer.

        Another cell ends some time, and is waited for. A process that a cell left behind, which the
        holder's words tell, may never end, nor one that somebody stopped.
        """
        if holder != self.said:
            self.said = holder
            self.display.say(f"waiting for {self._held(holder)}")
        self.check()
        self.display.show(lambda: f"waiting for {self._held(holder)}")
        pid, now = holder.get("pid"), time.monotonic()
        if "stuck" not in holder and not (isinstance(pid, int) and stopped(pid)):
            self.hopeless_from = None
            return
        self.hopeless_from = self.hopeless_from or now
        if now - self.hopeless_from > parse_seconds(self.task.wait):
            self.give_up(f"waited {self.task.wait} for {self._held(holder)}")

    def for_company(self, company: GpuBusy) -> None:
        """Wait until nobody else has the card; raises Postponed."""
        self.display.say(f"waiting for the GPU, {self.task.wait} at most: {company}")
        until = time.monotonic() + parse_seconds(self.task.wait)
        while True:
            try:
                return require_free(self.device)
            except GpuBusy as still:
                self.check()
                self.display.show(lambda: "waiting for the GPU, which others use")
                if time.monotonic() > until:
                    self.give_up(str(still))
            time.sleep(LOOK_S)

    def _held(self, holder: dict) -> str:
        who = ", ".join(f"{key} {value}" for key, value in holder.items() if value)
        return f"the {'GPU' if self.device else 'CPU'}, held by {who}"
