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
# way, 0 for any; what the script's processes have reached (bits); steps that did not count.
DONE, LIMIT, HELD, EVERY, SYNC, AHEAD, REACHED, OTHERS = range(8)
# Bits: Python runs with the counter; torch is loaded; an optimizer is in a CUDA graph; and from
# LIBRARY on one for each of LIBRARIES, which train without an optimizer that can be counted.
PYTHON, TORCH, CAPTURED, LIBRARY = 1, 2, 4, 8
LIBRARIES = ("spacy", "lomo_optim", "jax", "tensorflow", "sklearn", "xgboost", "lightgbm")
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


def step_of_other() -> None:
    """Report that an optimizer has stepped which does not count, or not yet."""
    if isinstance(_told, _Recorder):
        _told.step_of_other()


def date_back(end_ns: list[int]) -> None:
    """Report steps that ended at these times, all after the last step."""
    if isinstance(_told, _Recorder):
        _told.date_back(end_ns)


def set_optimizer(name: str) -> None:
    """Report the class of the optimizer whose steps count from now on."""
    optimizer_facts["optimizer"] = name
    if isinstance(_told, _Recorder):
        _told.write_facts()


def report(reached: int) -> None:
    """Report what this process has reached, as bits."""
    try:
        memory = _open_memory()
    except OSError:
        return
    before = int.from_bytes(os.pread(memory, 8, 8 * REACHED), sys.byteorder)
    os.pwrite(memory, (before | reached).to_bytes(8, sys.byteorder), 8 * REACHED)
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
    pid, _, gate = os.environ[VARIABLE].split()
    os.register_at_fork(after_in_child=_stop_counting_in_child)
    return _Recorder(mmap.mmap(memory, SIZE), os.open(f"/proc/{pid}/fd/{gate}", os.O_RDONLY))


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
        self.memory, self.device_facts = memory, _device_facts()
        self.write_facts()
        self.header, self.times, self.losses = views(memory)
        self.loss_interval = self.header[EVERY]
        self.sync = self.header[SYNC]
        self.ahead_ns = self.header[AHEAD]
        # A process that counted before may have ended, as in a restart by torchrun: go on from it.
        self.gate, self.done, self.cuda = gate, self.header[DONE], None
        self.under_way = deque()  # for each step a CUDA event, and when it was launched

    def write_facts(self) -> None:
        facts = {**optimizer_facts, **self.device_facts}
        self.memory[-FACTS:] = json.dumps(facts).encode().ljust(FACTS)

    def __call__(self, loss) -> None:
        number = self.done
        if number == STEPS:
            raise RuntimeError(f"the study keeps at most {STEPS} steps of a job")
        if self._is_capturing():
            self.header[REACHED] |= CAPTURED  # Replays of the graph will call nobody.
            return
        cuda = self.cuda
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
        if cuda:
            cuda.synchronize()
        self.times[number] = time.monotonic_ns()
        self.header[DONE] = self.done
        self._wait()

    def step_of_other(self) -> None:
        if not self._is_capturing():
            self.header[OTHERS] += 1
            if self.done >= self.header[LIMIT]:
                self._wait()

    def date_back(self, end_ns: list[int]) -> None:
        for moment_ns in end_ns[: STEPS - self.done]:
            if self.done % self.loss_interval == 0:
                self.losses[self.done] = float("nan")
            self.times[self.done] = moment_ns
            self.done += 1
        self.header[DONE] = self.done

    def _is_capturing(self) -> bool:
        self.cuda = self.cuda or _initialised_cuda()
        return bool(self.cuda) and self.cuda.is_current_stream_capturing()

    def _wait(self) -> None:
        """Wait at the barrier, with no work under way, until it opens."""
        if self.cuda:
            self.cuda.synchronize()
        while self.done >= self.header[LIMIT]:
            # Anew each time: it may be let go and held again before it has seen the first. And a
            # run before may have left a byte in the gate.
            self.header[HELD] = 1
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
