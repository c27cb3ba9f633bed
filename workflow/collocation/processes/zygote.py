"""One import for all cells of an invocation: a process that has it lends them their fork servers.

`hold` keeps that process (models/serve.py, --listen) beside Snakemake, and the files of jobs say
where it is; a cell's `Server` asks it with `Zygote.ask`. Its name is an abstract
socket's, of which nothing stays behind. A cell that finds none, or one that was imported from other
code or elsewhere, starts a fork server of its own.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BACKLOG = 16  # cells that may ask while it imports
PREFIX = "gpu-collocation-"


def stamp(provenance: dict) -> str:
    """Names the code and the packages that a cell is measured with; the driver is loaded later."""
    versions = {k: v for k, v in provenance["versions"].items() if k != "driver"}
    text = json.dumps([provenance["digest"], versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def hold(
    trainer: str, code: str, environment: dict[str, str], log: Path
) -> Iterator["Zygote | None"]:
    """A zygote for the jobs that are started meanwhile.

    code: the stamp of what it imports now. environment: as of a cell's fork server. log: a file for
    what it prints. To be entered from the main thread: the kernel ends the zygote with the thread
    that started it. Where it cannot be started there is none.
    """
    name = f"{PREFIX}{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(OSError):
            if threading.current_thread() is threading.main_thread():
                stack.callback(_end, _start(name, trainer, code, environment, log))
                found = Zygote(name, code)
        yield found


def _start(
    name: str, trainer: str, code: str, environment: dict[str, str], log: Path
) -> subprocess.Popen:
    command = [sys.executable, "-P", "-m", "models.serve", "--trainer", trainer, "--stamp", code]
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, log.open("wb") as output:
        listener.bind(f"\0{name}")
        listener.listen(BACKLOG)  # from now on: who asks during the import waits for its end
        return subprocess.Popen(
            [*command, "--listen", str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            env=environment,
            process_group=0,  # Ctrl-C is for the conductors alone
        )


def _end(process: subprocess.Popen) -> None:
    process.kill()  # and with it, by the kernel, what it has lent
    process.wait()


@dataclass(frozen=True)
class Zygote:
    """Where a cell finds the zygote of its invocation, and the stamp that it must have."""

    name: str
    code: str

    def ask(self, trainer: str, environment: dict[str, str], log: int) -> socket.socket:
        """A connection, not blocking, on which it will answer. `log`: a descriptor for output.

        Raises OSError if it is not there, is somebody else's or cannot take such a request.
        """
        request = {
            "trainer": trainer,
            "stamp": self.code,
            "executable": sys.executable,
            "environment": environment,
            "directory": str(Path.cwd()),
            "t": time.monotonic(),
        }
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.connect(f"\0{self.name}")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] != os.getuid():
                raise PermissionError("the zygote is another user's")
            socket.send_fds(connection, [json.dumps(request).encode()], [log])
        except BaseException:
            connection.close()
            raise
        return connection


class Lent:
    """A fork server that the zygote has forked, as `Server` needs a Popen.

    How it ended is known to the zygote alone.
    """

    def __init__(self, pid: int, pidfd: int):
        self.pid, self._pidfd = pid, pidfd

    def kill(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self._pidfd < 0:
            return
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        if not ended.poll(timeout * 1000):
            raise subprocess.TimeoutExpired("the lent fork server", timeout)
        os.close(self._pidfd)
        self._pidfd = -1
