"""What torch.profiler costs the job that it profiles, for `python -m bench watching`.

The profiler runs within the job, so the job is a process of ours that replays a training step which
was captured as a CUDA graph. Half of the segments are profiled; the work that the profiler does
after a segment is not counted.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import count
from multiprocessing import get_context

import numpy as np
import torch
from torch.profiler import profile

from bench.watching import ORDER, energy_of
from models.graph import FIRST_STEPS, GraphedStep
from models.inputs import ResidentImages
from models.jobs.vision import VisionJob
from models.process import set_up
from workflow.collocation.member.spec import MemberSpec

READY = FIRST_STEPS + 200  # steps before the first measurement
SEGMENT_S = 3.0  # some 500,000 kernels


def ratios_in_fresh_process(
    spec: MemberSpec, gpu: str, blocks: int
) -> tuple[list[float], list[float]]:
    """`ratios` of the job of this member spec, in a process that has not touched CUDA yet.

    gpu: UUID of the GPU whose energy counter is read.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_ratios_of_job, spec, gpu, blocks).result()


def ratios(
    run_steps: Callable[[int], None], read_joules: Callable[[], float], blocks: int
) -> tuple[list[float], list[float]]:
    """The profiled over the unprofiled step rate, and the same of the power, for each block.

    A block is one segment for each entry of watching.ORDER. run_steps: runs so many steps.
    """
    block_ratios = []
    for _ in range(blocks):
        segments: dict[str, list] = {"on": [], "off": []}
        for state in ORDER:
            with profile() if state == "on" else nullcontext():
                run_steps(50)
                segments[state].append(_measure_segment(run_steps, read_joules))
        block_ratios.append(np.mean(segments["on"], axis=0) / np.mean(segments["off"], axis=0))
    rates, powers = np.transpose(block_ratios).tolist()
    return rates, powers


def _measure_segment(
    run_steps: Callable[[int], None], read_joules: Callable[[], float]
) -> tuple[float, float]:
    """Steps/s and watts over SEGMENT_S."""
    steps, joules_before, began = 0, read_joules(), time.monotonic()
    while (elapsed_s := time.monotonic() - began) < SEGMENT_S:
        run_steps(20)
        steps += 20
    return steps / elapsed_s, (read_joules() - joules_before) / elapsed_s


def _ratios_of_job(spec: MemberSpec, gpu: str, blocks: int) -> tuple[list[float], list[float]]:
    launch = _captured_step(spec)

    def run_steps(steps: int) -> None:
        launch(steps)
        torch.cuda.synchronize()

    run_steps(READY)
    return ratios(run_steps, energy_of(gpu), blocks)


def _captured_step(spec: MemberSpec) -> Callable[[int], None]:
    """A function that launches so many steps on random images; the first call captures them."""
    # CUDA reads the environment when it is initialised, so it is set here.
    for name, setting in spec.environment.items():
        if setting is not None:
            os.environ[name] = setting
    device, numbers, draw = set_up(spec), count(), np.random.default_rng(0).integers
    images = draw(256, size=(5_000, 3, 40, 40)).astype("uint8")
    arrays = {"images": images, "labels": draw(10, size=5_000)}
    graph = GraphedStep(VisionJob(spec, device), ResidentImages(arrays, spec, device), device)

    def launch(steps: int) -> None:
        for _ in range(steps):
            graph.step(graph.batch(next(numbers)))

    return launch
