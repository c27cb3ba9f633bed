"""How a training script's steps are told to the study that runs it.

Of a script that uses torch nothing need be changed: models/counter has its optimizer call this.
Any other Python script says it in two lines:

    from models.hook import step
    ...
    step()  # after each training step; step(loss=loss) has the losses kept too

Where no study runs the script, this does nothing. It needs the standard library alone, so that a
project with a package `models` of its own can copy this file.

Times go into memory that the study reads, so that a step costs about a microsecond. Of several
processes that call it, the first counts; where a script calls it, its optimizers count no more.
"""

from __future__ import annotations  # a script's Python may be 3.8

import fcntl
import importlib.util
import json
import mmap
import os
import sys
import time
from collections import deque
from pathlib import Path

VARIABLE = "COLLOCATION_HOOK"  # "PID MEMORY GATE": a process and two of its descriptors
STEPS = 1 << 22
HEADER = 64  # bytes: DONE, LIMIT, HELD, EVERY, SYNC, AHEAD, STAGE
# Steps made; to hold at; is held; see step(); likewise; ns of work under way; how far it has come.
DONE, LIMIT, HELD, EVERY, SYNC, AHEAD, STAGE = range(7)
PYTHON, TORCH, CAPTURED = 1, 2, 3  # stages: an interpreter with the counter, with torch, see below
FACTS = 1024  # bytes of JSON at the end: this process, and what it knows of its device
SIZE = HEADER + 12 * STEPS + FACTS
AT_LEAST = 2  # steps that may be under way, however long they take
found: dict[str, str] = {}  # what the counter knows: the optimizer's class
_told = _parents = None


def step(loss=None, own: bool = True) -> None:
    """A training step has ended. loss: a number, or a tensor of one; of every tenth step it is
    kept, which waits for it. own: the script says so, and not its optimizer.

    Returns at once, but at the barrier, where all jobs wait until they are warm. Raises
    RuntimeError after 4 million steps.
    """
    global _told
    if _told is None:
        _told = _connect(own)
    _told(loss)


def reached(stage: int) -> None:
    """Tell the study how far this process has come, unless another has come further."""
    try:
        memory = _open()
    except OSError:
        return
    place, now = 8 * STAGE, stage.to_bytes(8, sys.byteorder)
    if int.from_bytes(os.pread(memory, 8, place), sys.byteorder) < stage:
        os.pwrite(memory, now, place)
    os.close(memory)


def views(memory: mmap.mmap) -> tuple[memoryview, memoryview, memoryview]:
    """Header, times (ns of the monotonic clock) and losses of that memory."""
    whole, losses = memoryview(memory), HEADER + 8 * STEPS
    times = whole[HEADER:losses]
    return whole[:HEADER].cast("q"), times.cast("q"), whole[losses:-FACTS].cast("f")


def _nothing(loss) -> None:
    """What step() does where nobody wants to know."""


def _forget() -> None:
    """A fork of the process that counts counts nothing: the memory is its parent's. So are the
    events of CUDA, and to destroy one aborts a process that may not use CUDA, as a loader's worker.
    """
    global _told, _parents
    _parents, _told = _told, _nothing


def _open() -> int:
    pid, memory, _ = os.environ[VARIABLE].split()
    return os.open(f"/proc/{pid}/fd/{memory}", os.O_RDWR)


def _connect(own: bool):
    """What step() is to do in this process."""
    if VARIABLE not in os.environ:
        return _nothing
    counter = sys.modules.get("_collocation_hook")
    if own and counter and counter._told not in (None, counter._nothing):
        told, counter._told = counter._told, _nothing  # the script knows better
        os.register_at_fork(after_in_child=_forget)
        return told
    memory = _open()
    try:
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process of the same script was first
        os.close(memory)
        return _nothing
    shared = mmap.mmap(memory, SIZE)
    shared[-FACTS:] = json.dumps({**found, **_device()}).encode().ljust(FACTS)
    pid, _, gate = os.environ[VARIABLE].split()
    os.register_at_fork(after_in_child=_forget)
    return _Steps(shared, os.open(f"/proc/{pid}/fd/{gate}", os.O_RDONLY))


def _cuda():
    """torch.cuda, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _device() -> dict:
    """What CUDA says of the device, if this process uses it by way of torch."""
    if not (cuda := _cuda()):
        return {}
    # By its file: the script's project may have a package `models`, or a copy of this file alone.
    path = Path(__file__).resolve().with_name("device.py")
    if not path.is_file():
        return {}
    spec = importlib.util.spec_from_file_location("_collocation_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    facts = module.device_facts(sys.modules["torch"].device("cuda", cuda.current_device()))
    del facts["memory_free"]  # of a device that is in use already
    return facts


class _Steps:
    """Writes down the steps of this process, and waits where it is to."""

    def __init__(self, memory: mmap.mmap, gate: int):
        self.header, self.times, self.losses = views(memory)
        self.every, self.sync, self.ahead_ns = (self.header[at] for at in (EVERY, SYNC, AHEAD))
        # One that was first may have ended, as at a restart by torchrun: its steps are made.
        self.gate, self.done, self.cuda = gate, self.header[DONE], None
        self.under_way = deque()  # of steps: CUDA's event, and when it was launched

    def __call__(self, loss) -> None:
        number = self.done
        self.cuda = cuda = self.cuda or _cuda()
        if number == STEPS:
            raise RuntimeError(f"the study keeps at most {STEPS} steps of a job")
        if cuda and cuda.is_current_stream_capturing():
            self.header[STAGE] = CAPTURED  # replays of the graph will call nobody
            return
        if self.sync and cuda:
            cuda.synchronize()
        if number % self.every == 0:
            loss = loss.detach() if hasattr(loss, "detach") else loss
            self.losses[number] = float("nan" if loss is None else loss)
        if self.ahead_ns and cuda:
            self._not_too_far(cuda.Event())
        self.times[number] = time.monotonic_ns()
        self.done = number + 1
        if self.done >= self.header[LIMIT]:
            if cuda:  # held with no work in flight
                cuda.synchronize()
            self.times[number] = time.monotonic_ns()
            self.header[DONE] = self.done
            self.header[HELD] = 1
            os.read(self.gate, 1)
            self.header[HELD] = 0
        else:
            self.header[DONE] = self.done

    def _not_too_far(self, event) -> None:
        """Where jobs are held now and then: wait while more work than that is under way."""
        now = time.monotonic_ns()
        event.record()
        self.under_way.append((event, now))
        while len(self.under_way) > AT_LEAST:
            oldest, launched = self.under_way[0]
            if now - launched < self.ahead_ns and not oldest.query():
                return
            oldest.synchronize()
            self.under_way.popleft()
