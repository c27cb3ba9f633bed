"""`python -m bench watching`: what watching a GPU costs the job that trains on it.

One long cell for each watcher. A watcher runs in two of four segments, in palindromes, so that what
drifts evenly cancels. It is started at the beginning of each of these and killed at its end: a host
engine samples on for a client that is only stopped. `ours` is the cell's own sampler, stopped
(SIGSTOP) between them; beside another watcher the cell has none. Power is by the GPU's energy
counter, over the same segments.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pynvml
from scipy import stats

from bench.cells import record_of, started
from workflow.collocation.record import step_times
from workflow.collocation.study.grid import Cell

SAMPLER = "workflow.collocation.telemetry.sampler"
ORDER = ("off", "on", "on", "off")  # of a block of segments
# Of a segment, and of it, at its beginning, what does not count, in which a watcher starts or ends.
# The energy counter moves in steps of 0.1 s.
SEGMENT_S, SETTLE_S = 5.0, 1.5
SILENT = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
FIELDS = "timestamp,power.draw,utilization.gpu,utilization.memory,memory.used,pstate"
POLL = """import sys, time, pynvml as n
n.nvmlInit(); card = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
while True:
    n.nvmlDeviceGetUtilizationRates(card), n.nvmlDeviceGetPowerUsage(card)
    n.nvmlDeviceGetMemoryInfo(card), time.sleep(0.1)"""


def watchers(device) -> dict[str, list[str] | None]:
    """Watcher → its command, of those that are installed; None: the cell's own sampler."""
    if not device:
        return {"ours": None}
    found = {
        "nvidia-smi -l 1": ["nvidia-smi", "-l", "1", f"--query-gpu={FIELDS}", "--format=csv"],
        "NVML, 10 Hz": [sys.executable, "-c", POLL, device.uuid],
        # Where a host engine runs; elsewhere it ends at once, and its row is left out.
        "dcgmi, 10 Hz": ["dcgmi", "dmon", "-d", "100", "-e", "203,204,1001,1002,1003,1004,1005"],
    }
    return {"ours": None} | {n: words for n, words in found.items() if shutil.which(words[0])}


def cost(cell: Cell, ready: Path, device, command: list[str] | None) -> dict | None:
    """What throughput and power change by beside the watcher (%): [value, low, high], 95 %.

    None where the watcher ended by itself.
    """
    source = {"telemetry": {"source": "off"}} if command else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conductor = started(cell, ready, device, folder, **source)
        log = folder / "log/conductor.log"
        while conductor.poll() is None and not (
            log.exists() and "started:" in log.read_text("utf-8")
        ):
            time.sleep(0.05)
        segments = followed(conductor, command, device)
        record = record_of(conductor, folder)
        if segments is None:
            return None
        rates, powers = block_ratios(segments, record, pq.read_table(folder / "steps.parquet"))
    return told(rates, powers)


def told(rates: list[float], powers: list[float]) -> dict:
    """What the blocks' ratios tell, and the ratios."""
    found = {"throughput": change(rates), "power": change(powers), "blocks": len(rates)}
    return found | {"ratios": {"throughput": rates, "power": powers}}


def energy_of(gpu: str) -> Callable[[], float]:
    """A function that reads the energy counter (J) of the GPU of this UUID."""
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3


def followed(conductor: subprocess.Popen, command: list[str] | None, device) -> list[tuple] | None:
    """The segments until the cell ends: state, from when to when (ns), joules or None. None where
    the watcher ended by itself.
    """
    read, segments = energy_of(device.uuid) if device else lambda: None, []
    with suppress(psutil.NoSuchProcess):  # the cell's own ends before the conductor does
        children = psutil.Process(conductor.pid).children()
        sampler = None if command else next(c for c in children if SAMPLER in c.cmdline())
        while conductor.poll() is None:
            state, process = ORDER[len(segments) % len(ORDER)], None
            with ExitStack() as stack:
                if sampler:
                    sampler.resume() if state == "on" else sampler.suspend()
                elif state == "on":
                    process = stack.enter_context(subprocess.Popen(command, **SILENT))
                    stack.callback(process.kill)
                time.sleep(SETTLE_S)
                start, before = time.monotonic_ns(), read()
                time.sleep(SEGMENT_S - SETTLE_S)
                stop, after = time.monotonic_ns(), read()
                if process and process.poll() is not None:
                    return None
            segments.append((state, start, stop, after and after - before))
        if sampler:
            sampler.resume()
    return segments


def block_ratios(segments: list[tuple], record: dict, table) -> tuple[list[float], list[float]]:
    """For each block in the window, the rate beside the watcher over the rate without; and power,
    where that is known.
    """
    (window,), meta = record["windows"], table.schema.metadata
    ends = table["tick"].to_numpy() * int(meta[b"tick_ns"]) + int(meta[b"origin_ns"])
    of = table["member"].to_numpy()
    members = [ends[of == member] for member in np.unique(of)]
    rates, powers = [], []
    for at in range(0, len(segments) - len(ORDER) + 1, len(ORDER)):
        block = segments[at : at + len(ORDER)]
        if block[0][1] < window["start_ns"] or block[-1][2] > window["end_ns"]:
            continue
        logs: dict[str, list[float]] = {"off": [], "on": []}
        watts: dict[str, list[float]] = {"off": [], "on": []}
        for state, start, stop, joules in block:
            steps = sum(step_times.fractional_steps(e[:-1], e[1:], start, stop) for e in members)
            logs[state].append(np.log(steps / (stop - start)))
            watts[state].append((joules or np.nan) / (stop - start))
        rates.append(float(np.exp(np.mean(logs["on"]) - np.mean(logs["off"]))))
        powers.append(float(np.mean(watts["on"]) / np.mean(watts["off"])))
    return rates, powers


def change(ratios: list[float]) -> list[float]:
    """Percent, and its 95 % t interval over blocks, on logs; NaN where nothing is known."""
    if len(ratios) < 2:
        return [float("nan")] * 3
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    return [float(100 * (np.exp(logs.mean() + add) - 1)) for add in (0, -half, half)]
