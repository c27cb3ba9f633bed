"""How processes hang together: who ends with whom, and who has ended."""

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ask a process to end
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
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


def stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, a debugger)."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in STOPPED
    return False


def killed(pid: int) -> bool:
    """Whether it was sent SIGKILL, and is held in the kernel all the same."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        pending = status.partition("ShdPnd:")[2].split()[0]
        return bool(int(pending, 16) >> signal.SIGKILL - 1 & 1)
    return False
