"""A run of the command while it goes on: who is there, and what is done to them."""

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

from tests.soak.plan import Fault
from tests.studio import Running, Studio

POLL_S = 0.03
SERVER = "models.fork_server"
# Parent → child, of those whose command line is the fork server's.
SERVED_BY = {"conductor": "server", "server": "member", "preloaded": "member"}
ROLES = {
    "workflow.collocation.run.cell": "conductor",
    "workflow.collocation.telemetry.sampler": "sampler",
    "analysis": "analysis",
}
CONTROL = "nvidia-cuda-mps-control"
ROOM = 40 * 1024  # bytes left on a full disk, times 0 to 2


def cast_of(root: int) -> dict[str, list[psutil.Process]]:
    """The processes of a run by what they are."""
    cast, roles = defaultdict(list), {}
    with contextlib.suppress(psutil.Error):
        cast["snakemake"] = cast["group"] = [psutil.Process(root)]
        for process in sorted(cast["group"][0].children(recursive=True), key=_age):
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
class Scene:
    """Watches one run and does what goes wrong in it. A context: at its end all is undone.

    disk: the mounted folder, if there is one. look: called now and then, to look at results.
    deeds: what was done, {"victim", "what", "pid", "t_ns", "until_ns"}, on the monotonic clock.
    """

    studio: Studio
    faults: tuple[Fault, ...]
    disk: Path | None
    look: Callable[[], None]
    deeds: list[dict] = field(default_factory=list)
    _undo: list[tuple[float, dict, Callable]] = field(default_factory=list)

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *exception) -> None:
        self._undo_until(float("inf"))

    def watch(self, running: Running, bound: float) -> bool:
        """Until the run has ended, or has not within `bound` seconds: then False."""
        began, looked, todo = time.monotonic(), 0.0, list(self.faults)
        while running.process.poll() is None:
            now = time.monotonic()
            if now > began + bound:
                return False
            self._undo_until(now)
            if todo and now >= began + todo[0].at_s and self._do(todo[0], running.process.pid):
                todo.pop(0)
            if now > looked + 0.3:
                self.look()
                looked = now
            time.sleep(POLL_S)
        return True

    def _do(self, fault: Fault, root: int) -> bool:
        """False where the victim is not there."""
        if fault.victim == "disk":
            self._note(fault, None, self._disk(fault))
            return True
        found = cast_of(root)[fault.victim]
        if fault.victim == "mps":
            found = [p for p in self.studio.alive() if CONTROL in " ".join(_command(p))]
        if found:
            self._signal(fault, found[fault.member % len(found)].pid)
        return bool(found)

    def _note(self, fault: Fault, pid: int | None, undo: Callable | None) -> None:
        deed = {"victim": fault.victim, "what": fault.what, "pid": pid, "until_ns": None}
        self.deeds.append(deed | {"t_ns": time.monotonic_ns()})
        if undo:
            at = time.monotonic() + fault.seconds if fault.seconds else float("inf")
            self._undo.append((at, self.deeds[-1], undo))

    def _undo_until(self, now: float) -> None:
        for _, deed, undo in [entry for entry in self._undo if entry[0] <= now]:
            deed["until_ns"] = time.monotonic_ns()  # before: it goes on at once
            undo()
        self._undo = [entry for entry in self._undo if entry[0] > now]

    def _signal(self, fault: Fault, pid: int) -> None:
        send = os.killpg if fault.victim == "group" else os.kill
        names = {"HANG": ["STOP"], "INT+INT": ["INT", "INT"]}.get(fault.what, [fault.what])
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            self._note(fault, pid, (lambda: _continue(pidfd)) if fault.what == "STOP" else None)
            for number, name in enumerate(names):
                time.sleep(0.5 * number)
                send(pid, getattr(signal, f"SIG{name}"))

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
