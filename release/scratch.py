"""Temporary files that are removed after any end of a command, at the latest by the next one."""

import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from workflow.collocation.gpu.lock import LockHeld, folder_lock
from workflow.collocation.process_lifetime import END_SIGNALS

PREFIX = "gpu-study-scratch-"


@contextmanager
def scratch() -> Iterator[None]:
    """Have `tempfile` use a folder that is locked by this process, and remove it at the end.

    Also removes such folders of killed processes, whose locks are free.
    """
    for number in END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    for abandoned in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(LockHeld, OSError):
            status = abandoned.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with folder_lock(abandoned, {}):
                    shutil.rmtree(abandoned)
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))  # until it is locked
    previous = tempfile.tempdir
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks, where nobody removes the folder
            stack.enter_context(folder_lock(hidden, {"pid": os.getpid()}))
        tempfile.tempdir = str(hidden.rename(hidden.with_name(hidden.name[1:])))
        try:
            yield
        finally:
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            tempfile.tempdir = previous


def _end(number: int, _frame: object) -> None:
    """Exit with a signal's code and remove temporary files; further signals are ignored."""
    for end_signal in END_SIGNALS:
        signal.signal(end_signal, signal.SIG_IGN)
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.exit(128 + number)
