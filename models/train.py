"""A training job: built, warmed up, started together with others, trained until told to stop.

The fork server calls `preload()` once, and in each process `main(spec, channel)` for one job, or
`together(specs, channels)` for several jobs in one process (models/streams.py). Events and
commands: workflow/collocation/member/protocol.py.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch

from models import streams
from models.clock import EventClock, HostClock
from models.data import open_dataset
from models.device import device_facts
from models.graph import GraphedStep
from models.inputs import open_input
from models.jobs import KINDS, class_of_kind
from models.jobs.base import Job
from models.member import BuildTimes, run_member, save_requests, save_steps
from models.process import forget_memory_peaks, memory_peaks, model_facts, set_up, synchronise
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec

PROGRESS_NS = 500_000_000

# Yields what a member waits for: objects with `ready(seconds)`, such as Channel and the clocks.
Waits = Iterator


class LossRecorder:
    """The loss of every `interval`-th step, copied to the host without waiting for it."""

    def __init__(self, interval: int, device: torch.device):
        self.interval, self._pinned = interval, device.type == "cuda"
        self.steps, self._losses, self._free_slots = array("q"), [], []

    def record(self, step: int, loss: torch.Tensor) -> None:
        """Record the loss if it is the turn of `step`; it is readable once that step has ended."""
        if step % self.interval:
            return
        if not self._free_slots:
            self._free_slots = list(torch.empty(256, pin_memory=self._pinned).unbind())
        slot = self._free_slots.pop()
        slot.copy_(loss, non_blocking=True)
        self.steps.append(step)
        self._losses.append(slot)

    def losses(self) -> list[float]:
        """The recorded losses; call it once all of these steps have ended."""
        return [float(loss) for loss in self._losses]


class Pause:
    """A wait until a moment (ns of the monotonic clock), or until a command before it."""

    def __init__(self, channel: Channel, until_ns: int):
        self.channel, self.until_ns = channel, until_ns

    def ready(self, seconds: float | None = 0.0) -> bool:
        remaining_s = max(self.until_ns - time.monotonic_ns(), 0) / 1e9
        has_command = self.channel.ready(remaining_s if seconds is None else 0.0)
        return has_command or remaining_s == 0


class TrainingMember:
    """One training job, from its build to its end; `phase` is build, warm, window or stop.

    Methods that may have to wait are generators: they yield what they wait for, and go on once
    that is ready, so that one thread can run several members. A member of several in one process
    works on a CUDA stream of its own, which its caller makes the current one.
    """

    tie_stream = None  # one CUDA stream for the clocks of all members of this process

    def __init__(self, spec: MemberSpec, channel: Channel):
        self.spec, self.channel = spec, channel
        self.stream = None
        self.phase = "build"
        self.step = 0  # counted from the first warm-up step
        self.go_step = self.go_ns = None
        self.stopping = False
        self.reported_ns = 0

    def run(self) -> Waits:
        self.build()
        for phase, part in (("warm", self.autotune), ("warm", self.warm_up), ("window", self.go)):
            if not self.stopping:
                yield from self.obey_next()  # "autotune", "warm", "go"; or "stop"
            if not self.stopping:
                self.phase = phase
                yield from part()
        self.phase = "stop"
        self.stop()

    def build(self) -> None:
        """Set up the process, the input and the model; send `built`."""
        spec, training = self.spec, self.spec.job
        times = BuildTimes(spec.forked_s)
        times.lap("fork")
        self.device = set_up(spec)
        if self.device.type == "cuda":
            TrainingMember.tie_stream = TrainingMember.tie_stream or torch.cuda.Stream()
            if spec.on_stream:
                self.stream = torch.cuda.Stream()
                torch.cuda.set_stream(self.stream)
        facts = device_facts(self.device, (spec.implementation.precision,))
        forget_memory_peaks(self.device)
        times.lap("device")
        dataset = open_dataset(training.dataset, training.dataset_folder)
        job_class = class_of_kind(spec.kind)
        job_class.check(spec, dataset)
        self.input = open_input(job_class, dataset, spec, self.device)
        self.epoch_steps = max(dataset.nominal_train_size // spec.batch_size, 1)
        synchronise(self.device)
        times.lap("data")
        self.job = job_class(spec, self.device)
        self.losses = LossRecorder(spec.loss_interval_steps, self.device)
        reserved_bytes = 2**20 * (training.reserved_memory_mb or 0)
        self.reserved_memory = torch.empty(reserved_bytes, dtype=torch.uint8, device=self.device)
        synchronise(self.device)
        times.lap("model")
        self.channel.emit(
            "built",
            **model_facts(self.job.model),
            resident_bytes=self.input.bytes,
            commands=["autotune", "hold"],
            stream=self.stream and self.stream.cuda_stream,
            seconds=times.seconds,
            **facts,
        )
        self.restart_clock()

    # -- the loop --------------------------------------------------------------------------

    def restart_clock(self) -> None:
        """Discard the times of all steps so far."""
        if self.spec.implementation.sync or self.device.type == "cpu":
            self.clock = HostClock()
        else:
            self.clock = EventClock(ahead_s=self.spec.launched_ahead_s, tie_stream=self.tie_stream)
        self.wait_ns = array("q")  # of each step, for its batch
        self.idle_ns = 0  # held, or without a trigger

    def train(self, steps: int | None) -> Waits:
        """Train so many steps, or without end for None; returns early when told to stop."""
        spec, clock = self.spec, self.clock
        pace_ns = 1e6 * (spec.job.pace_ms or 0)
        for _ in count() if steps is None else range(steps):
            if not clock.ready():
                yield clock
            if (yield from self.must_stop()):
                return
            if self.step % self.epoch_steps == 0:
                self.stepper.set_epoch(self.step // self.epoch_steps)
            began_ns = time.monotonic_ns()
            batch = self.source.batch(self.step)
            self.wait_ns.append(time.monotonic_ns() - began_ns)
            loss = self.stepper.step(batch)
            self.losses.record(self.step, loss)
            if spec.implementation.sync:
                loss.item()
            clock.mark()
            self.step += 1
            self.report()
            if spec.on_stream:  # This thread may run other members too.
                yield clock
            while began_ns + pace_ns > time.monotonic_ns():
                yield Pause(self.channel, int(began_ns + pace_ns))
                if (yield from self.must_stop()):
                    return

    def must_stop(self) -> Waits:
        """Obey a command if there is one; returns whether the member was told to stop."""
        if not self.stopping and (command := self.channel.poll()):
            yield from self.obey(command)
        return self.stopping

    def obey_next(self) -> Waits:
        """Wait for a command other than to save, and obey it."""
        while (command := self.channel.poll()) in (None, "save"):
            if command == "save":
                self.save()
            else:
                yield self.channel
        yield from self.obey(command)

    def obey(self, command: str) -> Waits:
        self.stopping = command == "stop"
        if command == "hold":
            yield from self.hold()
        elif command == "save":
            self.save()

    def save(self) -> None:
        """Write the times of the steps that have finished, for a look before the end."""
        save_steps(self.spec.folder, self.clock.end_ns, [], [], [])
        self.channel.emit("saved")

    def hold(self) -> Waits:
        """Finish the work under way, and wait for the command to resume or to stop."""
        began_ns = time.monotonic_ns()
        self.clock.finish()
        synchronise(self.device)
        self.channel.emit("held", steps=len(self.clock.end_ns))
        yield from self.obey_next()
        self.clock.resume()
        self.idle_ns += time.monotonic_ns() - began_ns

    def report(self) -> None:
        """Send `progress` if the window is open and the last event is old enough."""
        now = time.monotonic_ns()
        if self.go_ns is None or now - self.reported_ns < PROGRESS_NS:
            return
        self.reported_ns, steps = now, len(self.clock.end_ns)
        self.channel.emit("progress", steps=steps, samples=steps * self.spec.batch_size)

    # -- warm-up, window, end --------------------------------------------------------------

    def autotune(self) -> Waits:
        """Take the first step, or with a CUDA graph the steps until it is captured.

        In it, cuDNN tries kernels out in each of our threads and keeps the fastest, and functions
        are compiled. The other members rest meanwhile, unless the study says otherwise.
        """
        began = time.monotonic()
        self.stepper, self.source, steps = self.job, self.input, 1
        if self.spec.implementation.cuda_graph:
            self.stepper = self.source = GraphedStep(self.job, self.input, self.device)
            steps = self.stepper.first_steps
        yield from self.train(steps)
        self.clock.finish()
        self.channel.emit("autotuned", seconds=round(time.monotonic() - began, 4))

    def warm_up(self) -> Waits:
        """Train beside the others until memory is allocated and loaders are full.

        Takes at least `warmup_steps`, those of `autotune` included, and at least `warmup_s`.
        """
        self.restart_clock()
        end_s = time.monotonic() + self.spec.warmup_s
        yield from self.train(self.spec.warmup_steps - self.step)
        while not self.stopping and time.monotonic() < end_s:
            yield from self.train(1)
        self.clock.finish()
        if not self.stopping:
            self.channel.emit("warm", steps=self.step)

    def go(self) -> Waits:
        """Train until told to stop; after `window_steps`, if there are any, send `done`."""
        self.restart_clock()
        self.go_step, self.go_ns = self.step, time.monotonic_ns()
        self.reported_ns = self.go_ns
        self.channel.emit("started", t=self.go_ns)
        if self.spec.job.triggers:
            yield from self.retrain()
        else:
            yield from self.train(self.spec.window_steps)
        if not self.stopping:
            self.clock.finish()
            self.channel.emit("done", t=self.clock.end_ns[-1])
        while not self.stopping:
            yield from self.obey_next()

    def retrain(self) -> Waits:
        """Train some steps for each trigger, until told to stop.

        Triggers that arrive during training wait, and are served in their order.
        """
        for trigger_ns in self.trigger_times():
            while (now := time.monotonic_ns()) < trigger_ns:
                yield Pause(self.channel, trigger_ns)
                self.idle_ns += time.monotonic_ns() - now
                if (yield from self.must_stop()):
                    return
            yield from self.train(self.spec.job.triggers.steps)
            self.clock.finish()
            if self.stopping:
                return

    def trigger_times(self) -> Iterator[int]:
        """When triggers arrive, ns of the monotonic clock: a Poisson process, without end."""
        rng = np.random.default_rng(self.spec.arrival_seed)
        gap_ns = 1e9 / self.spec.job.triggers.per_s
        arrival_ns = self.go_ns
        while True:
            arrival_ns += rng.exponential(gap_ns)
            yield int(arrival_ns)

    def stop(self) -> None:
        """Wait for the work under way, write the files of step times, send `stopped`."""
        self.clock.finish()
        synchronise(self.device)
        wait_share = self.data_wait_share()
        if self.go_ns is None:
            self.restart_clock()
        end_ns = self.clock.end_ns
        samples = getattr(self.input, "samples", [])[self.go_step :]
        loss_steps, losses = self.losses.steps, self.losses.losses()
        save_steps(self.spec.folder, end_ns, self.wait_ns, loss_steps, losses, samples)
        if self.spec.job.triggers and self.go_ns:
            self.save_triggers()
        # Torch measures the memory of the whole process, which may have several members.
        measurable = self.device.type == "cuda" and not self.spec.on_stream
        self.channel.emit(
            "stopped", steps=len(end_ns), **memory_peaks(measurable), data_wait_share=wait_share
        )

    def data_wait_share(self) -> float | None:
        """The share of training time spent waiting for batches; None for resident input."""
        if self.go_ns is None or self.spec.job.input.mode == "resident":
            return None
        return sum(self.wait_ns) / (time.monotonic_ns() - self.go_ns - self.idle_ns)

    def save_triggers(self) -> None:
        """Write requests.npz: a trigger is a request for one token, its last step that token."""
        now, steps = time.monotonic_ns(), self.spec.job.triggers.steps
        trained_ns = self.clock.end_ns[steps - 1 :: steps]
        arrivals_ns = []
        for trigger_ns in self.trigger_times():
            if trigger_ns >= now:
                break
            arrivals_ns.append(trigger_ns)
        trained = [int(number < len(trained_ns)) for number in range(len(arrivals_ns))]
        wanted = [1] * len(arrivals_ns)
        save_requests(self.spec.folder, arrivals_ns, wanted, trained, trained_ns)


def preload() -> None:
    """Import what members of all kinds need."""
    for kind in KINDS:
        class_of_kind(kind)


def main(spec: MemberSpec, channel: Channel) -> int:
    """Run one member under the commands of the channel; returns 0 after `stopped`."""
    return run_member(_member, spec, channel)


def _member(spec: MemberSpec, channel: Channel):
    kind = class_of_kind(spec.kind)
    return (TrainingMember if issubclass(kind, Job) else kind)(spec, channel)


def together(specs: Sequence[MemberSpec], channels: Sequence[Channel]) -> int:
    """Run several training jobs in this process, each on a CUDA stream of its own.

    Each sends its end on its channel. Returns 0 once all have ended.
    """
    pairs = zip(specs, channels, strict=True)
    streams.drive([TrainingMember(spec, channel) for spec, channel in pairs])
    return 0
