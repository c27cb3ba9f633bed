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
# A script works while its processes use this share of a core, or one of them compiles. They are
# looked at LOOKS times in the time for a step; if they work, it is PATIENCE times as long.
BUSY_CORE = 0.1
COMPILERS = {"cc1", "cc1plus", "cicc", "g++", "gcc", "ninja", "nvcc", "ptxas", "triton"}
LOOKS, PATIENCE = 10, 10
# Scripts that are trained by torch may load the others too, for their metrics or their logs.
NAMED_BESIDE_TORCH = ("spacy", "lomo_optim")


class HookedSteps:
    """Steps that models/hook.py writes into memory which this process shares with the script.

    `descriptors`: that memory and its gate, by which the script is held.
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
        self._last_progress = None
        self.descriptors = (memory_fd, script_gate)

    def environment(self, pid: int) -> dict[str, str]:
        """The variables by which the script finds them. pid: of a process that has them open."""
        return {hook.VARIABLE: " ".join(map(str, (pid, *self.descriptors)))}

    def begin_run(self) -> None:
        """Forget how far the last run came, but neither its steps nor that it is to be held."""
        self.header[hook.REACHED] = self.header[hook.HELD] = 0
        self._last_progress = None

    def take_line(self, line: str) -> None:
        """Ignore a line of output: it contains no steps."""

    def problem(self, output: ScriptOutput) -> str | None:
        """Why no step came for too long, and what to do about it; None while one may still come."""
        reached, now = self.header[hook.REACHED], time.monotonic()
        progress = (reached, self.done, self.header[hook.OTHERS])
        if progress != self._last_progress:
            self._last_progress, self._cpu_s = progress, None
            self._progressed_s = self._worked_s = self._looked_s = now
        if now - self._looked_s >= self.step_timeout_s / LOOKS:
            self._look_at_processes(now)
        library = None if self.done else _uncounted_library(reached)
        began_s = self._progressed_s if library else self._worked_s
        waited_s = now - self._progressed_s
        if now - began_s < self.step_timeout_s and waited_s < PATIENCE * self.step_timeout_s:
            return None
        if reached & hook.CAPTURED:
            reason = "its optimizer was captured in a CUDA graph, and a replay tells nobody"
        elif self.done:
            reason = f"after {self.done} steps no optimizer has made another"
        elif library:
            reason = f"it has loaded {library}, whose steps are not counted"
        elif reached & hook.TORCH:
            reason = "torch is loaded, and no optimizer of torch.optim, fastai or Keras has stepped"
        elif reached & hook.PYTHON:
            reason = "Python runs, and has not loaded torch"
        else:
            reason = (
                "no Python with the counter runs in it (no Python at all, python -S, -I or -E, or "
                "PYTHONPATH was set anew)"
            )
        lines = " | ".join(output.newest(3))
        return (
            f"no step for {waited_s:.0f} s: {reason}. Is it the right script? Call "
            "models.hook.step after each step (docs/own-job.md), give a pattern of its output as "
            f"`steps`, or a larger first_step_s. It said last: {lines or 'nothing'}"
        )

    def _look_at_processes(self, now: float) -> None:
        """Note whether the script's processes have worked since the last look."""
        processes = psutil.Process().children(recursive=True)
        cpu_s = sum(act_on_living(processes, lambda process: sum(process.cpu_times()[:4])))
        compiles = not COMPILERS.isdisjoint(act_on_living(processes, psutil.Process.name))
        used_s = 0 if self._cpu_s is None else cpu_s - self._cpu_s
        if compiles or used_s > BUSY_CORE * (now - self._looked_s):
            self._worked_s = now
        self._looked_s, self._cpu_s = now, cpu_s

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


def _uncounted_library(reached: int) -> str | None:
    """A library that the script has loaded, and by which it may train uncounted."""
    names = NAMED_BESIDE_TORCH if reached & hook.TORCH else hook.LIBRARIES
    loaded = [name for name in names if reached & hook.LIBRARY << hook.LIBRARIES.index(name)]
    return loaded[0] if loaded else None


def act_on_living(processes: list[psutil.Process], act: Callable) -> list:
    """The return values of `act` for those of the processes that live."""
    answers = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            answers.append(act(process))
    return answers
