"""`python -m bench graph-speeds`: what gives a CUDA graph alone its two speeds (docs/results.md).

Each run is a fresh process that replays a captured training step, and measures its rate before and
after each event of its condition. Conditions take turns, in reversed order every other round. Rates
of the last round, which has torch's profiler, do not count. Of NVML the clock is read.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pynvml
import torch
from torch.profiler import ProfilerActivity, profile

from bench.graphed import READY, graphed, in_fresh_process

OPEN = """import ctypes, sys
cuda, made = ctypes.CDLL("libcuda.so.1"), ctypes.byref(ctypes.c_void_p())
sys.exit(cuda.cuInit(0) or (sys.argv[1:] and cuda.cuDevicePrimaryCtxRetain(made, 0)) or 0)"""
# Event → a second process, which sleeps; initialises CUDA; makes a context; the same where another
# GPU or none is visible; launches something as well. "module": a new kernel in the first process.
SECOND = {"sleep": ["-c", "import time; time.sleep(1)"], "init": ["-c", OPEN]}
SECOND |= dict.fromkeys(("context", "hidden"), ["-c", OPEN, "context"])
SECOND |= {"work": ["-m", "workflow.collocation.gpu.second_context"]}
# How CUDA loads kernels in the first process, and the events in order.
CONDITIONS = ["LAZY sleep", "LAZY work module", "LAZY module", "LAZY context", "LAZY hidden"]
CONDITIONS += ["LAZY init", "EAGER sleep", "EAGER work"]
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry one() { ret; }\n\0"


def run(spec: dict, condition: str, gpu: str, other: str, profiled: bool) -> list[dict]:
    """One process: for each event what is measured before the first, and after it."""
    loading, *events = condition.split()
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    launch = graphed(spec, CUDA_MODULE_LOADING=loading, TEARDOWN_CUPTI="0")

    def steps(n: int) -> dict:
        began = time.monotonic()
        launch(n)
        clock = pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)
        torch.cuda.synchronize()
        return {"rate": n / (time.monotonic() - began), "mhz": clock}

    def kernels(n: int) -> dict:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            steps(n)
        cuda = (e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA)
        starts, ends = np.array(sorted((e.time_range.start, e.time_range.end) for e in cuda)).T
        gaps = np.maximum(starts[1:] - ends[:-1], 0)
        return {"kernel_us": (ends - starts).mean(), "gap_us": gaps.mean()}

    def measured() -> dict:
        return steps(int(2 * steps(50)["rate"])) | (kernels(20) if profiled else {})  # 2 s

    if profiled:
        kernels(1)  # kernels of a graph that was captured before the profiler began may not show
    steps(READY)
    rows, first = [], {f"before_{name}": value for name, value in measured().items()}
    for event in events:
        if event == "module":
            cuda, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
            code = cuda.cuModuleLoadData(ctypes.byref(module), PTX)
            code = code or cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"one")
            code = code or cuda.cuLaunchKernel(kernel, *[1] * 6, 0, None, None, None)
        else:
            where = {"CUDA_VISIBLE_DEVICES": other} if event == "hidden" else {}
            second = subprocess.Popen([sys.executable, *SECOND[event]], env=os.environ | where)
            while second.poll() is None:
                steps(50)
            code = 0 if where else second.returncode  # where no GPU is visible there is no context
        if code:
            raise RuntimeError(f"{event}: error {code}")
        about = {"condition": condition, "event": event, "profiled": profiled}
        rows.append(about | first | measured())
    return rows


def table(rows: list[dict]) -> pd.DataFrame:
    """For each event the rate before, the ratios of the rate after to it, clocks and kernels."""
    found, by = pd.DataFrame(rows), ["condition", "event"]
    found = found.assign(ratio=found["rate"] / found["before_rate"])
    seen = found[found["profiled"]].groupby(by).mean(numeric_only=True).filter(like="_us")
    counted = found[~found["profiled"]].groupby(by, sort=False)
    ratios = counted["ratio"].agg(["size", "mean", "min", "max"])
    rates = counted[["before_rate", "before_mhz", "mhz"]].mean()
    return rates.join(ratios).join(seen).round(3)


def measure(spec: dict, gpu: str, other: str, rounds: int, output: Path) -> None:
    """All runs, and what they tell; spec: of a member; gpu, other: UUIDs, "-1" for none."""
    rows = []
    for number in range(rounds + 1):
        for condition in CONDITIONS[:: 1 - 2 * (number % 2)]:
            told = (spec, condition, gpu, other, number == rounds)
            try:
                rows += in_fresh_process(run, *told)
            except Exception as error:  # the other runs are made all the same
                print(f"{condition}: {error}", file=sys.stderr)
            output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows).to_string()) if rows else sys.exit("no run succeeded")
