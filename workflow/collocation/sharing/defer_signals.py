"""A stretch in which what was changed is put back, and signals to end have to wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workflow.collocation.process_lifetime import ENDING


@contextmanager
def defer_signals() -> Iterator[None]:
    """Inside, these signals are only noted; the first that came is delivered afterwards.

    What is done inside has to be bounded in time. No signal mask does this: it holds for one
    thread, and what a numerical library's thread receives, Python handles in the main thread.
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
