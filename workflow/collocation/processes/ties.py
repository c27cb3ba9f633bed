"""How processes hang together: who ends with whom, and who has ended."""

import ctypes
import os
import signal
from contextlib import suppress

import psutil

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ask a process to end
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when that one ends, or the thread that started this.

    May be called between fork and exec: nothing is imported here any more.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # gone before the call
        os._exit(1)


def lives(process: psutil.Process) -> bool:
    """A zombie has ended: in a container, orphans may find nobody who reaps them."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
