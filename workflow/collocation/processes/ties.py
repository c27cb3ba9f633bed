"""How processes hang together: who ends with whom, who has ended, what is not to be cut short."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


@contextmanager
def undisturbed() -> Iterator[None]:
    """A stretch in which what was changed is put back: inside, the ENDING signals are only noted;
    the first that came is delivered afterwards.

    What is done inside has to be bounded in time. No signal mask does this: it holds for one
    thread, and what a numerical library's thread receives, Python handles in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run here
        return
    came: list[int] = []
    before: dict[int, object] = {}
    on_its_way = None

    def hear(number: int, frame) -> None:
        came.append(number)

    while True:
        try:
            for number in ENDING:
                if (found := signal.getsignal(number)) is not hear:
                    before[number] = found
                    signal.signal(number, hear)
            break
        except BaseException as error:  # of a handler that was still in force
            on_its_way = on_its_way or error
    try:
        yield
    finally:
        with ExitStack() as last:
            if came and not on_its_way:
                last.callback(signal.raise_signal, came[0])
            for number, handler in before.items():
                # What was not installed from Python is not known to it.
                last.callback(signal.signal, number, handler or signal.SIG_DFL)
        if on_its_way:
            raise on_its_way
