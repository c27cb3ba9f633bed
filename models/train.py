"""A training job: built, warmed up, started with the others, trained until told to stop.

The fork server calls `preload()` once and in each process `main(spec, channel)`, which knows
nothing of those that share the device with it, or `together(specs, channels)` (models/streams.py).
Events and commands: models/protocol.py.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import count, takewhile

import numpy as np
import torch

from models import streams
from models.clock import save_requests, save_steps, step_clock
from models.data import open_dataset
from models.device import device_facts
from models.graph import GraphedStep
from models.inputs import open_input
from models.jobs import find
from models.jobs.base import Job
from models.process import explain, memory_peaks, set_up, synchronise, told_of
from models.protocol import Channel

PROGRESS_NS = 500_000_000

Waits = Iterator  # of what is waited for: `ready(seconds)`, as Channel and the clocks have it


class Losses:
    """The loss of every k-th step, copied to the host without waiting for it."""

    def __init__(self, every: int, device: torch.device):
        self.every, self._pinned = every, device.type == "cuda"
        self.steps, self._values, self._slots = array("q"), [], []

    def keep(self, step: int, loss: torch.Tensor) -> None:
        """Keep `loss` if `step` is one of those; it is readable once that step has finished."""
        if step % self.every:
            return
        if not self._slots:
            self._slots = list(torch.empty(256, pin_memory=self._pinned).unbind())
        slot = self._slots.pop()
        slot.copy_(loss, non_blocking=True)
        self.steps.append(step)
        self._values.append(slot)

    def values(self) -> list[float]:
        """The losses kept, once all of these steps have finished."""
        return [float(value) for value in self._values]


class Pause:
    """Until a moment (ns of the monotonic clock), or a command before it."""

    def __init__(self, channel: Channel, until_ns: int):
        self.channel, self.until_ns = channel, until_ns

    def ready(self, seconds: float | None = 0.0) -> bool:
        left = max(self.until_ns - time.monotonic_ns(), 0) / 1e9
        return self.channel.ready(left if seconds is None else 0.0) or left == 0


class Member:
    """A training job between `build` and `stop`; `phase` says where it is.

    Each part of it that may have to wait yields what it waits for and goes on once that is ready,
    so that one thread can drive several. own_stream: it works on a CUDA stream of its own, which
    whoever drives it makes the current one.
    """

    ties = None  # a CUDA stream for the clocks of all members of this process

    def __init__(self, spec: dict, channel: Channel, own_stream: bool = False):
        self.spec, self.channel, self.own_stream = spec, channel, own_stream
        self.stream = None
        self.phase = "build"
        self.step = 0  # from the first warm-up step
        self.go_step = self.go_ns = None
        self.stopping = False
        self.reported_ns = 0

    def run(self) -> Waits:
        self.build()
        for phase, part in (("warm", self.autotune), ("warm", self.warm_up), ("window", self.go)):
            if not self.stopping:
                yield from self.command()  # "autotune", "warm", "go"; or "stop"
            if not self.stopping:
                self.phase = phase
                yield from part()
        self.phase = "stop"
        self.stop()

    def build(self) -> None:
        spec, laps = self.spec, [self.spec["forked_s"], time.monotonic()]
        self.device = set_up(spec)
        if self.device.type == "cuda":
            Member.ties = Member.ties or torch.cuda.Stream()
            if self.own_stream:
                self.stream = torch.cuda.Stream()
                torch.cuda.set_stream(self.stream)
        facts = device_facts(self.device)
        laps.append(time.monotonic())
        dataset = open_dataset(spec["data"]["name"], spec["data"]["path"])
        kind = find(spec["kind"])
        kind.check(spec, dataset)
        self.input = open_input(kind, dataset, spec, self.device)
        self.epoch_steps = max(dataset.nominal_train_size // spec["batch_size"], 1)
        synchronise(self.device)
        laps.append(time.monotonic())
        self.job = kind(spec, self.device)
        self.losses = Losses(spec["loss_every"], self.device)
        reserved = 2**20 * (spec.get("reserved_memory_mb") or 0)
        self.reserved_memory = torch.empty(reserved, dtype=torch.uint8, device=self.device)
        synchronise(self.device)
        laps.append(time.monotonic())
        took = np.diff(laps).round(4).tolist()
        self.channel.emit(
            "built",
            **told_of(self.job.model),
            resident_bytes=self.input.bytes,
            commands=["autotune", "hold"],
            stream=self.stream and self.stream.cuda_stream,
            seconds=dict(zip(("fork", "device", "data", "model"), took, strict=True)),
            **facts,
        )
        self.fresh_record()

    # -- the loop --------------------------------------------------------------------------

    def fresh_record(self) -> None:
        """Forget the times of steps so far."""
        ahead_s = self.spec.get("in_flight_s")
        self.clock = step_clock(self.device, self.spec["sync"], ahead_s, self.ties)
        self.wait_ns, self.held_ns = array("q"), 0

    def train(self, steps: int | None) -> Waits:
        """Train that many steps, None: for ever; returns early when told to stop."""
        stepper = self.stepper
        clock, waited, sync = self.clock, self.wait_ns, self.spec["sync"]
        pace_ns = 1e6 * (self.spec.get("pace_ms") or 0)
        for _ in count() if steps is None else range(steps):
            if not clock.ready():
                yield clock
            if (yield from self.told_to_stop()):
                return
            if self.step % self.epoch_steps == 0:
                stepper.set_epoch(self.step // self.epoch_steps)
            began = time.monotonic_ns()
            batch = self.source.batch(self.step)
            waited.append(time.monotonic_ns() - began)
            loss = stepper.step(batch)
            self.losses.keep(self.step, loss)
            if sync:
                loss.item()
            clock.mark()
            self.step += 1
            self.report()
            if self.own_stream:  # whose thread may drive others
                yield clock
            while began + pace_ns > time.monotonic_ns():
                yield Pause(self.channel, int(began + pace_ns))
                if (yield from self.told_to_stop()):
                    return

    def told_to_stop(self) -> Waits:
        """Whether it was; rests while it is to be held."""
        if not self.stopping and (command := self.channel.poll()):
            yield from self.heed(command)
        return self.stopping

    def command(self) -> Waits:
        """Wait for a command, and heed it."""
        while (command := self.channel.poll()) is None:
            yield self.channel
        yield from self.heed(command)

    def heed(self, command: str) -> Waits:
        self.stopping = command == "stop"
        if command == "hold":
            yield from self.hold()

    def hold(self) -> Waits:
        """Finish what is under way, and block until told to go on, or to stop."""
        began = time.monotonic_ns()
        self.clock.finish()
        synchronise(self.device)
        self.channel.emit("held", steps=len(self.clock.end_ns))
        yield from self.command()
        self.clock.resume()
        self.held_ns += time.monotonic_ns() - began

    def report(self) -> None:
        """A progress event, if the last one is old enough and the window is open."""
        now = time.monotonic_ns()
        if self.go_ns is None or now - self.reported_ns < PROGRESS_NS:
            return
        self.reported_ns, steps = now, len(self.clock.end_ns)
        self.channel.emit("progress", steps=steps, samples=steps * self.spec["batch_size"])

    # -- warm-up, window, end --------------------------------------------------------------

    def autotune(self) -> Waits:
        """The first step, of a graph the steps until it is captured, while the others rest: in it
        cuDNN chooses kernels for each of our threads, as a rule those that are fastest then, and
        what is to be compiled is.
        """
        began = time.monotonic()
        self.stepper, self.source, steps = self.job, self.input, 1
        if self.spec["cuda_graph"]:
            self.stepper = self.source = GraphedStep(self.job, self.input, self.device)
            steps = self.stepper.first_steps
        yield from self.train(steps)
        self.clock.finish()
        self.channel.emit("autotuned", seconds=round(time.monotonic() - began, 4))

    def warm_up(self) -> Waits:
        """The first steps beside the others, untimed by them: allocation, filling of the loaders.

        At least `warmup_steps`, those of `autotune` included, until `warmup_s` have passed.
        """
        self.fresh_record()
        until = time.monotonic() + (self.spec.get("warmup_s") or 0)
        yield from self.train(self.spec["warmup_steps"] - self.step)
        while not self.stopping and time.monotonic() < until:
            yield from self.train(1)
        self.clock.finish()
        if self.stopping:
            return
        self.channel.emit("warm", steps=self.step)

    def go(self) -> Waits:
        """Steps until told to stop, or as many as its `work` is, of which `done` tells."""
        self.fresh_record()
        self.go_step, self.go_ns = self.step, time.monotonic_ns()
        self.reported_ns = self.go_ns
        self.channel.emit("started", t=self.go_ns)
        if triggers := self.spec.get("triggers"):
            yield from self.retrain(**triggers)
        else:
            yield from self.train(self.spec.get("work"))
        if not self.stopping:
            self.clock.finish()
            self.channel.emit("done", t=self.clock.end_ns[-1])
        while not self.stopping:
            yield from self.command()

    def retrain(self, per_s: float, steps: int) -> Waits:
        """That many steps for each trigger until told to stop. Triggers come at random, drawn from
        the seed `arrivals`, and wait for nobody: those that come meanwhile are trained for in
        their order.
        """
        for at in self.triggers(per_s):
            while (now := time.monotonic_ns()) < at:
                yield Pause(self.channel, at)
                self.held_ns += time.monotonic_ns() - now
                if (yield from self.told_to_stop()):
                    return
            yield from self.train(steps)
            self.clock.finish()
            if self.stopping:
                return

    def triggers(self, per_s: float) -> Iterator[int]:
        """When they come: ns of the monotonic clock."""
        draws, at = np.random.default_rng(self.spec["arrivals"]), self.go_ns
        while True:
            at += draws.exponential(1e9 / per_s)
            yield int(at)

    def stop(self) -> None:
        """Wait for what is under way, write steps.npz, say what was done."""
        self.clock.finish()
        synchronise(self.device)
        cuda = self.device.type == "cuda"
        # Of the time in training steps, of waits for files; resident ones are launched.
        share = None
        if self.go_ns is None:
            self.fresh_record()
        elif self.spec["input"]["mode"] != "resident":
            share = sum(self.wait_ns) / (time.monotonic_ns() - self.go_ns - self.held_ns)
        end_ns, losses = self.clock.end_ns, self.losses
        samples = getattr(self.input, "samples", [])[self.go_step :]
        of_loss = losses.steps, losses.values()
        save_steps(self.spec["folder"], end_ns, self.wait_ns, *of_loss, samples)
        if (triggers := self.spec.get("triggers")) and self.go_ns:
            now, steps = time.monotonic_ns(), triggers["steps"]
            trained_ns = end_ns[steps - 1 :: steps]
            at = [*takewhile(lambda at: at < now, self.triggers(triggers["per_s"]))]
            trained = [int(n < len(trained_ns)) for n in range(len(at))]
            save_requests(self.spec["folder"], at, [1] * len(at), trained, trained_ns)
        own = cuda and not self.own_stream  # torch counts for the process
        self.channel.emit(
            "stopped",
            steps=len(end_ns),
            **memory_peaks(own),
            data_wait_share=share,
        )


def preload() -> None:
    """What members need was imported with this module; CUDA is never touched."""


def main(spec: dict, channel: Channel) -> int:
    """Train as `spec` says, under the channel's commands; 0 after `stopped`.

    What is raised carries the phase that it happened in, and whether memory did not suffice.
    """
    member = None
    try:
        kind = find(spec["kind"])
        member = (Member if issubclass(kind, Job) else kind)(spec, channel)
        for awaited in member.run() or ():  # a script drives itself
            awaited.ready(None)
    except Exception as error:
        explain(error, member.phase if member else "build", spec)
        raise
    return 0


def together(specs: Sequence[dict], channels: Sequence[Channel]) -> int:
    """Train the jobs of these specs in this process, each on a CUDA stream of its own; 0 once all
    have ended, of which each tells on its channel.
    """
    pairs = zip(specs, channels, strict=True)
    streams.drive([Member(*pair, own_stream=True) for pair in pairs])
    return 0
