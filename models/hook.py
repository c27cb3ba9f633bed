"""Reports the steps of a training script to the study that runs it.

A script that uses torch needs no change: models/counter has its optimizer call this module.
Any other Python script reports its steps in two lines:

    from models.hook import step
    ...
    step()  # after each training step; step(loss=loss) records losses too

Where no study runs the script, this does nothing. It needs the standard library only, so that a
project with a package `models` of its own can copy this file.

Times go into memory that the study reads, so that a step costs about a microsecond. Of several
processes that call `step`, only the first counts; once a script calls it, its optimizers no longer
count.
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

# "PID MEMORY GATE": the training process of the study, and two of its descriptors.
VARIABLE = "COLLOCATION_HOOK"
# The memory holds a header of 64-bit integers, the end of each step (int64 ns), the loss of each
# step (float32), and JSON about this process and its device.
STEPS = 1 << 22
HEADER = 64  # bytes
FACTS = 1024  # bytes
SIZE = HEADER + 12 * STEPS + FACTS
# Fields of the header: steps made; the step to wait at; 1 while the script waits; the interval of
# recorded losses, in steps; 1 to wait for the GPU after each step; ns of work that may be under
# way, 0 for any; the stage that the script has reached.
DONE, LIMIT, HELD, EVERY, SYNC, AHEAD, STAGE = range(7)
# Stages: an interpreter with the counter runs; it has torch; its optimizer is in a CUDA graph.
PYTHON, TORCH, CAPTURED = 1, 2, 3
MIN_STEPS_AHEAD = 2  # steps that may always be under way, however long they take

optimizer_facts: dict[str, str] = {}  # set by the counter: the class of the optimizer
# The function that records a step; None before the first. Copies of this file in users' projects
# know it in the counter's module by the names `_told` and `_nothing`.
_told = None
_parents_told = None


def step(loss=None, from_script: bool = True) -> None:
    """Report that a training step has ended.

    loss: a number, or a tensor of one element; that of every tenth step is recorded, which waits
    for it. from_script: the script itself calls this, and not the counter.

    Returns at once, except at the barrier, where all jobs wait until they are warm. Raises
    RuntimeError after 4 million steps.
    """
    global _told
    if _told is None:
        _told = _connect(from_script)
    _told(loss)


def report_stage(stage: int) -> None:
    """Report how far this process has come, unless another process has come further."""
    try:
        memory = _open_memory()
    except OSError:
        return
    offset = 8 * STAGE
    if int.from_bytes(os.pread(memory, 8, offset), sys.byteorder) < stage:
        os.pwrite(memory, stage.to_bytes(8, sys.byteorder), offset)
    os.close(memory)


def views(memory: mmap.mmap) -> tuple[memoryview, memoryview, memoryview]:
    """The header (int64), times (int64 ns of the monotonic clock) and losses (float32)."""
    whole, losses = memoryview(memory), HEADER + 8 * STEPS
    times = whole[HEADER:losses]
    return whole[:HEADER].cast("q"), times.cast("q"), whole[losses:-FACTS].cast("f")


def _nothing(loss) -> None:
    """Record no step: no study runs this script, or another process counts."""


def _stop_counting_in_child() -> None:
    """Have a forked child of the counting process count nothing, as the memory is its parent's.

    The parent's function stays alive here: it owns CUDA events, and to destroy one aborts a process
    that may not use CUDA, such as a loader's worker.
    """
    global _told, _parents_told
    _parents_told, _told = _told, _nothing


def _open_memory() -> int:
    pid, memory, _ = os.environ[VARIABLE].split()
    return os.open(f"/proc/{pid}/fd/{memory}", os.O_RDWR)


def _connect(from_script: bool):
    """The function that records steps in this process."""
    if VARIABLE not in os.environ:
        return _nothing
    counter = sys.modules.get("_collocation_hook")
    if from_script and counter and counter._told not in (None, counter._nothing):
        # Take over from the counter, because the script knows best what a step is.
        recorder, counter._told = counter._told, _nothing
        os.register_at_fork(after_in_child=_stop_counting_in_child)
        return recorder
    memory = _open_memory()
    try:
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # Another process of the same script was first.
        os.close(memory)
        return _nothing
    shared = mmap.mmap(memory, SIZE)
    shared[-FACTS:] = json.dumps({**optimizer_facts, **_device_facts()}).encode().ljust(FACTS)
    pid, _, gate = os.environ[VARIABLE].split()
    os.register_at_fork(after_in_child=_stop_counting_in_child)
    return _Recorder(shared, os.open(f"/proc/{pid}/fd/{gate}", os.O_RDONLY))


def _initialised_cuda():
    """torch.cuda, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _device_facts() -> dict:
    """What models/device.py reports, if this process uses CUDA through torch."""
    cuda = _initialised_cuda()
    # Load it by path: the project may have a package `models`, or a copy of this file alone.
    path = Path(__file__).resolve().with_name("device.py")
    if not cuda or not path.is_file():
        return {}
    spec = importlib.util.spec_from_file_location("_collocation_device", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    facts = module.device_facts(sys.modules["torch"].device("cuda", cuda.current_device()))
    del facts["memory_free"]  # The device is in use already.
    return facts


class _Recorder:
    """Writes the steps of this process into the memory, and waits at the barrier.

    memory: shared with the conductor (see `views`). gate: descriptor of a pipe, which can be read
    once the barrier opens.
    """

    def __init__(self, memory: mmap.mmap, gate: int):
        self.header, self.times, self.losses = views(memory)
        self.loss_interval = self.header[EVERY]
        self.sync = self.header[SYNC]
        self.ahead_ns = self.header[AHEAD]
        # A process that counted before may have ended, as in a restart by torchrun: go on from it.
        self.gate, self.done, self.cuda = gate, self.header[DONE], None
        self.under_way = deque()  # for each step a CUDA event, and when it was launched

    def __call__(self, loss) -> None:
        number = self.done
        self.cuda = cuda = self.cuda or _initialised_cuda()
        if number == STEPS:
            raise RuntimeError(f"the study keeps at most {STEPS} steps of a job")
        if cuda and cuda.is_current_stream_capturing():
            self.header[STAGE] = CAPTURED  # Replays of the graph will call nobody.
            return
        if self.sync and cuda:
            cuda.synchronize()
        if number % self.loss_interval == 0:
            loss = loss.detach() if hasattr(loss, "detach") else loss
            self.losses[number] = float("nan" if loss is None else loss)
        if self.ahead_ns and cuda:
            self._limit_work_under_way(cuda.Event())
        self.times[number] = time.monotonic_ns()
        self.done = number + 1
        if self.done < self.header[LIMIT]:
            self.header[DONE] = self.done
            return
        if cuda:  # Wait at the barrier with no work under way.
            cuda.synchronize()
        self.times[number] = time.monotonic_ns()
        self.header[DONE] = self.done
        self.header[HELD] = 1
        while self.done >= self.header[LIMIT]:  # A run before may have left a byte in the gate.
            os.read(self.gate, 1)
        self.header[HELD] = 0

    def _limit_work_under_way(self, event) -> None:
        """Wait while more than `ahead_ns` of work is under way, so that it can be held soon."""
        now = time.monotonic_ns()
        event.record()
        self.under_way.append((event, now))
        while len(self.under_way) > MIN_STEPS_AHEAD:
            oldest, launched_ns = self.under_way[0]
            if now - launched_ns < self.ahead_ns and not oldest.query():
                return
            oldest.synchronize()
            self.under_way.popleft()
