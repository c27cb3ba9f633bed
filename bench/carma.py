"""CARMA's rule as a queue of its own, and an MPS daemon started by hand.

The next run starts once the SMs in use by all that run stay below a limit, and the GPU has as much
memory free as it will need; a run that runs out of memory is started again.
"""

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from workflow.collocation.gpu import Device
from workflow.collocation.member.failures import says_out_of_memory
from workflow.collocation.process_lifetime import kill_all
from workflow.collocation.telemetry.gpm import Gpm

MOST_SMACT, WINDOW_S, POLL_S = 0.80, 5.0, 0.5
THREADS = "2"  # CPU threads of each run
MOST_ATTEMPTS, MOST_AT_ONCE = 3, 48
START_S, END_S = 20.0, 15.0
CONTROL = "nvidia-cuda-mps-control"


@dataclass
class QueuedRun:
    """A run. peak_mb: the most GPU memory it will need."""

    number: int
    command: list[str]
    peak_mb: float
    attempts: int = 0


@contextmanager
def mps_by_hand(device: Device | None, short: Path, logs: Path) -> Iterator[dict[str, str]]:
    """The variables of clients of a daemon that serves the GPU meanwhile."""
    if device is None:
        yield {}
        return
    (short / "pipe").mkdir()
    variables = {"CUDA_VISIBLE_DEVICES": device.uuid, "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    variables["CUDA_MPS_PIPE_DIRECTORY"] = str(short / "pipe")
    environment = os.environ | variables
    subprocess.run([CONTROL, "-d"], env=environment, check=True, timeout=START_S)
    try:
        yield variables
    finally:
        subprocess.run([CONTROL], input="quit\n", text=True, env=environment, timeout=END_S)


def wait_or_end(process: subprocess.Popen, seconds: float) -> int:
    """The exit code of a process, which is killed with all that it started after so long."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"{seconds:.0f} s are over: it is killed", flush=True)
        kill_all(process.pid)
        return process.wait(END_S)


def smact_reader(device: Device | None) -> Callable[[], float | None]:
    """A function that returns SMACT since its last call; the CPU's load where there is no GPU."""
    if device is None:
        return lambda: psutil.cpu_percent() / 100
    counters = Gpm(device.uuid, ["gpu"])
    return lambda: counters.read_rates().get("gpu", {}).get("smact")


def work_off(
    runs: list[QueuedRun], device: Device | None, folder: Path, short: Path, limit_s: float
) -> dict:
    """Work off the runs by the rule, for limit_s at most; returns makespan, failures, and times."""
    waiting, failed, spans = deque(runs), [], {}
    running: dict[int, tuple[QueuedRun, subprocess.Popen, float]] = {}
    read_smact, most_at_once = smact_reader(device), 0
    began_s = time.monotonic()
    with mps_by_hand(device, short, folder) as variables:
        readings: deque[tuple[float, float]] = deque()
        begun_s = float("-inf")  # the newest start
        while waiting or running:
            now_s = time.monotonic()
            if now_s - began_s > limit_s:
                print(f"{limit_s:.0f} s are over: runs are killed", flush=True)
                for _, process, _ in running.values():
                    kill_all(process.pid)
                    process.wait(END_S)
                break
            for number, (run, process, start_s) in [*running.items()]:
                if process.poll() is None:
                    continue
                del running[number]
                spans.setdefault(number, []).append([start_s - began_s, now_s - began_s])
                log = (folder / f"{number:04}.txt").read_text(errors="replace")
                if process.returncode and says_out_of_memory(log) and run.attempts < MOST_ATTEMPTS:
                    waiting.append(run)
                elif process.returncode:
                    failed.append(number)
            smact = read_smact()
            if smact is not None:
                readings.append((now_s, smact))
            while readings and readings[0][0] < now_s - WINDOW_S:
                readings.popleft()
            recent = [smact for _, smact in readings]
            is_settled = now_s - begun_s >= WINDOW_S and recent
            has_room = is_settled and sum(recent) / len(recent) < MOST_SMACT
            has_room = has_room and _fits(waiting[0], device) if waiting else False
            if waiting and (not running or has_room and len(running) < MOST_AT_ONCE):
                run = waiting.popleft()
                running[run.number] = run, _start(run, folder, variables), now_s
                begun_s = now_s
                most_at_once = max(most_at_once, len(running))
            time.sleep(POLL_S)
    return {
        "makespan_s": round(time.monotonic() - began_s, 2),
        "failed": len(failed),
        "retried": sum(run.attempts > 1 for run in runs),
        "most_at_once": most_at_once,
        "spans": spans,  # start and end of each attempt, seconds, by run
    }


def _fits(run: QueuedRun, device: Device | None) -> bool:
    free = device and device.memory_free()
    return free is None or free / 2**20 >= run.peak_mb


def _start(run: QueuedRun, folder: Path, variables: dict[str, str]) -> subprocess.Popen:
    run.attempts += 1
    with (folder / f"{run.number:04}.txt").open("w") as log:
        return subprocess.Popen(
            run.command,
            env=os.environ | variables | {"OMP_NUM_THREADS": THREADS},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
