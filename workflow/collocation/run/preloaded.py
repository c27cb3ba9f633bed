"""Starts and ends the process of a fork server (models/fork_server.py).

A cell can start its own fork server. Beside Snakemake, one is shared by all cells of an invocation,
so that the import of the trainer, about 5 s, happens once. Job files hold its name, which is an
abstract socket and leaves nothing behind.
"""

import contextlib
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from workflow.collocation.run.environment import server_environment

BACKLOG = 16  # cells that may connect during the import
END_S = 0.5  # for the kernel to end the process, which is abandoned after that


@contextlib.contextmanager
def running_fork_server(trainer: str, log: Path) -> Iterator[str]:
    """A fork server that runs inside the context; yields its address, "PID:NAME".

    trainer: the module that members run. log: a file for its output, replaced. The kernel ends the
    server with the thread that started it.
    """
    name = f"gpu-collocation-{uuid.uuid4().hex}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, log.open("wb") as output:
        listener.bind(f"\0{name}")
        listener.listen(BACKLOG)  # Connections made during the import wait for its end.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "models.fork_server", "--trainer", trainer]
            + ["--listen", str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            env=server_environment(),
            process_group=0,  # Ctrl-C must reach the conductors only.
        )
    try:
        yield f"{process.pid}:{name}"
    finally:
        process.kill()  # The kernel then kills its members.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
