"""The process of a fork server (models/fork_server.py), from its start to its end.

Each cell could start its own, and does where it must. Beside Snakemake one is held that imports the
trainer once for all cells of an invocation, about 5 s each; the files of jobs say its name, that
of an abstract socket, of which nothing stays behind.
"""

import contextlib
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from workflow.collocation.run.environment import server_environment

BACKLOG = 16  # cells that may ask while it imports
END_S = 0.5  # for the kernel to take it down; what does not end by then is left behind


@contextlib.contextmanager
def hold(trainer: str, log: Path) -> Iterator[str]:
    """The PID and name of a fork server, "PID:NAME", while there is one.

    log: a file for what it prints. The kernel ends it with the thread that started it.
    """
    name = f"gpu-collocation-{uuid.uuid4().hex}"
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
