"""What all probes share: members that are started one after another, windows, turns.

A probe measures jobs alone and together in one visit to the device. Steady jobs take turns with
each other. Where one pauses, or its steps are slow, each is measured in a long window.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workflow.collocation.record.cycles import LEAST_CYCLES, StepBlocks, progress_in
from workflow.collocation.record.probe import DROP_S, JobSet
from workflow.collocation.record.step_times import load_step_arrays, slices_rate
from workflow.collocation.record.values import Telemetry, Window
from workflow.collocation.run.conductor import CellOver, Conductor
from workflow.collocation.run.measures import linger, take_turns
from workflow.collocation.run.outcome import FAULTY, TrackedMember
from workflow.collocation.sharing.evidence import NotInForce

SLICE_S, SHORTEST_SLICE_S = 5.0, 2.5
LEAST_ROUNDS, ROUNDS = 3, 6  # of turns; slices are made shorter for so many rounds
SLOW_STEP_S = 1.0  # of jobs one after another: a slice would hold too few of them
STOP_S = 4.0  # of the time, to end all members
LOOK_S = 1.0

Conditions = Mapping[str, Sequence[TrackedMember]]  # name of a window → members that run in it


@dataclass
class Probe(Conductor, ABC):
    """Conducts a probe; a kind of probe says in `measure_all` what is measured.

    specs: of all members that may be started. lone: indices of those that cannot be done without.
    began_s, until_s: when the probe began and should end, on the monotonic clock. read_telemetry:
    gives the telemetry of the windows so far, and the most device memory in use until now. sets,
    peak_bytes, needed_s, problem: as in ProbeRecord.
    """

    lone: Sequence[int] = (0,)
    on_gpu: bool = False
    began_s: float = field(default_factory=time.monotonic)
    until_s: float = 0.0
    read_telemetry: Callable[[], tuple[Telemetry, int | None]] | None = None
    sets: list[JobSet] = field(default_factory=list)
    peak_bytes: int | None = None
    needed_s: float | None = None
    problem: str | None = None
    least_window_s: float = 0.0  # so that it holds whole cycles, whatever time is left

    @abstractmethod
    def measure_all(self) -> None:
        """Start members and measure them. Raises CellOver or NotInForce where that ends early."""

    def run(self) -> None:
        """Measure; afterwards every member has ended. Raises GpuBusy if others use the GPU."""
        cut_short = True
        try:
            self.measure_all()
            cut_short = False
        except CellOver:
            _, self.problem, _ = self.outcome()
        except NotInForce as error:
            self.problem = str(error)
        finally:
            self._run_phase("stop", lambda: self._stop(cut_short))

    def raise_if_over(self) -> None:
        """Raise CellOver after a fault, or without a lone member.

        Other members may run out of memory: the rest go on.
        """
        is_over = any(member.status in FAULTY for member in self.members)
        is_over |= any(not m.alive for m in self.members if m.member in self.lone)
        if is_over:
            raise CellOver

    # -- members ---------------------------------------------------------------------------------

    def start(self, indices: Sequence[int]) -> list[TrackedMember]:
        """Start members, and wait until they are warm; returns those that had memory enough."""
        started: list[TrackedMember] = []

        def build() -> None:
            for index in indices:
                log = self.log / f"member{index}.log"
                started.extend(self.server.start([self.specs[index]], log))
            self.members += started
            self.await_event("built", started)
            self._tell_sampler_of_members()

        def warm_up() -> None:
            tuned = [member for member in self._accepting("autotune") if member in started]
            for member in tuned:
                self.send([member], "autotune")
                self.await_event("autotuned", [member])
            self.send(tuned, "warm")
            self.await_event("warm", started)

        self._run_phase("build", build)
        self._run_phase("warm", warm_up)
        if len(self._accepting("hold")) < len(self.alive):
            raise NotInForce("it cannot wait between steps, as a probe needs; ask with a study")
        return [member for member in started if member.alive]

    def start_held(self, indices: Sequence[int]) -> list[TrackedMember]:
        """Start members, and have all members wait; returns those that had memory enough."""
        started = self.start(indices)
        self.send(started, "go", "hold")
        self.await_event("started", started)
        self.await_held()
        return started

    def hold(self, members: Sequence[TrackedMember]) -> None:
        """Have members wait between two steps, and wait until all members do."""
        self.send(members, "hold")
        self.await_held()

    def end_members(self, members: Sequence[TrackedMember]) -> None:
        """Stop members, and wait until their processes have ended."""
        self.send(members, "stop")
        self.deadline = time.monotonic() + self.timeouts["stop"]
        while late := [member for member in members if not member.gone]:
            self.process_events(late)

    # -- measuring -------------------------------------------------------------------------------

    def measure_together(self, conditions: Conditions, until_s: float, in_turns: bool) -> None:
        """Measure conditions whose members are all held, and hold them again."""
        measure = self._measure_in_turns if in_turns else self._measure_in_windows
        self._run_phase("window", lambda: measure(conditions, until_s))
        self._collect_evidence(f"end of {', '.join(conditions)}")

    def _measure_in_turns(self, conditions: Conditions, until_s: float) -> None:
        """Rounds of one slice for each condition, in random order."""
        left_s = until_s - time.monotonic()
        slice_s = min(max(left_s / (ROUNDS * len(conditions)), SHORTEST_SLICE_S), SLICE_S)
        round_s = slice_s * len(conditions)
        take_turns(
            self,
            conditions,
            slice_s,
            DROP_S,
            goes_on=lambda rounds: rounds < LEAST_ROUNDS or time.monotonic() + round_s < until_s,
            label=lambda name, number: name,
        )
        self._save({m.member: m for members in conditions.values() for m in members}.values())

    def _measure_in_windows(self, conditions: Conditions, until_s: float) -> None:
        """A long window for each condition, which have like shares of the time."""
        for position, (name, members) in enumerate(conditions.items()):
            left_s = until_s - time.monotonic()
            share_s = max(left_s / (len(conditions) - position), self.least_window_s)
            self.resume(members)
            self.measure_window(name, members, share_s, max(left_s, share_s))
            self.hold(members)

    def measure_window(
        self,
        name: str,
        members: Sequence[TrackedMember],
        least_s: float,
        most_s: float,
        may_end: Callable[[list[StepBlocks]], bool] = lambda progress: False,
    ) -> list[StepBlocks]:
        """Measure members that train, until each has made enough whole cycles.

        least_s, most_s: bounds of the window. may_end: whether it may end before all have.
        """
        self.slice_name = name
        start_ns = time.monotonic_ns()
        self.watch.open(name)
        while True:
            self.deadline = time.monotonic() + self.timeouts["window"]
            self.process_events_until(time.monotonic_ns() + round(LOOK_S * 1e9))
            now_ns = time.monotonic_ns()
            elapsed_s = (now_ns - start_ns) / 1e9
            if elapsed_s < least_s:
                continue
            self._save(members)
            progress = [progress_in(self._step_ends(m), start_ns, now_ns) for m in members]
            done = all(len(each.steps) >= LEAST_CYCLES for each in progress)
            if done or elapsed_s >= most_s or may_end(progress):
                break
        now_ns = time.monotonic_ns()  # members may have been slow to save
        self.watch.close(name)
        self.windows.append(
            Window(
                name=name,
                start_ns=start_ns,
                end_ns=now_ns,
                seconds=round((now_ns - start_ns) / 1e9, 6),
                members=[member.member for member in members],
            )
        )
        linger(self, time.monotonic())
        return progress

    def progress(self, window: str, member: TrackedMember) -> StepBlocks:
        """Whole cycles or blocks that a member made in a window without turns."""
        [measured] = [each for each in self.windows if each.name == window]
        return progress_in(self._step_ends(member), *measured.ends)

    def takes_turns(self, window: str, member: TrackedMember, jobs: int) -> bool:
        """Whether a job, as its window alone showed it, can be held and resumed every few seconds.

        Not if it pauses, or its steps would be slow among so many jobs; nor if its output counts
        them, which is too late.
        """
        alone = self.progress(window, member)
        job = self.specs[member.member].job
        return (
            getattr(job, "steps", "auto") == "auto"
            and not alone.pauses
            and len(alone.steps) > 0
            and jobs / alone.rate < SLOW_STEP_S
        )

    def rate_in_turns(self, window: Window) -> float:
        """Steps per second of all members of a window that has turns."""
        ends = [self._step_ends(self.server.members[index]) for index in window.members]
        drop_ns = round(DROP_S * 1e9)
        return sum(slices_rate(each, window.spans, drop_ns, 1).samples_per_s for each in ends)

    def _save(self, members: Sequence[TrackedMember]) -> None:
        """Have members write the times of their steps so far."""
        for member in members:
            member.events.pop("saved", None)
        self.send(members, "save")
        self.await_event("saved", members)

    def _step_ends(self, member: TrackedMember) -> np.ndarray:
        """When the steps ended that a member has written, int64 [steps]."""
        with suppress(OSError):
            return load_step_arrays(Path(self.specs[member.member].folder, "steps.npz"))["end_ns"]
        return np.empty(0, np.int64)

    def _status_line(self) -> str:
        """For the person who watches: what is done, a colon, and the rate of those that run."""
        if self.phase == "stop":
            return "stopping"
        if self.phase != "window":
            return "starting"
        rate = sum(m.recent_rate for m in self.alive if "held" not in m.events)
        return f"{self.slice_name}: {rate:,.1f} samples/s"
