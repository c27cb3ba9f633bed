"""Steps that a script, or its optimizer, tells of itself, and how it is held at the barrier."""

import json
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psutil

from models import hook
from models.jobs.script_output import ScriptOutput

FOREVER = 1 << 62


class Hooked:
    """Steps told by models/hook.py in memory that we share: by the script's optimizer, or by two
    lines in the script.
    """

    def __init__(self, spec: dict):
        memory = os.memfd_create("steps")
        os.truncate(memory, hook.SIZE)
        self.memory, self.every = mmap.mmap(memory, hook.SIZE), spec["loss_every"]
        self.header, self.times, self.losses = hook.views(self.memory)
        gate, self.gate = os.pipe()
        self.header[hook.LIMIT], self.header[hook.EVERY] = FOREVER, self.every
        self.header[hook.SYNC] = int(spec["sync"])
        self.header[hook.AHEAD] = round(1e9 * (spec.get("in_flight_s") or 0))
        self.most_s = spec["first_step_s"] * spec["beside"]
        self.seen, self.since = None, 0.0
        self.environment = {hook.VARIABLE: f"{os.getpid()} {memory} {gate}"}

    def see(self, line: str) -> None:
        """What it prints tells nothing of steps."""

    def why_none(self, output: ScriptOutput) -> str | None:
        """None while steps come; once there was none for too long why, as far as one can see from
        here, and what to do.
        """
        seen, now = (self.header[hook.STAGE], self.done), time.monotonic()
        if seen != self.seen:
            self.seen, self.since = seen, now
        if now - self.since < self.most_s:
            return None
        if seen[0] == hook.CAPTURED:
            said = "its optimizer was captured in a CUDA graph, and a replay tells nobody"
        elif self.done:
            said = f"after {self.done} steps no optimizer has made another"
        elif seen[0] == hook.TORCH:
            said = "torch is loaded, and no optimizer of torch.optim has made a step"
        elif seen[0] == hook.PYTHON:
            said = "Python runs, and has not loaded torch"
        else:
            said = (
                "no Python with the counter runs in it (no Python at all, python -S, -I or -E, or "
                "PYTHONPATH was set anew)"
            )
        lines = " | ".join(output.newest(3))
        return (
            f"no step for {self.most_s:g} s: {said}. Is it the right script? Call models.hook.step "
            "after each step (docs/own-job.md), give a pattern of its output as `steps`, or a "
            "larger first_step_s"
            f". It said last: {lines or 'nothing'}"
        )

    @property
    def facts(self) -> dict:
        """What it says of itself, from its first step on."""
        return json.loads(self.memory[-hook.FACTS :])

    @property
    def done(self) -> int:
        return self.header[hook.DONE]

    @property
    def ran_ns(self) -> memoryview:
        """When its steps ended."""
        return self.times[: self.done]

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


def each(processes: list[psutil.Process], act: Callable) -> list:
    """What `act` gives for each of those that live."""
    results = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            results.append(act(process))
    return results
