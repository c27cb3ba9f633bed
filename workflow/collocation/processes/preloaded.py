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

from workflow.collocation import ROOT

BACKLOG = 16  # cells that may ask while it imports
END_S = 15.0  # for the kernel to take it down, and members that hold much GPU memory

# Snakemake exports thread counts of its own; libgomp's binding would fight the members' core sets.
THREADS = ("OMP_", "KMP_", "GOMP_", "MKL_", "GOTO_", "BLIS_", "NUMEXPR_", "VECLIB_", "OPENBLAS_NUM")
# What a job's environment may have otherwise than Snakemake's; none of it changes an import.
APART = ("TMPDIR", "TMP", "TEMP", "TEMPDIR", "SHLVL", "PWD", "OLDPWD", "_", "PS1")
OURS = "COLLOCATION_"


def server_environment() -> dict[str, str]:
    """Our environment with the repository importable and one thread: members set their own number.

    The user's own CUDA_MPS_* go: whether members are MPS clients is the method's business.
    OpenBLAS starts its threads on import, and they would not survive the fork.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*THREADS, "CUDA_MPS_"))
    }
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",  # a killed member's last words reach its log
        "PYTHONFAULTHANDLER": "1",  # and the stack of one that crashes or gets SIGABRT
    }


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
