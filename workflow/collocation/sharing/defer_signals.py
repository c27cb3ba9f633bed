"""A stretch in which what was changed is put back, and signals to end have to wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from workflow.collocation.process_lifetime import ENDING


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, these signals are only noted; the first that came is delivered afterwards.

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
