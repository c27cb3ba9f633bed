"""The folder of a sweep: its commands, a folder for each run, and who is at work on which.

    sweep.json          the commands, and the folder in which they run
    session             its number, held by all who work on the sweep (a shared lock)
    0007/run.json       the run and its attempts, replaced as a whole
    0007/claim          held by the supervisor of the run and by its keeper (an exclusive lock)
    0007/log.txt        the output of all attempts

Locks end with their processes, and on a network's file system they hold among machines. Files are
their owner's alone, because command lines may hold secrets.
"""

import fcntl
import json
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from workflow.collocation.gpu.lock import folder_lock
from workflow.collocation.study.redaction import write_private
from workflow.collocation.study.regular_files import read_json
from workflow.collocation.sweep.record import Outcome, Run, State, lose

FOLDER_VARIABLE, RUN_VARIABLE = "COLLOCATION_FOLDER", "COLLOCATION_RUN"
SWEEP, RUN, CLAIM, LOG, SESSION = "sweep.json", "run.json", "claim", "log.txt", "session"


def find_or_make(parent: Path, commands: list[list[str]], working: Path) -> Path:
    """The sweep of these commands among `parent`/run-1, run-2, …; the next of them is made if need
    be. Raises LockHeld while another process does so.
    """
    with folder_lock(parent, {"pid": os.getpid()}, "--folder"):
        numbers = [0]
        for folder in parent.glob("run-*"):
            number = folder.name.removeprefix("run-")
            numbers += [int(number)] if number.isdecimal() else []
            with suppress(OSError, ValueError):
                if read_json(folder / SWEEP) == _content(commands, working):
                    return folder
        folder = parent / f"run-{max(numbers) + 1}"
        _make(folder, commands, working)
    return folder


def open_or_make(folder: Path, commands: list[list[str]], working: Path) -> None:
    """Make a sweep of these commands in a folder that is new or holds that very sweep.

    Raises LockHeld while another process does so, and ValueError if the folder holds another one.
    """
    with folder_lock(folder, {"pid": os.getpid()}, "--folder"):
        if not (folder / SWEEP).exists():
            _make(folder, commands, working)
        elif read_json(folder / SWEEP) != _content(commands, working):
            raise ValueError(f"{folder} holds a sweep of other commands, or from another folder")


def _make(folder: Path, commands: list[list[str]], working: Path) -> None:
    """Every run gets its record first: a machine that looks for one which is not there may go on
    to miss it for a minute (NFS).
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for number, command in enumerate(commands):
        (folder / f"{number:04}").mkdir(mode=0o700, exist_ok=True)
        _write_record(folder / f"{number:04}" / RUN, Run(number, command).to_json())
    _write_record(folder / SWEEP, _content(commands, working))


def _write_record(path: Path, content: object) -> None:
    write_private(path, json.dumps(content, indent=1) + "\n", durable=True)


def _content(commands: list[list[str]], working: Path) -> dict:
    return {"commands": commands, "folder": str(working)}


@dataclass
class RunClaim:
    """A run that nobody else may start, until all copies of the descriptor are closed.

    problem: why its record could not be saved the last time, empty if it was.
    """

    run: Run
    folder: Path
    descriptor: int
    problem: str = ""

    def write(self) -> None:
        _write_record(self.folder / RUN, self.run.to_json())

    def save(self) -> bool:
        """Write the record; whether that went well, and need not be tried again."""
        try:
            self.write()
        except OSError as error:
            self.problem = f"a record is not saved yet: {error}"
            return False
        self.problem = ""
        return True

    def release(self) -> None:
        os.close(self.descriptor)


class Sweep:
    """A sweep, as one process works on it.

    session: number of the present session. It lasts while anybody works on the sweep, and the next
    one tries again what failed in it. descriptor: of its lock.
    """

    def __init__(self, folder: Path):
        content = read_json(folder / SWEEP)
        self.folder = folder.resolve()
        self.commands: list[list[str]] = content["commands"]
        self.working = Path(content["folder"])
        self._over: dict[int, Run] = {}  # runs of which nothing more comes in this session
        # Runs as they were read last, with the inode and the time of their files.
        self._glances: dict[int, tuple[tuple[int, int], Run]] = {}
        self.descriptor = os.open(folder / SESSION, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            number = int(os.pread(self.descriptor, 20, 0) or 0) + 1
            os.pwrite(self.descriptor, str(number).encode(), 0)
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        self.session = int(os.pread(self.descriptor, 20, 0))

    def run_folder(self, number: int) -> Path:
        return self.folder / f"{number:04}"

    def read(self, number: int) -> Run:
        """The record of a run, which others may be about to change."""
        if number in self._over:
            return self._over[number]
        run = Run.from_json(read_json(self.run_folder(number) / RUN))
        if run.state(self.session) in (State.ended, State.failed):
            self._over[number] = run
        return run

    def runs(self) -> list[Run]:
        """The records of all runs; only those that changed are read again, if they can be."""
        return [self._glance(number) for number in range(len(self.commands))]

    def _glance(self, number: int) -> Run:
        if number in self._over:
            return self._over[number]
        try:
            status = (self.run_folder(number) / RUN).stat()
            version = status.st_ino, status.st_mtime_ns
            if self._glances.get(number, (None,))[0] != version:
                self._glances[number] = version, self.read(number)
        except OSError:  # a network's file system may fail for a moment
            if number not in self._glances:
                raise
        return self._glances[number][1]

    def claim_next(self, free: int, slots: int, gpu: str) -> RunClaim | None:
        """Claim the first run that nobody has and that is to be started; those that failed come
        last, or some that always fail at once might keep all others from their turn.

        free: how many of the `slots` of a supervisor are. gpu: its UUID or "cpu". None if there is
        no such run, or if the first one failed on this GPU and waits for more free slots: those
        after it wait, too, or its turn might never come. Other GPUs go on. Raises OSError.
        """
        for number in sorted(range(len(self.commands)), key=self._failures):
            claim = None if number in self._over else self._claim(number)
            if claim is None:
                continue
            if claim.run.state(self.session) is State.waiting:
                if min(claim.run.wanted, slots) <= free:
                    return claim
                newest = claim.run.attempts[-1]
                if (newest.host, newest.gpu) == (platform.node(), gpu):
                    claim.release()
                    return None
            claim.release()
        return None

    def _failures(self, number: int) -> int:
        return [attempt.outcome for attempt in self._glance(number).attempts].count(Outcome.failed)

    def _claim(self, number: int) -> RunClaim | None:
        """A claim of a run, with its record as it is now; None while another process has it."""
        folder = self.run_folder(number)
        descriptor = os.open(folder / CLAIM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            claim = RunClaim(self.read(number), folder, descriptor)
            if lose(claim.run):
                if claim.run.attempts[-1].host == platform.node():
                    _end_remains(folder)
                claim.write()
        except OSError:
            os.close(descriptor)
            raise
        return claim

    def close(self) -> None:
        os.close(self.descriptor)


def _end_remains(folder: Path) -> None:
    """End what is left of a run whose supervisor and keeper were killed at once."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_VARIABLE) == str(folder):
                process.kill()
