"""A private MPS control daemon, from its start to its end, and what killed runs left of theirs.

The daemon runs in the foreground as our child, and the kernel kills it when we die. Its server may
outlive that, so each pipe folder bears a mark file, locked for as long as we live: `sweep` ends
what belongs to a mark that nobody holds, and nothing else. No setting of the card is touched.
"""

import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from workflow.collocation.process_lifetime import defer_signals, end_with_parent, is_running
from workflow.collocation.sharing.evidence import CONTROL, PIPE_FOLDER, GpuBusy, NotInForce

PROGRAMS = "nvidia-cuda-mps"  # how the names of the control program and of the server begin
PREFIX, MARK = "mps-", "collocation-study"
START_S, ANSWER_S, END_S = 20.0, 15.0, 5.0
RELEASE_S = 4.0  # to drop clients
KILL_S = 2.0  # for a daemon that does not answer to quit, and for SIGKILL to end one
SOCKET_PATH_LIMIT = 107  # bytes, on Linux
OPEN_FILES = 16384  # what NVIDIA advises for many clients


class Daemon:
    """One MPS control daemon of a GPU: it and its server write to the folder `logs`, and clients
    meet it in the folder `pipe`, by default a new one.
    """

    def __init__(self, device_uuid: str, logs: Path, pipe: Path | None = None):
        self.device_uuid, self.logs = device_uuid, logs.resolve()
        self.pipe = pipe or Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self.mark: TextIO | None = None  # the locked file that says that its starter lives
        self.process: subprocess.Popen | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the daemon and every client start with."""
        return {
            # By UUID: an index would be counted anew among the devices that the daemon shows.
            "CUDA_VISIBLE_DEVICES": self.device_uuid,
            PIPE_FOLDER: str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }

    def start(self) -> None:
        """Start the daemon, and wait until it answers. Raises NotInForce if it does not.

        To be called from the main thread: the daemon is killed when the calling thread ends.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        unmarked = self.pipe / "unmarked"
        self.mark = unmarked.open("w")
        fcntl.flock(self.mark, fcntl.LOCK_EX)  # before it has the name that `sweep` looks for
        unmarked.rename(self.pipe / MARK)
        self.process = self._start_process()
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.ask("get_server_list")
                return
            except NotInForce as silence:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    reason = self._last_words() or silence
                    raise NotInForce(f"the MPS daemon did not start: {reason}") from None
            time.sleep(0.1)

    def _start_process(self) -> subprocess.Popen:
        if len(os.fsencode(self.pipe / "control_privileged")) > SOCKET_PATH_LIMIT:
            raise NotInForce(
                f"MPS: {self.pipe} is too long for a socket; set TMPDIR to a short path"
            )
        # A limit in the user's shell would silently hold for every client.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("CUDA_")
        }
        parent = os.getpid()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = max(soft, min(hard, OPEN_FILES))

        def prepare() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            end_with_parent(parent)

        with (self.logs / "daemon.log").open("ab") as output:
            return subprocess.Popen(
                [CONTROL, "-f"],  # -d would leave our process tree
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited | self.environment,
                process_group=0,  # a terminal's Ctrl-C is for the conductor to handle
                preexec_fn=prepare,
            )

    def _last_words(self) -> str:
        log = self.logs / "control.log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        return text.rpartition("\n")[2]

    def ask(self, command: str, seconds: float | None = None) -> str:
        """The answer to a control command. Raises NotInForce if there is none within that time
        (default: ANSWER_S).
        """
        seconds = ANSWER_S if seconds is None else seconds
        folders = {PIPE_FOLDER: str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.pipe)}
        try:
            answer = subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env=os.environ | folders,
                text=True,
                errors="replace",
                capture_output=True,
                timeout=seconds,
                process_group=0,  # a terminal's Ctrl-C does not disturb the teardown
            )
        except subprocess.TimeoutExpired:
            raise NotInForce(f"MPS: no answer to '{command}' within {seconds:.3g} s") from None
        except OSError as error:
            raise NotInForce(f"MPS: {CONTROL} does not run: {error}") from None
        if answer.returncode != 0:
            words = " ".join((answer.stderr + answer.stdout).split())
            raise NotInForce(f"MPS: '{command}' failed: {words or f'exit {answer.returncode}'}")
        return answer.stdout

    def servers(self, seconds: float | None = None) -> list[int]:
        """PIDs of the servers that the daemon lists. This and the next two raise as `ask` does."""
        return _listed_pids(self.ask("get_server_list", seconds))

    def status(self, server: int) -> str:
        """What a server is at: ACTIVE, FAULT, …"""
        return self.ask(f"get_server_status {server}").strip()

    def clients(self, server: int, seconds: float | None = None) -> list[int]:
        """PIDs of a server's clients."""
        return _listed_pids(self.ask(f"get_client_list {server}", seconds))

    def release(self, pids: set[int]) -> None:
        """Have the server drop the work of those of these processes that are its clients, and live
        on: one that dies with work under way can take the server with it. Takes RELEASE_S at most.
        """
        deadline = time.monotonic() + RELEASE_S
        with suppress(NotInForce):
            for server in self.servers(RELEASE_S):
                for client in pids & {*self.clients(server, deadline - time.monotonic())}:
                    command = f"terminate_client {server} {client}"
                    self.ask(command, deadline - time.monotonic())

    @defer_signals()
    def end(self) -> None:
        """End the daemon and its server: quit, then SIGTERM, then SIGKILL; remove the pipe folder.

        Raises NotInForce if one of them outlives SIGKILL.
        """
        try:
            alive = self._programs()
            if alive:
                with suppress(NotInForce):  # a daemon that does not answer is signalled at once
                    self.ask(f"quit -t {END_S:.0f}", KILL_S)
                    alive = _alive_after(2 * END_S, alive)
            for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILL_S)):
                for process in alive:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                alive = _alive_after(seconds, alive)
            if alive:
                pids = sorted(process.pid for process in alive)
                raise NotInForce(f"MPS: PIDs {pids} outlived SIGKILL")
            shutil.rmtree(self.pipe, ignore_errors=True)
        finally:
            if self.mark is not None:
                self.mark.close()
            if self.process is not None:
                self.process.poll()  # so that Popen knows that it has ended

    def _programs(self) -> set[psutil.Process]:
        """The daemon, its server, and what they started."""
        programs = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_mps = process.name().startswith(PROGRAMS)
                if is_mps and process.environ().get(PIPE_FOLDER) == str(self.pipe):
                    programs |= {process, *process.children(recursive=True)}
        return programs


