"""`python -m bench watching`: what watching a GPU costs the job that trains on it.

One long cell for each watcher. Time is cut into segments, four to a block; the watcher runs in two
of the four, in an order that reads the same backwards, so that an even drift cancels. A watcher is
started at the beginning of its segments and killed at their end, because a DCGM host engine goes on
sampling for a client that is only stopped.

The watcher `ours` is the cell's own sampler, stopped (SIGSTOP) in its other segments. Beside any
other watcher the cell has no sampler. Power is by the GPU's energy counter.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pynvml
from scipy import stats

from bench.cells import record_of, start_cell
from workflow.collocation.gpu import Device
from workflow.collocation.record import step_times
from workflow.collocation.study.grid import Cell

SAMPLER = "workflow.collocation.telemetry.sampler"
ORDER = ("off", "on", "on", "off")  # whether the watcher runs, in the segments of a block
# Length of a segment, and the part at its beginning that does not count, in which a watcher starts
# or ends. The energy counter moves in steps of 0.1 s.
SEGMENT_S, SETTLE_S = 5.0, 1.5
FIELDS = "timestamp,power.draw,utilization.gpu,utilization.memory,memory.used,pstate"
POLL = """import sys, time, pynvml as n
n.nvmlInit(); card = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
while True:
    n.nvmlDeviceGetUtilizationRates(card), n.nvmlDeviceGetPowerUsage(card)
    n.nvmlDeviceGetMemoryInfo(card), time.sleep(0.1)"""


class Segment(NamedTuple):
    """A stretch of time with or without the watcher."""

    state: str  # "on" or "off"
    start_ns: int  # on the monotonic clock
    end_ns: int
    joules: float | None  # that the GPU used, if that was measured


def watchers(device: Device | None) -> dict[str, list[str] | None]:
    """Commands of the installed watchers by name; None for the cell's own sampler."""
    if not device:
        return {"ours": None}
    commands = {
        "nvidia-smi -l 1": ["nvidia-smi", "-l", "1", f"--query-gpu={FIELDS}", "--format=csv"],
        "NVML, 10 Hz": [sys.executable, "-c", POLL, device.uuid],
        # Where no host engine runs, it ends at once and has no row.
        "dcgmi, 10 Hz": ["dcgmi", "dmon", "-d", "100", "-e", "203,204,1001,1002,1003,1004,1005"],
    }
    installed = {name: words for name, words in commands.items() if shutil.which(words[0])}
    return {"ours": None, **installed}


def measure_watcher(
    cell: Cell, ready: Path, device: Device | None, command: list[str] | None
) -> dict | None:
    """Run the cell beside a watcher, and return `cost_of` its blocks.

    command: the watcher's, or None for the cell's own sampler. Returns None if the watcher ended by
    itself.
    """
    settings = {"telemetry": {"source": "off"}} if command else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conductor = start_cell(cell, ready, device, folder, **settings)
        log = folder / "log/conductor.log"
        while conductor.poll() is None:
            if log.exists() and "started:" in log.read_text("utf-8"):
                break
            time.sleep(0.05)
        segments = run_segments(conductor, command, device)
        record = record_of(conductor, folder)
        if segments is None:
            return None
        return cost_of(*block_ratios(segments, record, pq.read_table(folder / "steps.parquet")))


def cost_of(rates: list[float], powers: list[float]) -> dict:
    """Changes of throughput and power ([percent, low, high]), number of blocks, and their ratios.

    rates, powers: the ratio with over without the watcher, for each block.
    """
    return {
        "throughput": percent_change(rates),
        "power": percent_change(powers),
        "blocks": len(rates),
        "ratios": {"throughput": rates, "power": powers},
    }


def energy_of(gpu: str) -> Callable[[], float]:
    """A function that reads the energy counter (J) of the GPU with this UUID."""
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3


def run_segments(
    conductor: subprocess.Popen, command: list[str] | None, device: Device | None
) -> list[Segment] | None:
    """Start and stop the watcher until the cell ends; None if the watcher ended by itself."""
    segments = []
    read_joules = energy_of(device.uuid) if device else lambda: None
    with suppress(psutil.NoSuchProcess):  # the cell's own sampler ends before the conductor does
        sampler = None
        if command is None:
            children = psutil.Process(conductor.pid).children()
            sampler = next(child for child in children if SAMPLER in child.cmdline())
        while conductor.poll() is None:
            state, watcher = ORDER[len(segments) % len(ORDER)], None
            with ExitStack() as stack:
                if sampler and state == "on":
                    sampler.resume()
                elif sampler:
                    sampler.suspend()
                elif state == "on":
                    watcher = subprocess.Popen(
                        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
                    stack.enter_context(watcher)
                    stack.callback(watcher.kill)
                time.sleep(SETTLE_S)
                start_ns, joules_before = time.monotonic_ns(), read_joules()
                time.sleep(SEGMENT_S - SETTLE_S)
                end_ns, joules_after = time.monotonic_ns(), read_joules()
                if watcher and watcher.poll() is not None:
                    return None
            joules = joules_after - joules_before if device else None
            segments.append(Segment(state, start_ns, end_ns, joules))
        if sampler:
            sampler.resume()
    return segments


def block_ratios(
    segments: list[Segment], record: dict, table: pa.Table
) -> tuple[list[float], list[float]]:
    """Step rate with over without the watcher, and the same of power, for each block in the window.

    record: run.json of the cell. table: its steps.parquet. Power is NaN where it was not measured.
    """
    [window] = record["windows"]
    step_ends = [end_ns for end_ns, _ in step_times.read_steps(table).values()]
    rates, powers = [], []
    for first in range(0, len(segments) - len(ORDER) + 1, len(ORDER)):
        block = segments[first : first + len(ORDER)]
        if block[0].start_ns < window["start_ns"] or block[-1].end_ns > window["end_ns"]:
            continue
        log_rates: dict[str, list[float]] = {"off": [], "on": []}
        watts: dict[str, list[float]] = {"off": [], "on": []}
        for state, start_ns, end_ns, joules in block:
            steps = sum(
                step_times.fractional_steps(ends[:-1], ends[1:], start_ns, end_ns)
                for ends in step_ends
            )
            log_rates[state].append(np.log(steps / (end_ns - start_ns)))
            watts[state].append((joules or np.nan) / (end_ns - start_ns))
        rates.append(float(np.exp(np.mean(log_rates["on"]) - np.mean(log_rates["off"]))))
        powers.append(float(np.mean(watts["on"]) / np.mean(watts["off"])))
    return rates, powers


def percent_change(ratios: list[float]) -> list[float]:
    """Geometric mean of ratios as a change in percent, with its 95 % t interval; NaN below two."""
    if len(ratios) < 2:
        return [float("nan")] * 3
    logs = np.log(ratios)
    half_width = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    limits = (logs.mean(), logs.mean() - half_width, logs.mean() + half_width)
    return [float(100 * (np.exp(log) - 1)) for log in limits]
