"""A run of the command while it goes on: who is there, how far it is, and what is done to them."""

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.soak.plan import SIGNALS, Fault
from tests.studio import Running, Studio

POLL_S = 0.03
SERVER = "models.serve"
# Parent → child, of those whose command line is the fork server's.
SERVED_BY = {"conductor": "server", "server": "member", "preloaded": "member"}
ROLES = {
    "workflow.collocation.cell.run": "conductor",
    "workflow.collocation.telemetry.sampler": "sampler",
    "analysis": "analysis",
}
CONTROL = "nvidia-cuda-mps-control"
# About so many seconds; a window's end shows nowhere, but comes so long after its beginning.
LASTS = {"plan": 3.0, "import": 2.0, "setup": 0.3, "build": 0.3, "warm": 0.3, "window": 1.2}
LASTS |= {"stop": 0.6, "figures": 1.0}
LEAD = {"stop": 1.3}
ROOM = 40 * 1024  # bytes left on a full disk, times 0 to 2


Cast = defaultdict[str, list[psutil.Process]]  # of a run by what they are, as they are now


def cast_of(root: int) -> Cast:
    cast, roles = defaultdict(list), {}
    with contextlib.suppress(psutil.Error):
        for process in sorted(psutil.Process(root).children(recursive=True), key=_age):
            with contextlib.suppress(psutil.Error):
                role = _role(process.cmdline(), roles.get(process.ppid(), "snakemake"))
                roles[process.pid] = role
                cast[role].append(process)
    return cast


def _age(process: psutil.Process) -> tuple[float, int]:
    with contextlib.suppress(psutil.Error):
        return process.create_time(), process.pid
    return 0.0, process.pid


def _role(command: list[str], parent: str) -> str:
    if SERVER in command:
        return SERVED_BY.get(parent, "preloaded")
    return next((role for module, role in ROLES.items() if module in command), "")


@dataclass
class Pending:
    """A fault of this run, before or after it was done; `due` once its phase was seen."""

    fault: Fault
    due: float | None = None
    done: bool = False


