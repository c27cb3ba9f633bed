"""Which processes end together: parents and children, signals that end, and process trees."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # ask a process to end
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; 0 cancels that.

    The kernel watches the thread that started this process. Forked children do not inherit the
    request, so each calls this itself. It may be called between fork and exec: it imports nothing.

    parent: PID of the parent; this process exits at once if it has another one by now.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, so that it can be ended."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_starter() -> None:
    """End with the process whose PID is in COLLOCATION_PARENT, if that is set."""
    parent = os.environ.pop("COLLOCATION_PARENT", "")
    if parent.isdecimal():
        end_with_parent(int(parent))


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not, which a container may never reap."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or a debugger."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in STOPPED
    return False


MEMBERS: set[int] = set()  # PIDs of training processes, children of a fork server


def all_descendants() -> list[psutil.Process]:
    """Every process that was started by this one or by its members, directly or not."""
    return psutil.Process().children(recursive=True) + process_trees(MEMBERS)


def tree_pids(roots: Iterable[int]) -> dict[int, set[int]]:
    """The PIDs of each of these processes and of all its descendants, from one listing."""
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    trees = {root: {root} for root in roots}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor not in trees:
            ancestor = parents[ancestor]
        if ancestor in trees:
            trees[ancestor].add(pid)
    return trees


def process_trees(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes with these PIDs, as far as they exist, and all their descendants."""
    processes = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            processes += [process, *process.children(recursive=True)]
    return processes


def kill_all(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process, all its descendants, and its process group."""
    for process in process_trees([pid]):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signals that end the process until the block is over; the first one is then delivered.

    For short blocks that undo a change of the system. A signal mask would hold for one thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread only
        return
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in END_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not installed from Python
        if received:
            signal.raise_signal(received[0])
