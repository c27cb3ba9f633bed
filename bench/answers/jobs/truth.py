"""A training script's own clock: with TRUTH=FOLDER, tick() notes when a step ended, in nanoseconds.

Times go to FOLDER/PID.txt, a line each, from a thread: a step costs an addition to a list. With
TINY=1 the scripts take their small sizes, which a CPU trains in seconds.
"""

import atexit
import os
import threading
import time
from pathlib import Path

FLUSH_S = 0.5
FOLDER = os.environ.get("TRUTH")

_ends_ns = []
_writing = threading.Lock()


def scaled(full, tiny):
    """The size that a script takes."""
    return tiny if os.environ.get("TINY") else full


def tick():
    """Note that a step has ended."""
    if FOLDER:
        _ends_ns.append(time.monotonic_ns())


def _write():
    with _writing, Path(FOLDER, f"{os.getpid()}.txt").open("a") as file:
        count = len(_ends_ns)
        file.write("".join(f"{end_ns}\n" for end_ns in _ends_ns[:count]))
        del _ends_ns[:count]


def _write_forever():
    while True:
        time.sleep(FLUSH_S)
        _write()


if FOLDER:
    atexit.register(_write)
    threading.Thread(target=_write_forever, daemon=True).start()
