"""Temporary files of a command: gone after any end; the next one removes what a killed one left."""

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
from workflow.collocation.process_lifetime import ENDING

PREFIX = "gpu-study-scratch-"


@contextmanager
def scratch() -> Iterator[None]:
    """Have `tempfile` make everything in a folder, which this process holds locked."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _end)
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(LockHeld, OSError):
            about = left.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                with folder_lock(left, {}):
                    shutil.rmtree(left)
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))  # until it is locked
    before = tempfile.tempdir
    with ExitStack() as held:
        with suppress(OSError):  # a file system without locks: nobody removes it there
            held.enter_context(folder_lock(hidden, {"pid": os.getpid()}))
        tempfile.tempdir = str(hidden.rename(hidden.with_name(hidden.name[1:])))
        try:
            yield
        finally:
            shutil.rmtree(tempfile.tempdir, ignore_errors=True)
            tempfile.tempdir = before


def _end(number: int, _frame: object) -> None:
    """End this process as by a signal, but remove what is temporary; nothing interrupts that."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.exit(128 + number)
