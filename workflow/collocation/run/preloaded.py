"""The process of a fork server (models/fork_server.py): its start, its end, and the way to it.

Each cell could start its own, and does where it must. Beside Snakemake one is held that imports the
trainer once for all cells of an invocation, about 5 s each; the files of jobs say its name. That is
an abstract socket's, of which nothing stays behind, and ends with the stamp of what was imported.
"""

import contextlib
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from workflow.collocation.run.environment import APART, server_environment
from workflow.collocation.spec.variables import OURS

BACKLOG = 16  # cells that may ask while it imports
END_S = 0.5  # for the kernel to take it down; what does not end by then is left behind


def stamp(trainer: str, provenance: dict) -> str:
    """Names the code, packages and environment of an import; the driver is loaded later."""
    versions = {k: v for k, v in provenance["versions"].items() if k != "driver"}
    environment = {
        name: value
        for name, value in server_environment().items()
        if name not in APART and not name.startswith(OURS)
    }
    known = [trainer, provenance["digest"], versions, sys.executable, str(Path.cwd()), environment]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def hold(trainer: str, log: Path, code: str = "") -> Iterator[str]:
    """A fork server's PID and name, "PID:NAME", while there is one. code: stamp of what it imports.

    log: a file for what it prints. The kernel ends it with the thread that started it.
    """
    name = f"gpu-collocation-{uuid.uuid4().hex}-{code}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, log.open("wb") as output:
        listener.bind(f"\0{name}")
        listener.listen(BACKLOG)  # from now on: who asks during the import waits for its end
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "models.fork_server", "--trainer", trainer]
            + ["--listen", str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            env=server_environment(),
            process_group=0,  # Ctrl-C is for the conductors alone
        )
    try:
        yield f"{process.pid}:{name}"
    finally:
        process.kill()  # and with it, by the kernel, its members
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def connect(name: str) -> tuple[socket.socket, psutil.Process]:
    """A connection to the fork server. Raises OSError if it is gone or somebody else's."""
    pid, _, name = name.partition(":")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(END_S)
    try:
        connection.connect(f"\0{name}")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] != os.getuid():
            raise PermissionError("the preloaded server is another user's")
        process = psutil.Process(int(pid))
    except (psutil.NoSuchProcess, OSError) as error:
        connection.close()
        raise OSError(str(error)) from None
    return connection, process