@contextmanager
def running(device_uuid: str, logs: Path) -> Iterator[Daemon]:
    """A daemon that answers, ended on every way out. Raises NotInForce as `start` and `end` do."""
    daemon = Daemon(device_uuid, logs)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end()


def sweep() -> None:
    """End daemons and servers that this user's killed runs left. Raises GpuBusy if they live on.

    A pipe folder without our mark, or with one that somebody holds, is left alone.
    """
    for mark in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*/{MARK}"):
        with suppress(OSError):
            if {mark.parent.lstat().st_uid, mark.lstat().st_uid} != {os.getuid()}:
                continue
            with mark.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    Daemon("", mark.parent, mark.parent).end()
                except NotInForce as error:  # no fault of the cell that comes now
                    raise GpuBusy(str(error)) from None


def _listed_pids(answer: str) -> list[int]:
    """The PIDs on lines that hold nothing else: a message that quotes a PID is no list."""
    lines = re.findall(r"^[\d\s]+$", answer, re.M)
    return sorted(int(pid) for line in lines for pid in line.split())


def _alive_after(seconds: float, processes: set[psutil.Process]) -> set[psutil.Process]:
    """The processes that still live when all have ended, or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        alive = {process for process in processes if is_running(process)}
        if not alive or time.monotonic() >= deadline:
            return alive
        time.sleep(0.05)
