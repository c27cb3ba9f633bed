"""`python -m bench.sampling FOLDER ...`: CPU time that the sampler takes for a reading of the GPU.

Each folder is a checkout of this repository, and their samplers run in turns, one at a time, beside
processes that stand for members: each has a CUDA context and sleeps. Its start does not count.
Then this checkout's calls to NVML are measured one by one.
"""

import argparse
import cProfile
import ctypes
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import psutil

from workflow.collocation.gpu import find
from workflow.collocation.gpu.second_context import use_device
from workflow.collocation.telemetry.nvml import NvmlCard
from workflow.collocation.telemetry.sources import choose_source
from workflow.collocation.telemetry.watch import PROGRAM, SLOW_HZ

HZ = 10.0
START_S = 3.0  # for a sampler to start, and for its first readings, which take longer
READING = b'{"k":"gpu"'


def stand_in() -> None:
    """What a stand-in of a member does: open CUDA, if there is one, and sleep until killed."""
    with suppress(OSError):
        use_device(ctypes.CDLL("libcuda.so.1"))
    print(flush=True)
    time.sleep(1e6)


@contextmanager
def members(count: int) -> Iterator[dict[int, int]]:
    """So many stand-ins that have opened CUDA; gives their PIDs by member."""
    code = "from bench.sampling import stand_in; stand_in()"
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            process.stdout.readline()
        yield {member: process.pid for member, process in enumerate(processes)}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def cpu_ms(checkout: Path, uuid: str, pids: dict[int, int], seconds: float) -> float:
    """Milliseconds of CPU, user and system, for each reading of one sampler of this checkout.

    uuid: the GPU's. pids: of members. seconds: how long it is measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines"
        config = {"source": "auto", "hz": HZ, "slow_hz": SLOW_HZ, "gpu": uuid, "entities": ["gpu"]}
        config |= {"cores": None, "output": str(output), "parent": os.getpid()}
        command = [sys.executable, "-m", PROGRAM, json.dumps(config)]
        with subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE) as sampler:
            sampler.stdin.write(json.dumps({"members": pids}).encode() + b"\n")
            sampler.stdin.flush()
            ends = []
            for wait_s in (START_S, seconds):
                time.sleep(wait_s)
                used = psutil.Process(sampler.pid).cpu_times()
                ends.append((used.user + used.system, output.read_bytes().count(READING)))
            sampler.stdin.close()
    (cpu_before, rows_before), (cpu_after, rows_after) = ends
    return 1e3 * (cpu_after - cpu_before) / (rows_after - rows_before)


def call_costs(uuid: str, readings: int) -> dict[str, tuple[int, float]]:
    """How often each function of NVML was called in so many readings of the GPU with this UUID, and
    milliseconds of CPU for each call, the kernel's included.
    """
    card, (source, _) = NvmlCard(uuid), choose_source(uuid, ["gpu"])
    with cProfile.Profile(time.process_time) as profile:
        for _ in range(readings):
            time.sleep(1 / HZ)
            if source:
                source.read_rates()
            card.read_values()
            card.processes()
    functions = pstats.Stats(profile).stats.items()  # file, line, name → calls, …, seconds, callers
    return {
        name: (calls, 1e3 * seconds / calls)
        for (_, _, name), (calls, _, _, seconds, _) in functions
        if name.lstrip("_").startswith("nvml")
    }


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m bench.sampling", description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, help="the first is what others are over")
    parser.add_argument("--members", nargs="+", type=int, default=[1, 8], help="how many (1 8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each sampler (20)")
    parser.add_argument("--rounds", type=int, default=3, help="of all checkouts (3)")
    parser.add_argument("--readings", type=int, default=100, help="of NVML, for its calls (100)")
    args = parser.parse_args(argv)
    device = next(iter(find()), None)
    if device is None:
        parser.error("it needs an NVIDIA GPU")
    for count in args.members:
        times: dict[Path, list[float]] = {checkout: [] for checkout in args.checkouts}
        with members(count) as pids:
            for round_ in range(args.rounds):
                for checkout in args.checkouts[:: -1 if round_ % 2 else 1]:
                    times[checkout].append(cpu_ms(checkout, device.uuid, pids, args.seconds))
            costs = call_costs(device.uuid, args.readings)
        first = median(times[args.checkouts[0]])
        print(f"{count} members on {device.name}, {len(psutil.pids())} processes here")
        for checkout, values in times.items():
            values_ms = ", ".join(f"{value:.2f}" for value in values)
            ratio = median(values) / first
            print(f"  {checkout}: {median(values):.2f} ms a reading, {ratio:.2f} ({values_ms})")
        for name, (calls, each_ms) in sorted(costs.items()):
            print(f"  {name}: {calls} calls, {each_ms:.3f} ms each", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
