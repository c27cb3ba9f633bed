"""A run of the command while it goes on: who is there, how far it is, and what is done to them."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.fakes import machine
from tests.soak.plan import Fault
from tests.studio import MARK, Running, Studio

POLL_S = 0.03
SERVER, CONDUCTOR = "models.serve", "workflow.collocation.cell.run"
# Parent → child, of those whose command line is the fork server's.
SERVED_BY = {"conductor": "server", "server": "member", "preloaded": "member", "member": "worker"}
ROLES = ("conductor", "preloaded", "server", "member", "worker", "script", "sampler", "analysis")
SAMPLER, ANALYSIS = "workflow.collocation.telemetry.sampler", "analysis"
CONTROL = "nvidia-cuda-mps-control"
# About so many seconds; a window's end shows nowhere, but comes so long after its beginning.
LASTS = {"plan": 3.0, "import": 2.0, "setup": 0.3, "build": 0.3, "warm": 0.3, "window": 1.2}
LASTS |= {"stop": 0.6, "figures": 1.0, "before": 0.0}
LEAD = {"stop": 1.3}
ROOM = 40 * 1024  # bytes left on a full disk, times 0 to 2
STRANGER = "import os, time; from tests.fakes import machine; machine.attach(os.environ); "
STRANGER += "print(flush=True); time.sleep(3600)"


Cast = defaultdict[str, list[psutil.Process]]  # of a run by what they are, as they are now


def cast_of(root: int) -> Cast:
    cast, roles = defaultdict(list), {}
    with contextlib.suppress(psutil.Error):
        for process in sorted(psutil.Process(root).children(recursive=True), key=_age):
            with contextlib.suppress(psutil.Error):
                role = _role(process.cmdline(), roles.get(process.ppid(), "snakemake"))
                roles[process.pid] = role
                if role:
                    cast[role].append(process)
    return cast


def _age(process: psutil.Process) -> tuple[float, int]:
    with contextlib.suppress(psutil.Error):
        return process.create_time(), process.pid
    return 0.0, process.pid


def _role(command: list[str], parent: str) -> str:
    if SERVER in command:
        return SERVED_BY.get(parent, "preloaded")
    if parent in ("member", "script"):
        return "script"
    known = {CONDUCTOR: "conductor", SAMPLER: "sampler", ANALYSIS: "analysis"}
    return next((role for module, role in known.items() if module in command), "")


@dataclass
class Pending:
    """A fault of this run, before or after it was done; `due` once its phase was seen."""

    fault: Fault
    due: float | None = None
    done: bool = False


@dataclass
class Scene:
    """Watches one run and does what its act says. Use it as a context: at its end all is undone."""

    studio: Studio
    faults: tuple[Fault, ...]
    disk: Path | None  # the mounted folder, if there is one
    look: object  # called now and then, to look at results
    deeds: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    running: Running | None = None
    _todo: list[Pending] = field(default_factory=list)
    _undo: list[tuple[float | None, dict, object]] = field(default_factory=list)
    _conductors: list[int] = field(default_factory=list)
    _started: dict[int, float] = field(default_factory=dict)
    _began: float = 0.0

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
        self.running, self._began = running, time.monotonic()
        looked = 0.0
        while running.process.poll() is None:
            now = time.monotonic()
            if now > self._began + bound:
                return False
            self._undo_due()
            if any(not pending.done for pending in self._todo):
                self._act(cast_of(running.process.pid))
            if now > looked + 0.3:
                self.look()
                looked = now
            time.sleep(POLL_S)
        return True

    @property
    def missed(self) -> list[Fault]:
        return [pending.fault for pending in self._todo if not pending.done]

    # -- when ---------------------------------------------------------------------------------

    def _act(self, cast: Cast) -> None:
        for conductor in cast["conductor"]:
            if conductor.pid not in self._conductors:
                self._conductors.append(conductor.pid)
        folder = self._folder(cast)
        for pending in self._todo:
            if pending.done:
                continue
            fault, now = pending.fault, time.monotonic()
            if pending.due is None:
                if not self._is(fault, cast, folder):
                    continue
                pending.due = now + LEAD.get(fault.phase, 0) + fault.fraction * LASTS[fault.phase]
            if now >= pending.due:  # it waits for its victim, if that is not there
                self._do(pending, cast, folder)
            return  # in their order

    def _is(self, fault: Fault, cast: Cast, folder: Path | None) -> bool:
        """Whether the run is in the fault's phase, or past its beginning in the same cell."""
        if fault.phase == "plan":
            return True
        if fault.phase == "figures":
            return bool(cast["analysis"])
        if fault.phase == "import":
            return bool(cast["preloaded"])
        if folder is None or len(self._conductors) <= fault.cell:
            return False
        log = _text(folder / "log" / "conductor.log")
        here = {"setup": True, "build": bool(cast["member"]), "warm": "built:" in log}
        missing = fault.kind in ROLES and not cast[fault.kind]
        return here.get(fault.phase, "started:" in log) and not missing

    def _folder(self, cast: Cast) -> Path | None:
        """Of the cell that is being measured."""
        for conductor in cast["conductor"]:
            with contextlib.suppress(psutil.Error, ValueError):
                job = Path(conductor.cmdline()[-1])
                parts = job.with_suffix("").parts
                return self.studio.results.joinpath("cells", *parts[parts.index("jobs") + 1 :])
        return None

    # -- what ---------------------------------------------------------------------------------

    def _do(self, pending: Pending, cast: Cast, folder: Path | None) -> None:
        fault = pending.fault
        if fault.kind == "disk":
            undo = self._disk(fault)
        elif fault.kind == "company":
            undo = self._company(fault)
        else:
            pids = self._victims(fault, cast)
            if not pids:
                return
            pending.done = True
            self._signal(fault, pids, folder)
            return
        pending.done = True
        deed = self._deed(fault, None, folder)
        self._undo_at(fault, deed, undo)

    def _undo_at(self, fault: Fault, deed: dict, undo) -> None:
        at = None if fault.seconds is None else time.monotonic() + fault.seconds
        self._undo.append((at, deed, undo))

    def _undo_due(self, all_of_it: bool = False) -> None:
        now = time.monotonic()
        left = []
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

    def _victims(self, fault: Fault, cast: Cast) -> list[int]:
        root = self.running.process.pid
        if fault.kind in ("snakemake", "group"):
            return [root]
        if fault.kind == "mps":
            found = [p for p in self.studio.alive() if CONTROL in " ".join(_command(p))]
        else:
            found = cast[fault.kind]
        return [found[fault.member % len(found)].pid] if found else []

    def _signal(self, fault: Fault, pids: list[int], folder: Path | None) -> None:
        [pid] = pids
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

    def _disk(self, fault: Fault):
        if self.disk is None:
            self.notes.append(f"no disk of its own, so not {fault.what}")
            return lambda: None
        if fault.what == "read_only":
            mount = ["mount", "-o"]
            subprocess.run([*mount, "remount,ro", str(self.disk)], check=True)
            return lambda: subprocess.run([*mount, "remount,rw", str(self.disk)], check=True)
        ballast = self.disk / ".ballast"
        fill(ballast, fault.member * ROOM)
        return lambda: ballast.unlink(missing_ok=True)

    def _company(self, fault: Fault):
        card = self.studio.card
        if fault.what == "lost":
            machine.configure(card, lost=True)
            return lambda: machine.configure(card, lost=False)
        uuid = self.studio.surroundings["SOAK_CARD"]
        environment = self.studio.environment(**{MARK: "", "CUDA_VISIBLE_DEVICES": uuid})
        command = [sys.executable, "-c", STRANGER]
        if fault.what == "daemon":
            pipe = self.studio.folder / "foreign"
            pipe.mkdir(exist_ok=True)
            folders = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
            environment |= dict.fromkeys(folders, str(pipe))
            command = [str(Path(machine.FAKES, CONTROL)), "-f"]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, env=environment, start_new_session=True, **silent)
        time.sleep(0.3)

        def leave() -> None:
            process.kill()
            process.wait()

        return leave


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


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


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
