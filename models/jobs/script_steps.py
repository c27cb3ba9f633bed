"""Steps that a script, or its optimizer, reports through models/hook.py."""

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
from workflow.collocation.member.spec import MemberSpec

FOREVER = 1 << 62


class HookedSteps:
    """Steps that models/hook.py writes into memory which this process shares with the script.

    `environment`: the variables by which the script finds that memory.
    """

    def __init__(self, spec: MemberSpec):
        memory_fd = os.memfd_create("steps")
        os.truncate(memory_fd, hook.SIZE)
        self.memory, self.loss_interval = mmap.mmap(memory_fd, hook.SIZE), spec.loss_interval_steps
        self.header, self.times, self.losses = hook.views(self.memory)
        script_gate, self.gate = os.pipe()
        self.header[hook.LIMIT], self.header[hook.EVERY] = FOREVER, self.loss_interval
        self.header[hook.SYNC] = int(spec.implementation.sync)
        self.header[hook.AHEAD] = round(1e9 * (spec.launched_ahead_s or 0))
        self.step_timeout_s = spec.job.step_timeout_s
        self._last_progress, self._progressed_s = None, 0.0
        self.environment = {hook.VARIABLE: f"{os.getpid()} {memory_fd} {script_gate}"}

    def begin_run(self) -> None:
        """Forget how far the last run came, but neither its steps nor that it is to be held."""
        self.header[hook.STAGE] = self.header[hook.HELD] = 0
        self._progressed_s = time.monotonic()

    def take_line(self, line: str) -> None:
        """Ignore a line of output: it contains no steps."""

    def problem(self, output: ScriptOutput) -> str | None:
        """Why no step came for too long, and what to do about it; None while steps come."""
        stage, now = self.header[hook.STAGE], time.monotonic()
        if (stage, self.done) != self._last_progress:
            self._last_progress, self._progressed_s = (stage, self.done), now
        if now - self._progressed_s < self.step_timeout_s:
            return None
        if stage == hook.CAPTURED:
            reason = "its optimizer was captured in a CUDA graph, and a replay tells nobody"
        elif self.done:
            reason = f"after {self.done} steps no optimizer has made another"
        elif stage == hook.TORCH:
            reason = "torch is loaded, and no optimizer of torch.optim has made a step"
        elif stage == hook.PYTHON:
            reason = "Python runs, and has not loaded torch"
        else:
            reason = (
                "no Python with the counter runs in it (no Python at all, python -S, -I or -E, or "
                "PYTHONPATH was set anew)"
            )
        lines = " | ".join(output.newest(3))
        return (
            f"no step for {self.step_timeout_s:g} s: {reason}. Is it the right script? Call "
            "models.hook.step after each step (docs/own-job.md), give a pattern of its output as "
            f"`steps`, or a larger first_step_s. It said last: {lines or 'nothing'}"
        )

    @property
    def facts(self) -> dict:
        """What the script's process reports of itself and its device, from its first step on."""
        return json.loads(self.memory[-hook.FACTS :]) if self.done else {}

    @property
    def done(self) -> int:
        """Steps made so far."""
        return self.header[hook.DONE]

    @property
    def ran_ns(self) -> memoryview:
        """When each step ended, ns of the monotonic clock."""
        return self.times[: self.done]

    def hold(self) -> bool:
        """Have the script wait in its next step; True once it waits."""
        self.header[hook.LIMIT] = 0
        return bool(self.header[hook.HELD])

    def go(self, window_steps: int | None) -> None:
        """Let the script go on, for so many steps if they are given."""
        self.header[hook.LIMIT] = self.done + window_steps if window_steps else FOREVER
        self.header[hook.HELD] = 0
        os.write(self.gate, b"g")

    def arrays(self, first: int, end: int) -> tuple:
        """Times of steps first ≤ step < end; step numbers and values of all losses before `end`."""
        candidates = range(0, end, self.loss_interval)
        loss_steps = [step for step in candidates if not np.isnan(self.losses[step])]
        return self.times[first:end], loss_steps, [self.losses[step] for step in loss_steps]


def act_on_living(processes: list[psutil.Process], act: Callable) -> list:
    """The return values of `act` for those of the processes that live."""
    answers = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            answers.append(act(process))
    return answers
