"""A private MPS control daemon: started, asked, ended; and the ones that dead conductors left.

It runs in the foreground as our child, and the kernel kills it when we die. Its server may outlive
that, so each pipe folder bears our mark, locked for as long as we live: `sweep` ends what belongs
to a mark that nobody holds, and nothing else. No setting of the card is touched.
"""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from workflow.collocation.process_lifetime import defer_signals, end_with_parent, is_running
from workflow.collocation.sharing.evidence import CONTROL, PIPE_FOLDER, GpuBusy, NotInForce

PROGRAMS = "nvidia-cuda-mps"  # how the names of the control program and of the server begin
PREFIX, MARK = "mps-", "collocation-study"
START_S, ANSWER_S, END_S = 20.0, 15.0, 5.0
KILL_S = 2.0  # for one that does not answer to quit, and for SIGKILL to end one
SOCKET_PATH_LIMIT = 107  # bytes, on Linux
OPEN_FILES = 16384  # what NVIDIA advises for many clients


@dataclass
class Daemon:
    """`pipe` is where clients meet the daemon, `logs` is where it and its server write."""

    device_uuid: str
    pipe: Path
    logs: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the daemon and every client start with."""
        return {
            # By UUID: an index would be counted anew among the devices that the daemon shows.
            "CUDA_VISIBLE_DEVICES": self.device_uuid,
            PIPE_FOLDER: str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }

    def ask(self, command: str, seconds: float | None = None) -> str:
        """The answer to a control command. Raises NotInForce if there is none within that time."""
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
            said = " ".join((answer.stderr + answer.stdout).split())
            raise NotInForce(f"MPS: '{command}' failed: {said or f'exit {answer.returncode}'}")
        return answer.stdout


@contextmanager
def running(device_uuid: str, logs: Path) -> Iterator[Daemon]:
    """A daemon that answers. Raises NotInForce if it does not start, or cannot be ended.

    To be entered from the main thread, because the daemon is killed when the entering thread ends.
    """
    pipe = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    daemon = Daemon(device_uuid, pipe, logs.resolve())
    daemon.logs.mkdir(parents=True, exist_ok=True)
    with (pipe / "unmarked").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)  # before it bears the name that `sweep` looks for
        (pipe / "unmarked").rename(pipe / MARK)
        process = None
        try:
            process = _start(daemon)
            _await_answer(daemon, process)
            yield daemon
        finally:
            with defer_signals():
                _end(daemon)
                if process is not None:
                    process.poll()  # so that Popen knows what `_end` has seen


def sweep() -> None:
    """End what this user's killed conductors left. Whatever bears no mark is let be."""
    for mark in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*/{MARK}"):
        with suppress(OSError):
            if {mark.parent.lstat().st_uid, mark.lstat().st_uid} == {os.getuid()}:
                with mark.open() as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    try:
                        _end(Daemon("", mark.parent, mark.parent))
                    except NotInForce as error:  # no fault of the cell that comes now
                        raise GpuBusy(str(error)) from None


def _start(daemon: Daemon) -> subprocess.Popen:
    if len(os.fsencode(daemon.pipe / "control_privileged")) > SOCKET_PATH_LIMIT:
        raise NotInForce(f"MPS: {daemon.pipe} is too long for a socket; set TMPDIR to a short path")
    # A limit in the user's shell would silently hold for every client.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    parent = os.getpid()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(soft, min(hard, OPEN_FILES))

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        end_with_parent(parent)

    with (daemon.logs / "daemon.log").open("ab") as output:
        return subprocess.Popen(
            [CONTROL, "-f"],  # -d would leave our process tree
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=inherited | daemon.environment,
            process_group=0,  # a terminal's Ctrl-C is for the conductor to handle
            preexec_fn=prepare,
        )


def _await_answer(daemon: Daemon, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            daemon.ask("get_server_list")
            return
        except NotInForce as silence:
            if process.poll() is not None or time.monotonic() > deadline:
                log = daemon.logs / "control.log"
                said = log.read_text(errors="replace").strip() if log.exists() else ""
                words = said.rpartition("\n")[2] or silence
                raise NotInForce(f"the MPS daemon did not start: {words}") from None
        time.sleep(0.1)


def _end(daemon: Daemon) -> None:
    """Quit, then SIGTERM, then SIGKILL for the daemon and its server, and the pipe folder goes."""
    left = _programs(daemon.pipe)
    if left:
        with suppress(NotInForce):  # a daemon that cannot be asked is signalled at once
            daemon.ask(f"quit -t {END_S:.0f}", KILL_S)
            left = _alive_after(2 * END_S, left)
    for sent, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILL_S)):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sent)
        left = _alive_after(seconds, left)
    if left:
        raise NotInForce(f"MPS: PIDs {sorted(p.pid for p in left)} outlived SIGKILL")
    shutil.rmtree(daemon.pipe, ignore_errors=True)


def _alive_after(seconds: float, processes: set[psutil.Process]) -> set[psutil.Process]:
    """Those that have not ended when all have, or the time is up."""
    deadline = time.monotonic() + seconds
    while (left := set(filter(is_running, processes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _programs(pipe: Path) -> set[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mps = process.name().startswith(PROGRAMS)
            if mps and process.environ().get(PIPE_FOLDER) == str(pipe):
                found |= {process, *process.children(recursive=True)}
    return found