@dataclass
class Scene:
    """Watches one run and does what its act says. Use it as a context: at its end all is undone.

    disk: the mounted folder, if there is one. look: called now and then, to look at results.
    """

    studio: Studio
    faults: tuple[Fault, ...]
    disk: Path | None
    look: Callable[[], None]
    deeds: list[dict] = field(default_factory=list)
    root: int = 0
    _todo: list[Pending] = field(default_factory=list)
    _undo: list[tuple[float | None, dict, Callable]] = field(default_factory=list)
    _conductors: list[int] = field(default_factory=list)

    def __enter__(self) -> "Scene":
        self._todo = [Pending(fault) for fault in self.faults]
        for pending in self._todo:
            if pending.fault.phase == "before":
                self._do(pending, defaultdict(list), None)
        return self

    def __exit__(self, *exception) -> None:
        self._undo_due(all_of_it=True)

    def watch(self, running: Running, bound: float) -> bool:
        """Until the run has ended, or has not within `bound` seconds: then False."""
        self.root, began, looked = running.process.pid, time.monotonic(), 0.0
        while running.process.poll() is None:
            now = time.monotonic()
            if now > began + bound:
                return False
            self._undo_due()
            if any(not pending.done for pending in self._todo):
                self._act(cast_of(self.root))
            if now > looked + 0.3:
                self.look()
                looked = now
            time.sleep(POLL_S)
        return True

    # -- when ---------------------------------------------------------------------------------

    def _act(self, cast: Cast) -> None:
        for conductor in cast["conductor"]:
            if conductor.pid not in self._conductors:
                self._conductors.append(conductor.pid)
        folder, now = self._folder(cast), time.monotonic()
        pending = next(pending for pending in self._todo if not pending.done)  # in their order
        phase = pending.fault.phase
        if pending.due is None and self._is(pending.fault, cast, folder):
            pending.due = now + LEAD.get(phase, 0) + pending.fault.fraction * LASTS[phase]
        if pending.due is not None and now >= pending.due:
            self._do(pending, cast, folder)  # it waits for its victim, if that is not there

    def _is(self, fault: Fault, cast: Cast, folder: Path | None) -> bool:
        """Whether the run is in the fault's phase, or past its beginning in the same cell."""
        if fault.phase in ("plan", "import", "figures"):
            there = {"import": "preloaded", "figures": "analysis"}.get(fault.phase)
            return there is None or bool(cast[there])
        if folder is None or len(self._conductors) <= fault.cell:
            return False
        log = folder / "log" / "conductor.log"
        said = log.read_text(errors="replace") if log.exists() else ""
        here = {"setup": True, "build": bool(cast["member"]), "warm": "built:" in said}
        inside = fault.kind in SIGNALS and fault.kind not in ("snakemake", "group", "mps")
        missing = inside and not cast[fault.kind]
        return here.get(fault.phase, "started:" in said) and not missing

    def _folder(self, cast: Cast) -> Path | None:
        """Of the cell that is being measured."""
        for conductor in cast["conductor"]:
            with contextlib.suppress(psutil.Error, ValueError, IndexError):
                parts = Path(conductor.cmdline()[-1]).with_suffix("").parts
                return self.studio.results.joinpath("cells", *parts[parts.index("jobs") + 1 :])
        return None

    # -- what ---------------------------------------------------------------------------------

    def _do(self, pending: Pending, cast: Cast, folder: Path | None) -> None:
        fault = pending.fault
        if fault.kind == "disk":
            self._undo_at(fault, self._deed(fault, None, folder), self._disk(fault))
        elif victim := self._victim(fault, cast):
            self._signal(fault, victim, folder)
        else:
            return
        pending.done = True

    def _undo_at(self, fault: Fault, deed: dict, undo: Callable) -> None:
        at = None if fault.seconds is None else time.monotonic() + fault.seconds
        self._undo.append((at, deed, undo))

    def _undo_due(self, all_of_it: bool = False) -> None:
        now, left = time.monotonic(), []
        for at, deed, undo in self._undo:
            if all_of_it or (at is not None and now >= at):
                deed["until_ns"] = time.monotonic_ns()  # before: it goes on at once
                undo()
            else:
                left.append((at, deed, undo))
        self._undo = left

    def _deed(self, fault: Fault, pid: int | None, folder: Path | None) -> dict:
        cell = str(folder.relative_to(self.studio.results / "cells")) if folder else None
        deed = {"victim": fault.kind, "what": fault.what, "phase": fault.phase, "cell": cell}
        deed |= {"pid": pid, "t_ns": time.monotonic_ns(), "wall": time.time(), "until_ns": None}
        self.deeds.append(deed)
        return deed

    def _victim(self, fault: Fault, cast: Cast) -> int | None:
        if fault.kind in ("snakemake", "group"):
            return self.root
        found = cast[fault.kind]
        if fault.kind == "mps":
            found = [p for p in self.studio.alive() if CONTROL in " ".join(_command(p))]
        return found[fault.member % len(found)].pid if found else None

    def _signal(self, fault: Fault, pid: int, folder: Path | None) -> None:
        send = os.killpg if fault.kind == "group" else os.kill
        names = {"HANG": ["STOP"], "INT+INT": ["INT", "INT"]}.get(fault.what, [fault.what])
        deed = self._deed(fault, pid, folder)
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            for number, name in enumerate(names):
                time.sleep(0.5 * number)
                send(pid, getattr(signal, f"SIG{name}"))
            if fault.what == "STOP":
                self._undo_at(fault, deed, lambda: _continue(pidfd))

    def _disk(self, fault: Fault) -> Callable:
        """Fill the disk, or make it read-only; gives what undoes that."""
        if self.disk is None:  # this user may mount none
            return lambda: None
        if fault.what == "read_only":
            mount = ["mount", "-o"]
            subprocess.run([*mount, "remount,ro", str(self.disk)], check=True)
            return lambda: subprocess.run([*mount, "remount,rw", str(self.disk)], check=True)
        ballast = self.disk / ".ballast"
        fill(ballast, fault.member * ROOM)
        return lambda: ballast.unlink(missing_ok=True)


def fill(path: Path, left: int) -> None:
    """Take all of a small disk but some bytes."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        if left:
            file.truncate(max(file.tell() - left, 0))


def _continue(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    os.close(pidfd)


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@contextlib.contextmanager
def disk(folder: Path, megabytes: int = 96) -> Iterator[Path | None]:
    """A small file system at `folder`; None where this user may mount none."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    made = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield folder if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=False)
