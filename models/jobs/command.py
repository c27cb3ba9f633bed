"""The kind `command`: somebody's own training script, as a child of the training process.

Its steps are those of its optimizer (models/counter), or it calls models/hook.py after each, or
lines of its output that match a pattern tell of them. The training process starts it, holds it at
the barrier, writes down when its steps ended, and ends it, with all that it started.
"""

import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from models.clock import save_steps
from models.jobs.output_steps import Output
from models.jobs.script_output import ScriptOutput
from models.jobs.script_steps import Hooked, each
from models.process import says_out_of_memory
from models.protocol import Channel
from workflow.collocation.process_lifetime import end_with_parent

PROGRESS_S = 0.5
LOOK_S = 0.01  # between looks at a script that is on its way to the barrier
DRAIN_S = 0.2  # for work in flight of a script that was stopped
GRACE_S = 5.0  # for the script to end by itself after SIGTERM
KILLS = 3
TAIL = 20  # lines of output in which the reason of an end is sought
COUNTER = Path(__file__).resolve().parents[1] / "counter"  # a folder with a sitecustomize
PR_SET_CHILD_SUBREAPER = 36
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Stopped(Exception):
    """The conductor said stop."""


class Command:
    """A script between `build` and `stop`; `phase` says where it is."""

    def __init__(self, spec: dict, channel: Channel):
        self.spec, self.channel, self.phase = spec, channel, "build"
        self.child: subprocess.Popen | None = None
        self.output = ScriptOutput()
        self.go_step: int | None = None

    def run(self) -> None:
        try:
            with suppress(Stopped):
                self.build()
                self.phase = "warm"
                self.warm_up()
                while self.look(None) != "go":
                    pass
                self.phase = "window"
                self.go()
            self.phase = "stop"
            self.stop()
        finally:
            if self.child:
                self.end()

    def build(self) -> None:
        """Start the script and wait for its first step."""
        spec, laps = self.spec, [self.spec["forked_s"], time.monotonic()]
        if spec.get("cores"):
            os.sched_setaffinity(0, spec["cores"])
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # a double fork leaves us nobody
        self.steps = (Hooked if spec["steps"] == "auto" else Output)(spec)
        self.start()
        self.until(lambda: self.steps.done)
        laps.append(time.monotonic())
        took = [round(later - earlier, 4) for earlier, later in pairwise(laps)]
        self.channel.emit(
            "built",
            **self.steps.facts,
            script=self.child.pid,
            pid=os.getpid(),
            threads=spec["threads"],
            cores=sorted(os.sched_getaffinity(0)),
            commands=["hold"],
            seconds=dict(zip(("fork", "script"), took, strict=True)),
        )

    def start(self) -> None:
        spec, us = self.spec, os.getpid()
        words = list(spec["run"])
        for name in ("seed", "batch_size"):
            words = [word.replace(f"{{{name}}}", str(spec[name])) for word in words]
        if words[0] in ("python", "python3"):
            words[0] = sys.executable
        environment = dict(os.environ)
        for ours in ("PYTHONSAFEPATH", "PYTORCH_NVML_BASED_CUDA_CHECK"):
            environment.pop(ours, None)  # the first would hide modules in the script's own folder
        path = [str(COUNTER), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        self.child = subprocess.Popen(
            words,
            cwd=spec["directory"],
            env=environment | dict.fromkeys(THREADS, str(spec["threads"])) | self.steps.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output.theirs,
            stderr=self.output.theirs,
            pass_fds=spec.get("kept", ()),
            preexec_fn=lambda: end_with_parent(us),  # in our process group
        )
        self.ended = os.pidfd_open(self.child.pid)
        self.steps.child = self.child
        os.close(self.output.theirs)

    def look(self, seconds: float | None) -> str | None:
        """Wait at most so long for news; a command, if that is what came.

        Raises Stopped when told to stop, and RuntimeError, with what it said last, if the script
        has ended.
        """
        news = select.poll()
        for source in (self.channel.commands, self.ended, self.output.source):
            if source is not None:
                news.register(source, select.POLLIN)
        news.poll(None if seconds is None else seconds * 1000)
        for line in self.output.read():
            self.steps.see(line)
        if self.child.poll() is not None:
            raise RuntimeError(self.how_it_ended())
        command = self.channel.poll()
        if command == "stop":
            raise Stopped
        return command

    def how_it_ended(self) -> str:
        """One line: out of memory if its last words say so."""
        self.output.read()
        lines = self.output.newest(TAIL)
        for line in lines:
            if says_out_of_memory(line):
                return f"the script: {line}"
        if (code := self.child.returncode) == 0:
            said = f"the script ended after {self.steps.done} steps, before it was told to"
            return f"{said}; give it more to do than it can finish"
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"the script ended {how}: {lines[-1] if lines else 'without a word'}"

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until that is so. Raises RuntimeError if no step comes in the time for one."""
        while not reached():
            self.look(LOOK_S)
            if why := self.steps.why_none(self.output):
                raise RuntimeError(why)

    def warm_up(self) -> None:
        """At least `warmup_steps`, until `warmup_s` have passed since the first; then hold it."""
        steps, least = self.steps, self.spec["warmup_steps"]
        until = time.monotonic() + (self.spec.get("warmup_s") or 0)
        self.until(lambda: steps.done >= least and time.monotonic() >= until)
        self.until(steps.hold)
        self.look(0)
        pause_s = float(np.diff(steps.ran_ns).max(initial=0)) / 1e9
        self.channel.emit("warm", steps=steps.done, pause_s=pause_s)

    def go(self) -> None:
        """Steps until told to stop, or as many as its `work` is, of which `done` tells."""
        steps, work = self.steps, self.spec.get("work")
        self.go_step, told, done, made = steps.done, time.monotonic(), False, 0
        rose_ns = time.monotonic_ns()
        self.channel.emit("started", t=time.monotonic_ns())
        steps.go(work)
        while True:
            if self.look(PROGRESS_S / 5) == "hold":
                self.hold()
            if (now := steps.done - self.go_step) > made:
                made, rose_ns = now, time.monotonic_ns()
            if not done and time.monotonic() - told >= PROGRESS_S:
                told, samples = time.monotonic(), made * self.spec["batch_size"]
                self.channel.emit("progress", steps=made, samples=samples, t=rose_ns)
            if not done and made == work:
                done = True
                self.channel.emit("done", t=steps.arrays(steps.done - 1, steps.done)[0][0])

    def hold(self) -> None:
        """Have the script rest until it is told to resume."""
        self.until(self.steps.hold)
        self.channel.emit("held", steps=self.steps.done - self.go_step)
        while self.look(None) != "resume":
            pass
        self.steps.go(None)

    def stop(self) -> None:
        """End the script, write steps.npz, say what was done."""
        end = self.steps.done
        self.rest()
        self.end()
        first = end if self.go_step is None else self.go_step
        end_ns, *losses = self.steps.arrays(first, end)
        save_steps(self.spec["folder"], end_ns, [0] * len(end_ns), *losses)
        self.channel.emit("stopped", steps=len(end_ns))

    def rest(self) -> None:
        """Hold the script again and let the GPU finish its work: under MPS, a process that ends
        with work in flight can take others with it.
        """
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and self.child.poll() is None:
            if self.steps.hold():
                time.sleep(DRAIN_S)
                return
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End the script and what it started: by SIGTERM, then for sure."""
        us = psutil.Process()
        running = us.children(recursive=True)
        each(running, psutil.Process.terminate)
        each(running, psutil.Process.resume)
        until = time.monotonic() + GRACE_S
        while running and time.monotonic() < until:
            _, running = psutil.wait_procs(running, timeout=LOOK_S)
            self.output.read()  # what it says last must not hold it
        for _ in range(KILLS):  # what is killed may just have started another
            left = us.children(recursive=True)
            each(left, psutil.Process.kill)
            psutil.wait_procs(left, timeout=GRACE_S)
        self.child.wait()
