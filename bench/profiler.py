"""What torch.profiler costs the job that it sees, for `make bench BENCH=watching`.

It runs within the job, so the job is a process of ours that replays a captured training step. In
half of the segments it is seen; what the profiler does with what it saw lies outside of them.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import count
from multiprocessing import get_context

import numpy as np
import pynvml
import torch
from torch.profiler import profile

from models.graph import GraphedStep
from models.inputs import ResidentImages
from models.jobs.vision import VisionJob
from models.process import set_up

SEGMENT_S = 3.0  # some 500,000 kernels


def graphed(spec: dict) -> Callable[[int], None]:
    """A function that trains so many steps of this spec, as a CUDA graph on random images, and
    waits for them.
    """
    device, numbers, draw = set_up(spec), count(), np.random.default_rng(0).integers
    images, labels = draw(256, size=(5_000, 3, 40, 40)).astype("uint8"), draw(10, size=5_000)
    arrays = {"images": images, "labels": labels}
    graph = GraphedStep(VisionJob(spec, device), ResidentImages(arrays, spec, device), device)

    def steps(n: int) -> None:
        for _ in range(n):
            graph.step(graph.batch(next(numbers)))
        torch.cuda.synchronize()

    steps(graph.first_steps + 200)
    return steps


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
    os.environ.update({k: v for k, v in spec["environment"].items() if v is not None})
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    joules = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3  # noqa: E731
    return ratios(graphed(spec), joules, order, blocks)


def measure(*about) -> tuple[list[float], list[float]]:
    """`job` in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(job, *about).result()
