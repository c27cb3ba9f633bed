"""Two lines by which anybody's training script tells the study of its steps:

    from models.hook import step
    ...
    step()  # after each training step; step(loss=loss) has the losses kept too

Where no study runs the script, this does nothing. It needs the standard library alone: a project
that has a package `models` of its own copies this file and imports it from there.

Times go into memory that the study reads (a header of 8-byte integers, a time and a loss for each
step, then who it is), so that a step costs about a microsecond. Of several processes that call it,
the first one counts.
"""

import fcntl
import json
import mmap
import os
import sys
import time

VARIABLE = "COLLOCATION_HOOK"  # "PID MEMORY GATE": a process and two of its descriptors
STEPS = 1 << 22
HEADER = 64  # bytes: DONE, LIMIT, HELD, EVERY, SYNC
DONE, LIMIT, HELD, EVERY, SYNC = range(5)  # steps made; to hold at; is held; see step(); likewise
FACTS = 1024  # bytes of JSON at the end: this process, and what it knows of its device
SIZE = HEADER + 12 * STEPS + FACTS
_told = None


def step(loss=None) -> None:
    """A training step has ended. loss: a number, or a tensor of one; of every tenth step it is
    kept, which waits for it.

    Returns at once, but at the barrier, where all jobs wait until they are warm. Raises
    RuntimeError after 4 million steps.
    """
    global _told
    if _told is None:
        _told = _connect()
    _told(loss)


def views(memory: mmap.mmap) -> tuple[memoryview, memoryview, memoryview]:
    """Header, times (ns of the monotonic clock) and losses of that memory."""
    whole, losses = memoryview(memory), HEADER + 8 * STEPS
    times = whole[HEADER:losses]
    return whole[:HEADER].cast("q"), times.cast("q"), whole[losses:-FACTS].cast("f")


def _connect():
    """What step() is to do in this process: nothing where nobody wants to know."""
    if VARIABLE not in os.environ:
        return lambda loss: None
    pid, memory, gate = os.environ[VARIABLE].split()
    memory = os.open(f"/proc/{pid}/fd/{memory}", os.O_RDWR)
    try:
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process of the same script was first
        os.close(memory)
        return lambda loss: None
    shared = mmap.mmap(memory, SIZE)
    shared[-FACTS:] = json.dumps({"script": os.getpid(), **_device()}).encode().ljust(FACTS)
    return _Steps(shared, os.open(f"/proc/{pid}/fd/{gate}", os.O_RDONLY))


def _cuda():
    """torch.cuda, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _device() -> dict:
    """What CUDA says of the device, if this process uses it by way of torch."""
    if not (cuda := _cuda()):
        return {}
    try:
        from models.device import device_facts
    except ImportError:  # a copied hook
        return {}
    facts = device_facts(sys.modules["torch"].device("cuda", cuda.current_device()))
    del facts["memory_free"]  # of a device that is in use already
    return facts


class _Steps:
    """Writes down the steps of this process, and waits where it is to."""

    def __init__(self, memory: mmap.mmap, gate: int):
        self.header, self.times, self.losses = views(memory)
        self.gate, self.done = gate, 0

    def __call__(self, loss) -> None:
        number = self.done
        if number == STEPS:
            raise RuntimeError(f"the study keeps at most {STEPS} steps of a job")
        if self.header[SYNC] and (cuda := _cuda()):
            cuda.synchronize()
        if number % self.header[EVERY] == 0:
            loss = loss.detach() if hasattr(loss, "detach") else loss
            self.losses[number] = float("nan" if loss is None else loss)
        self.times[number] = time.monotonic_ns()
        self.done = number + 1
        if self.done >= self.header[LIMIT]:
            if cuda := _cuda():  # held with no work in flight
                cuda.synchronize()
            self.times[number] = time.monotonic_ns()
            self.header[DONE] = self.done
            self.header[HELD] = 1
            os.read(self.gate, 1)
            self.header[HELD] = 0
        else:
            self.header[DONE] = self.done
