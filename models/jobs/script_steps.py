"""How somebody else's script tells of its steps, and how it is held at the barrier."""

import json
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psutil

from models import hook

FOREVER = 1 << 62


class Hooked:
    """The same of a script in which models/hook.py tells of steps, in memory that we share."""

    theirs = source = None  # it prints to our log, and there is nothing to look for

    def __init__(self, spec: dict):
        memory = os.memfd_create("steps")
        os.truncate(memory, hook.SIZE)
        self.memory, self.every = mmap.mmap(memory, hook.SIZE), spec["loss_every"]
        self.header, self.times, self.losses = hook.views(self.memory)
        gate, self.gate = os.pipe()
        self.header[hook.LIMIT], self.header[hook.EVERY] = FOREVER, self.every
        self.header[hook.SYNC] = int(spec["sync"])
        self.environment = {hook.VARIABLE: f"{os.getpid()} {memory} {gate}"}

    @property
    def facts(self) -> dict:
        """What it says of itself, from its first step on."""
        return json.loads(self.memory[-hook.FACTS :])

    @property
    def done(self) -> int:
        return self.header[hook.DONE]

    def hold(self) -> bool:
        """Have the script wait in its next step; True once it does."""
        self.header[hook.LIMIT] = 0
        return bool(self.header[hook.HELD])

    def go(self, work: int | None) -> None:
        self.header[hook.LIMIT] = self.done + work if work else FOREVER
        self.header[hook.HELD] = 0
        os.write(self.gate, b"g")

    def arrays(self, first: int, end: int) -> tuple:
        """Times of steps first ≤ step < end; the steps and values of losses of all before end."""
        kept = [n for n in range(0, end, self.every) if not np.isnan(self.losses[n])]
        return self.times[first:end], kept, [self.losses[n] for n in kept]


def tree(pid: int) -> list[psutil.Process]:
    """A process and what it started, as far as they live."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def each(processes: list[psutil.Process], act: Callable) -> list:
    """What `act` gives for each of those that live."""
    results = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            results.append(act(process))
    return results
