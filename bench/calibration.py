"""`make bench BENCH="smact --output FILE.json"`: does SMACT read the share of the SMs that is busy?

A kernel that does nothing spins on so many SMs, one block on each, while GPM's counters span the
time. The file goes into a study's bench/ folder, from which its belief page shows it.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.digest import code_digest
from workflow.collocation.methods.evidence import PIPE_FOLDER
from workflow.collocation.settings import load_config
from workflow.collocation.sitting import find_device
from workflow.collocation.study import ROOT
from workflow.collocation.telemetry.sources import Source, open_source
from workflow.collocation.telemetry.vocabulary import Unavailable

LEAD_S = 0.4  # of a load before it is looked at, and after: counters are refreshed every 100 ms
SPAN_S = 0.8
ANSWER_S = 60.0
PARTS = (8, 4, 2, 1)  # one in so many of the SMs spins


class LoadError(Exception):
    """A load that did not do what it was told, as a sentence."""


class Load:
    """A process of bench/gpu_loads.py that has its context."""

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
    command = [sys.executable, "-m", "bench.gpu_loads", *map(str, arguments)]
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


def span_of(source: Source, seconds: float) -> dict[str, float | None]:
    """What the card does meanwhile, from one pair: metric → value in the vocabulary's unit."""
    begin = source.open()
    time.sleep(seconds)
    return source.span(begin, source.open())["gpu"]["metrics"]


def spinning(source: Source, device: gpu.Device, blocks: int) -> dict[str, float | None]:
    """The same while a kernel spins on so many SMs."""
    with tempfile.TemporaryDirectory() as pipe:
        with load(device, "spin", blocks, pipe=pipe) as process, running(SPAN_S, process):
            return span_of(source, SPAN_S)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench smact",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="JSON file of the readings")
    args = parser.parse_args(argv)
    device, why_not = find_device(load_config({}))
    if device is None or not device.sm_count:
        sys.exit(f"bench: no GPU whose SMs are known: {why_not or device.name}")
    try:
        source, _ = open_source(device.uuid, ["gpu"], "gpm")
    except Unavailable as why:
        sys.exit(f"bench: {why}")
    readings = []
    print(f"SMACT on {device.name}, {device.sm_count} SMs")
    try:
        for part in PARTS:
            busy = max(device.sm_count // part, 1)
            read = spinning(source, device, busy)["smact"]
            print(f"  {busy:4} busy: {busy / device.sm_count:.4f}, read {read}", flush=True)
            readings.append({"busy_sms": busy, "sm_count": device.sm_count, "smact": read})
    except LoadError as error:
        sys.exit(f"bench: {error}")
    finally:
        source.close()
    if args.output:
        found = {"device": device.record(), "digest": code_digest(), "readings": readings}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0
