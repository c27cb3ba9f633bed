"""How processes hang together: who ends with whom, and who has ended."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

# Ask a process to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when that one ends, or the thread that started this; 0
    takes that back.

    Forked children do not inherit the request: each calls this itself, also between fork and exec,
    for nothing is imported here any more.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # gone before the call
        os._exit(1)


def end_with_starter() -> None:
    """End with who started this, where that left its PID, as our Makefile and rules do."""
    parent = os.environ.pop("COLLOCATION_PARENT", "")
    if parent.isdecimal():
        end_with_parent(int(parent))


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


MEMBERS: set[int] = set()  # PIDs of training processes, which a fork server may have started for us


def offspring() -> list[psutil.Process]:
    """Every process that lives because of this one: its own, its members and theirs."""
    return psutil.Process().children(recursive=True) + trees(MEMBERS)


def trees(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of the processes that live, and what they started."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def kill_all(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process, all that descend from it, and its process group."""
    for process in trees([pid]):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


@contextmanager
def defer_signals() -> Iterator[None]:
    """What was changed is put back inside: signals to end are only noted, and the first that came
    is delivered afterwards.

    What is done inside has to be bounded in time. A mask would not do: it holds for one thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run here
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not installed from Python
        if came:
            signal.raise_signal(came[0])
