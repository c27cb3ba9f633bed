"""The process of a fork server (models/serve.py): its start, its end, and the way to it.

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

from workflow.collocation.processes.environment import APART, OURS, server_environment

BACKLOG = 16  # cells that may ask while it imports
END_S = 15.0  # for the kernel to take it down, and members that hold much GPU memory


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
    """A fork server's name, while there is one. code: stamp of what it imports now.

    log: a file for what it prints. The kernel ends it with the thread that started it.
    """
    name = f"gpu-collocation-{uuid.uuid4().hex}-{code}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, log.open("wb") as output:
        listener.bind(f"\0{name}")
        listener.listen(BACKLOG)  # from now on: who asks during the import waits for its end
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "models.serve", "--trainer", trainer]
            + ["--listen", str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            env=server_environment(),
            process_group=0,  # Ctrl-C is for the conductors alone
        )
    try:
        yield name
    finally:
        process.kill()  # and with it, by the kernel, its members
        process.wait(END_S)


def connect(name: str) -> socket.socket:
    """A connection to the fork server. Raises OSError if it is gone or somebody else's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(END_S)
    try:
        connection.connect(f"\0{name}")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] != os.getuid():
            raise PermissionError("the preloaded server is another user's")
    except OSError:
        connection.close()
        raise
    return connection
