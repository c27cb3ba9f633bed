"""A training step as a CUDA graph on random images, in a process of its own."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context

import numpy as np

from models.graph import FIRST_STEPS, GraphedStep
from models.inputs import ResidentImages
from models.jobs.vision import VisionJob
from models.process import set_up
from workflow.collocation.member.spec import MemberSpec

READY = FIRST_STEPS + 200  # steps after which a rate may be taken


def graphed(spec: MemberSpec, **variables: str) -> Callable[[int], None]:
    """A function that launches so many steps of this spec of a member; it captures in the first.

    variables: of the environment, which CUDA reads when it is initialised, so here.
    """
    given = {name: value for name, value in spec.environment.items() if value is not None}
    os.environ.update(variables | given)
    device, numbers, draw = set_up(spec), count(), np.random.default_rng(0).integers
    images, labels = draw(256, size=(5_000, 3, 40, 40)).astype("uint8"), draw(10, size=5_000)
    arrays = {"images": images, "labels": labels}
    graph = GraphedStep(VisionJob(spec, device), ResidentImages(arrays, spec, device), device)

    def launch(n: int) -> None:
        for _ in range(n):
            graph.step(graph.batch(next(numbers)))

    return launch


def in_fresh_process(function: Callable, *about):
    """What it returns, called in a process that has not touched CUDA."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *about).result()
