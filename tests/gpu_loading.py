"""Known loads (tests/gpu_loads.py) as processes, and what GPM's counters read meanwhile."""

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workflow.collocation import ROOT, gpu
from workflow.collocation.sharing.evidence import PIPE_FOLDER
from workflow.collocation.telemetry.base import ActivitySource

LEAD_S = 0.4  # of a load before it is looked at, and after: counters are refreshed every 100 ms
SPAN_S = 0.8
ANSWER_S = 60.0


class LoadError(Exception):
    """A load that did not do what it was told, as a sentence."""


class Load:
    """A process of tests/gpu_loads.py that has its context."""

    def __init__(self, process: subprocess.Popen):
        self.process = process
        if (said := self.line()) != b"ready":
            raise LoadError(f"{process.args} says {said!r}")

    def line(self) -> bytes:
        there, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        if not there:
            raise LoadError(f"{self.process.args} says nothing for {ANSWER_S:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise LoadError(f"{self.process.args} ended with exit code {code}")
        return line.strip()


@contextmanager
def load(device: gpu.Device, *arguments: object, pipe: object) -> Iterator[Load]:
    """pipe: folder of the MPS daemon, or one with none in it."""
    command = [sys.executable, "-m", "tests.gpu_loads", *map(str, arguments)]
    with subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": device.uuid, PIPE_FOLDER: str(pipe)},
    ) as process:
        try:
            yield Load(process)
            process.stdin.close()
            process.wait(ANSWER_S)
        finally:
            process.kill()


@contextmanager
def running(seconds: float, *loads: Load) -> Iterator[None]:
    """Inside, which takes so long at most, these are on. Raises LoadError if one was not."""
    for each in loads:
        each.process.stdin.write(f"{seconds + 2 * LEAD_S}\n".encode())
    for each in loads:
        each.line()
    time.sleep(LEAD_S)
    yield
    left = time.monotonic_ns()
    if min(int(each.line()) for each in loads) <= left:
        raise LoadError("a load was over too early")


def span_of(source: ActivitySource, seconds: float) -> dict[str, float | None]:
    """What the card does meanwhile, from one pair: metric → value in the vocabulary's unit."""
    begin = source.sample()
    time.sleep(seconds)
    return source.rates_between(begin, source.sample())["gpu"]["v"]


def spinning(source: ActivitySource, device: gpu.Device, blocks: int) -> dict[str, float | None]:
    """The same while a kernel spins on so many SMs."""
    with tempfile.TemporaryDirectory() as pipe:
        with load(device, "spin", blocks, pipe=pipe) as process, running(SPAN_S, process):
            return span_of(source, SPAN_S)
