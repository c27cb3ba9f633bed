"""Whether a cell can be measured here and now: its device, what it needs, how long it waits."""

import shutil
import sysconfig
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import Device, find_devices
from workflow.collocation.gpu.lock import holder_text
from workflow.collocation.process_lifetime import is_stopped
from workflow.collocation.run.progress import Display
from workflow.collocation.run.task import Task
from workflow.collocation.sharing.evidence import GpuBusy, require_free
from workflow.collocation.study.cell import CellSpec, ImplementationSpec
from workflow.collocation.study.definition import parse_seconds
from workflow.collocation.study.errors import ConfigError, NotInForce

LATE = "the time budget is used up"
TRITON_CAPABILITY = (7, 0)  # the least compute capability that torch.compile supports
POLL_S = 1.0


class Postponed(Exception):
    """The cell is not measured now, for this reason; it does not count as an attempt."""


def device_of(task: Task) -> tuple[Device | None, str | None]:
    """The GPU of a cell, or None on a CPU; and what prevents measuring, or None.

    Raises ConfigError, or NotInForce where the driver does not answer, unless the cell was planned
    for a GPU: then that is what prevents measuring.
    """
    if task.ended is not None:  # perhaps because the GPU does not answer
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
    """Why this machine cannot run a cell, in one line, or None. Changes nothing."""
    for member in spec.members:
        package = member.job.package
        if package and not find_spec(package.partition("==")[0]):
            return f"'{member.workload}' needs a package: pip install {package}"
    return _implementation_refusal(spec.implementation, device) or methods.refusal(spec, device)


def _implementation_refusal(
    implementation: ImplementationSpec, device: Device | None
) -> str | None:
    if implementation.cuda_graph and device is None:
        return "a CUDA graph needs an NVIDIA GPU, and there is none on this machine"
    if not implementation.compile or device is None:
        return None
    missing = []
    if not find_spec("triton"):
        missing.append("the Python package triton, which PyTorch's builds for CUDA bring")
    if not shutil.which("gcc") and not shutil.which("clang"):
        missing.append("a C compiler (gcc or clang)")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        missing.append("Python's headers (such as the package python3-dev)")
    if device.capability < TRITON_CAPABILITY:
        missing.append("a GPU of compute capability 7.0 or more")
    return f"torch.compile needs {', and '.join(missing)}" if missing else None


@dataclass
class Patience:
    """How long a cell waits for its device; its task has the limits `wait` and `deadline`.

    A cell that waited in vain writes the reason to the file `task.given_up`; then no cell of this
    run waits again.
    """

    task: Task
    display: Display
    device: Device | None
    # Since when the lock is held by a process that may never end, on the monotonic clock.
    hopeless_since: float | None = None
    reported_holder: dict | None = None

    def give_up(self, reason: str) -> NoReturn:
        """Postpone this cell and all later ones of the run."""
        if self.task.given_up is not None and self.task.ended is None:
            self.task.given_up.write_text(reason, encoding="utf-8")
        raise Postponed(reason)

    def check(self) -> None:
        """Raise Postponed if the run has given up, or the cell would outlast the time budget."""
        if self.task.ended is not None:
            raise Postponed(self.task.ended)
        deadline = self.task.deadline
        if deadline is not None and time.time() + self.task.estimate_s > deadline:
            raise Postponed(LATE)

    def for_lock(self, holder: dict) -> None:
        """Say who holds the device's lock; raise Postponed if the wait is over.

        A running cell ends some time, and there is no limit. The limit holds for a process that may
        never end: one that was stopped, or that a cell left behind (`stuck` in `holder`).
        """
        if holder != self.reported_holder:
            self.reported_holder = holder
            self.display.say(f"waiting for {self._lock_text(holder)}")
        self.check()
        self.display.show(lambda: f"waiting for {self._lock_text(holder)}")
        pid, now = holder.get("pid"), time.monotonic()
        if "stuck" not in holder and not (isinstance(pid, int) and is_stopped(pid)):
            self.hopeless_since = None
            return
        self.hopeless_since = self.hopeless_since or now
        if now - self.hopeless_since > parse_seconds(self.task.wait):
            self.give_up(f"waited {self.task.wait} for {self._lock_text(holder)}")

    def for_free_gpu(self, busy: GpuBusy) -> None:
        """Wait until no other process uses the GPU; raise Postponed if the wait is over."""
        self.display.say(f"waiting for the GPU, {self.task.wait} at most: {busy}")
        until = time.monotonic() + parse_seconds(self.task.wait)
        while True:
            try:
                return require_free(self.device)
            except GpuBusy as still_busy:
                self.check()
                self.display.show(lambda: "waiting for the GPU, which others use")
                if time.monotonic() > until:
                    self.give_up(str(still_busy))
            time.sleep(POLL_S)

    def _lock_text(self, holder: dict) -> str:
        return f"the {'GPU' if self.device else 'CPU'}, held by {holder_text(holder)}"
