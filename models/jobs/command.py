"""The kind `command`: a training script of the user, run as a child of the member process.

Steps are counted by its optimizer (models/counter), by its calls of models/hook.py, or by lines of
its output that match a pattern. The member starts the script, holds it at the barrier, records when
its steps ended, and ends it with all processes that it started.
"""

import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from models.jobs.output_steps import OutputSteps
from models.jobs.script_output import ScriptOutput
from models.jobs.script_steps import HookedSteps, act_on_living
from models.member import BuildTimes, save_steps
from workflow.collocation.member.failures import says_out_of_memory
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.member.view import View
from workflow.collocation.process_lifetime import end_with_parent

PROGRESS_S = 0.5
LOOK_S = 0.01  # between looks at a script on its way to the barrier
DRAIN_S = 0.2  # for work in flight of a script that was stopped
GRACE_S = 5.0  # for the script to end by itself after SIGTERM
KILLS = 3
TAIL_LINES = 20  # of output, in which the reason of an end is sought
COUNTER = Path(__file__).resolve().parents[1] / "counter"  # a folder with a sitecustomize
PR_SET_CHILD_SUBREAPER = 36
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Stopped(Exception):
    """The conductor sent `stop`."""


class ScriptMember:
    """A script, from its start to its end; `phase` is build, warm, window or stop."""

    def __init__(self, spec: MemberSpec, channel: Channel):
        self.spec, self.channel, self.phase = spec, channel, "build"
        self.child: subprocess.Popen | None = None
        self.output, self.view = ScriptOutput(), View(spec.job)
        self.starts_ns: list[int] = []
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
        """Start the script, wait for its first step, send `built`."""
        spec = self.spec
        times = BuildTimes(spec.forked_s)
        times.lap("fork")
        os.sched_setaffinity(0, spec.cores)
        # Orphans of the script become our children, so that they can be ended too.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.steps = (HookedSteps if spec.job.steps == "auto" else OutputSteps)(spec)
        self.start()
        self.wait_until(lambda: self.steps.done)
        times.lap("script")
        self.channel.emit(
            "built",
            **self.steps.facts,
            script=self.child.pid,
            pid=os.getpid(),
            threads=spec.threads,
            cores=sorted(os.sched_getaffinity(0)),
            commands=["hold"],
            seconds=times.seconds,
        )

    def start(self) -> None:
        """Start a run of the script."""
        spec, member_pid = self.spec, os.getpid()
        self.steps.begin_run()
        self.done_at_start = self.steps.done
        folder = self.view.begin_run()
        self.starts_ns.append(time.monotonic_ns())
        command = []
        for word in spec.job.command:
            word = word.replace("{seed}", str(spec.seed))
            command.append(word.replace("{batch_size}", str(spec.batch_size)))
        if command[0] in ("python", "python3"):
            command[0] = sys.executable
        command[0] = self.view.program(command[0])
        variables, inherited = self.environment(), spec.lock_descriptors
        if self.view.user_namespace:
            inherited += self.steps.descriptors
        self.child = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=self.output.script_end,
            stderr=self.output.script_end,
            pass_fds=inherited,
            preexec_fn=lambda: self.become_script(member_pid, command, variables),
        )
        self.child_pidfd = os.pidfd_open(self.child.pid)
        self.steps.child = self.child

    def become_script(self, member_pid: int, command: list[str], variables: dict) -> None:
        """Turn this new process, which stays in our process group, into that of the script."""
        try:
            self.view.enter()
            end_with_parent(member_pid)
            if self.view.user_namespace:  # The script finds the memory of its steps in itself.
                variables |= self.steps.environment(os.getpid())
                os.execvpe(command[0], command, variables)
        except OSError as error:
            os.write(2, f"it did not start: {error}\n".encode())
            os._exit(1)

    def environment(self) -> dict[str, str]:
        """The variables that the script runs with."""
        variables = dict(os.environ)
        # PYTHONSAFEPATH would hide modules in the script's own folder.
        for name in ("PYTHONSAFEPATH", "PYTORCH_NVML_BASED_CUDA_CHECK"):
            variables.pop(name, None)
        inherited_path = variables.get("PYTHONPATH")
        path = [str(COUNTER), inherited_path] if inherited_path else [str(COUNTER)]
        variables["PYTHONPATH"] = os.pathsep.join(path)
        variables |= dict.fromkeys(THREADS, str(self.spec.threads))
        return variables | self.steps.environment(os.getpid())

    def look(self, seconds: float | None) -> str | None:
        """Wait up to `seconds` (None: for ever) for news; returns a command, if one came.

        Starts the script again if it has ended and may. Raises Stopped for the command to stop,
        and RuntimeError, with the script's last words, if the script has ended.
        """
        poll = select.poll()
        for source in (self.channel.commands, self.child_pidfd, self.output.our_end):
            poll.register(source, select.POLLIN)
        if self.channel.ready():  # Two commands may have come at once.
            seconds = 0.0
        poll.poll(None if seconds is None else seconds * 1000)
        has_ended = self.child.poll() is not None
        for line in self.output.read_lines():
            self.steps.take_line(line)
        if has_ended:
            made_steps = self.steps.done > self.done_at_start
            if not (self.spec.job.restarts and self.child.returncode == 0 and made_steps):
                raise RuntimeError(self.end_reason())
            self.end()  # What it left running could keep the memory of its steps locked.
            os.close(self.child_pidfd)
            self.start()
            self.channel.emit("restarted", script=self.child.pid)
        command = self.channel.poll()
        if command == "stop":
            raise Stopped
        return command

    def end_reason(self) -> str:
        """Why the script ended, in one line."""
        self.output.read_lines()
        lines = self.output.newest(TAIL_LINES)
        for line in lines:
            if says_out_of_memory(line):
                return f"the script: {line}"
        code = self.child.returncode
        if code == 0:
            reason = f"the script ended after {self.steps.done} steps"
            if self.spec.job.restarts:
                return f"{reason}, and its last run made none"
            return f"{reason}, before it was told to; give it more to do than it can finish"
        cause = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"the script ended {cause}: {lines[-1] if lines else 'without a word'}"

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached()`. Raises RuntimeError if no step comes in the time for one."""
        while not is_reached():
            self.look(LOOK_S)
            if problem := self.steps.problem(self.output):
                raise RuntimeError(problem)

    def warm_up(self) -> None:
        """Let the script make its warm-up steps, then hold it; send `warm`."""
        steps, spec = self.steps, self.spec
        end_s = time.monotonic() + spec.warmup_s
        self.wait_until(lambda: steps.done >= spec.warmup_steps and time.monotonic() >= end_s)
        self.wait_until(steps.hold)
        self.look(0)  # Take in the lines that came before it stopped.
        pause_s = float(np.diff(steps.ran_ns).max(initial=0)) / 1e9
        self.channel.emit("warm", steps=steps.done, pause_s=pause_s)

    def go(self) -> None:
        """Let the script train until told to stop; after `window_steps`, if any, send `done`."""
        steps, window_steps = self.steps, self.spec.window_steps
        self.go_step, reported_s = steps.done, time.monotonic()
        finished, trained, newest_ns = False, 0, time.monotonic_ns()
        self.channel.emit("started", t=time.monotonic_ns())
        steps.go(window_steps)
        while True:
            command = self.look(PROGRESS_S / 5)
            if command == "hold":
                self.hold()
            elif command == "save":
                self.save()
            window_done = steps.done - self.go_step
            if window_done > trained:
                trained, newest_ns = window_done, time.monotonic_ns()
            if not finished and time.monotonic() - reported_s >= PROGRESS_S:
                reported_s, samples = time.monotonic(), trained * self.spec.batch_size
                self.channel.emit("progress", steps=trained, samples=samples, t=newest_ns)
            if not finished and trained == window_steps:
                finished = True
                end_ns, _, _ = steps.arrays(steps.done - 1, steps.done)
                self.channel.emit("done", t=end_ns[0])

    def hold(self) -> None:
        """Have the script wait until the command to resume."""
        self.wait_until(self.steps.hold)
        self.channel.emit("held", steps=self.steps.done - self.go_step)
        while (command := self.look(None)) != "resume":
            if command == "save":
                self.save()
        self.steps.go(None)

    def save(self) -> None:
        """Write the times of the steps so far, for a look before the end."""
        end_ns, _, _ = self.steps.arrays(self.go_step, self.steps.done)
        save_steps(self.spec.folder, end_ns, [], [], [])
        self.channel.emit("saved")

    def stop(self) -> None:
        """End the script, write steps.npz, send `stopped`."""
        end_step = self.steps.done
        self.drain()
        self.end()
        first_step = end_step if self.go_step is None else self.go_step
        end_ns, loss_steps, losses = self.steps.arrays(first_step, end_step)
        save_steps(self.spec.folder, end_ns, [0] * len(end_ns), loss_steps, losses)
        self.channel.emit(
            "stopped",
            steps=len(end_ns),
            starts_ns=self.starts_ns,
            optimizer=self.steps.facts.get("optimizer"),
        )

    def drain(self) -> None:
        """Hold the script and let the GPU finish its work.

        Under MPS, a process that ends with work in flight can end others too.
        """
        end_s = time.monotonic() + GRACE_S
        while time.monotonic() < end_s and self.child.poll() is None:
            if self.steps.hold():
                time.sleep(DRAIN_S)
                return
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End the script and all that it started: by SIGTERM, then by SIGKILL."""
        member = psutil.Process()
        running = member.children(recursive=True)
        act_on_living(running, psutil.Process.terminate)
        act_on_living(running, psutil.Process.resume)
        end_s = time.monotonic() + GRACE_S
        while running and time.monotonic() < end_s:
            _, running = psutil.wait_procs(running, timeout=LOOK_S)
            self.output.read_lines()  # A full terminal must not block its last words.
        for _ in range(KILLS):  # A killed process may just have started another.
            running = member.children(recursive=True)
            act_on_living(running, psutil.Process.kill)
            psutil.wait_procs(running, timeout=GRACE_S)
        self.child.wait()
