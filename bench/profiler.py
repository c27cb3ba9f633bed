"""What torch.profiler costs the job that it sees, for `python -m bench watching`.

It runs within the job, so the job is a process of ours that replays a captured training step. In
half of the segments it is seen; what the profiler does with what it saw lies outside of them.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch.profiler import profile

from bench.graphed import READY, graphed
from bench.watching import energy_of

SEGMENT_S = 3.0  # some 500,000 kernels


def segment(steps: Callable[[int], None], joules: Callable[[], float]) -> tuple[float, float]:
    """Steps/s and watts over SEGMENT_S."""
    n, before, began = 0, joules(), time.monotonic()
    while (took := time.monotonic() - began) < SEGMENT_S:
        steps(20)
        n += 20
    return n / took, (joules() - before) / took


def ratios(
    steps: Callable[[int], None], joules: Callable[[], float], order: tuple, blocks: int
) -> tuple[list[float], list[float]]:
    """For each block of segments, "on" and "off" in this order, the rate with the profiler over
    that without, and the power.
    """
    found = []
    for _ in range(blocks):
        seen: dict[str, list] = {"on": [], "off": []}
        for state in order:
            with profile() if state == "on" else nullcontext():
                steps(50)
                seen[state].append(segment(steps, joules))
        found.append(np.mean(seen["on"], axis=0) / np.mean(seen["off"], axis=0))
    rates, powers = np.transpose(found).tolist()
    return rates, powers


def job(spec: dict, gpu: str, order: tuple, blocks: int) -> tuple[list[float], list[float]]:
    """`ratios` of the job of this spec of a member on the GPU of this UUID."""
    launch = graphed(spec)

    def steps(n: int) -> None:
        launch(n)
        torch.cuda.synchronize()

    steps(READY)
    return ratios(steps, energy_of(gpu), order, blocks)
