"""Measures one job alone and then together with copies of it, in one visit to the device.

The first copy stays loaded for the whole probe, so that the job starts only once more: for the
sets. A steady job takes turns with its sets. A job that pauses, or whose steps are slow, is
measured in long windows: alone, each set, and alone again.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workflow.collocation.record.cycles import LEAST_CYCLES, Progress, progress_in
from workflow.collocation.record.probe import (
    AGAIN,
    ALONE,
    IN_TURNS,
    TRANSITION,
    JobSet,
    LoneReading,
)
from workflow.collocation.record.step_times import load_step_arrays, slices_rate
from workflow.collocation.record.values import Telemetry, Window
from workflow.collocation.run.conductor import CellOver, Conductor
from workflow.collocation.run.measures import linger, run_slice
from workflow.collocation.run.outcome import FAULTY, TrackedMember
from workflow.collocation.sharing.evidence import NotInForce

ALONE_SHARE, LEAST_ALONE_S = 0.25, 8.0  # of the time, for the job alone
MOST_ALONE_SHARE = 0.5  # of the time, to learn how a job pauses
SLICE_S, SHORTEST_SLICE_S = 5.0, 2.5
LEAST_ROUNDS, ROUNDS = 3, 6  # of turns; slices are made shorter for so many rounds
SLOW_STEP_S = 0.25  # of a job alone: a slice would hold too few of them
AGREE = 0.1  # by more than this, rates of the job alone contradict each other
AGAIN_S = 10.0  # to measure the job alone once more, if they do
STOP_S = 4.0  # of the time, to end all copies
LOOK_S = 1.0


# From what is known of the job alone to groups of sets. The sets of a group are loaded at once.
Choose = Callable[[LoneReading], Sequence[Sequence[JobSet]]]


@dataclass
class Probe(Conductor):
    """Conducts the copies of one job.

    specs: the lone copy, and then as many copies for each method as may be started. copies: method
    → their indices. until_s: when the probe should end, on the monotonic clock. read_telemetry:
    gives the telemetry of the windows so far. sets, peak_bytes,
    needed_s, problem, drop_s: as in ProbeRecord.
    """

    copies: dict[str, list[int]] = field(default_factory=dict)
    choose: Choose = lambda reading: []
    until_s: float = 0.0
    read_telemetry: Callable[[], tuple[Telemetry, int | None]] | None = None
    sets: list[JobSet] = field(default_factory=list)
    peak_bytes: int | None = None
    needed_s: float | None = None
    problem: str | None = None
    drop_s: float = 0.0  # of each slice, before the part that counts
    began_s: float = field(default_factory=time.monotonic)
    start_s: float = 0.0  # that the lone copy took from its start to its warm-up's end

    def run(self) -> None:
        """Measure; afterwards every copy has ended. Raises GpuBusy if others use the GPU."""
        cut_short = True
        try:
            self._measure()
            cut_short = False
        except CellOver:
            _, self.problem, _ = self.outcome()
        except NotInForce as error:
            self.problem = str(error)
        finally:
            self._run_phase("stop", lambda: self._stop(cut_short))

    def _measure(self) -> None:
        self._start([0])
        [lone] = self.members
        if not self._accepting("hold"):
            raise NotInForce("it cannot wait between steps, as a probe needs; ask with a study")
        self.start_s = time.monotonic() - self.began_s
        self.send([lone], "go")
        self.await_event("started", [lone])
        self._run_phase("window", lambda: self._measure_alone(lone))
        if self.needed_s:
            return
        telemetry, self.peak_bytes = self.read_telemetry()
        cores = len(self.specs[0].cores)
        reading = LoneReading(self._rate_alone(), telemetry, self.peak_bytes, cores)
        groups = self.choose(reading)
        self.send([lone], "hold")
        for position, group in enumerate(groups):
            share_s = (self.until_s - STOP_S - time.monotonic()) / (len(groups) - position)
            # The first group is measured in any case: it is the answer.
            if position == 0 or share_s > self.start_s + 2 * LEAST_ROUNDS * SHORTEST_SLICE_S:
                self._measure_group(lone, group, time.monotonic() + share_s)

    # -- starting copies -------------------------------------------------------------------------

    def _start(self, indices: Sequence[int]) -> list[TrackedMember]:
        """Start copies, and wait until they are warm; returns those that had memory enough."""
        started: list[TrackedMember] = []

        def build() -> None:
            for index in indices:
                log = self.log / f"member{index}.log"
                started.extend(self.server.start([self.specs[index]], log))
            self.members += started
            self.await_event("built", started)
            self._tell_sampler_of_members()

        def warm_up() -> None:
            for member in self._accepting("autotune"):
                if member in started:
                    self.send([member], "autotune")
                    self.await_event("autotuned", [member])
            self.send([m for m in self._accepting("autotune") if m in started], "warm")
            self.await_event("warm", started)

        self._run_phase("build", build)
        self._run_phase("warm", warm_up)
        self._collect_evidence("start" if indices == [0] else f"sets {len(self.evidence)}")
        return [member for member in started if member.alive]

    def raise_if_over(self) -> None:
        """Raise CellOver after a fault, or without the lone copy.

        Other copies may run out of memory: the others go on.
        """
        is_over = any(member.status in FAULTY for member in self.members)
        if is_over or (self.members and not self.members[0].alive):
            raise CellOver

    # -- the job alone ---------------------------------------------------------------------------

    def _measure_alone(self, lone: TrackedMember) -> None:
        self.slice_name = ALONE
        whole_s = self.until_s - self.began_s
        least_s = max(ALONE_SHARE * whole_s, LEAST_ALONE_S)
        progress = self._window(
            ALONE, [lone], least_s, MOST_ALONE_SHARE * whole_s, may_end=self._takes_too_long
        )
        if progress[0].pauses and len(progress[0].steps) < LEAST_CYCLES:
            self.needed_s = self._needed_s(progress[0])

    def _takes_too_long(self, progress: list[Progress]) -> bool:
        """Whether a whole cycle is known, and the time cannot hold enough of them."""
        [alone] = progress
        return len(alone.steps) > 0 and self._needed_s(alone) > self.until_s - self.began_s

    def _needed_s(self, alone: Progress) -> float:
        """How long a probe of this job has to be; at least, if no whole cycle is known yet."""
        cycle_s = time.monotonic() - self.began_s - self.start_s
        if len(alone.steps):
            cycle_s = float(alone.seconds.mean())
        # Twice so many cycles, each time after a part of one; and a second start.
        return 2 * self.start_s + 2 * (LEAST_CYCLES + 1) * cycle_s + STOP_S

    def _rate_alone(self) -> float:
        return self._progress(self.windows[0], self.members[0]).rate

    def _takes_turns(self) -> bool:
        alone = self._progress(self.windows[0], self.members[0])
        # Steps that a script's output counts are known too late.
        counts_steps = getattr(self.specs[0].job, "steps", "auto") == "auto"
        return counts_steps and not alone.pauses and 1 / alone.rate < SLOW_STEP_S

    # -- sets ------------------------------------------------------------------------------------

    def _measure_group(self, lone: TrackedMember, group: Sequence[JobSet], until_s: float) -> None:
        """Start the copies of a group of sets, measure each set, and end the copies."""
        most = {s.method: max(o.n for o in group if o.method == s.method) for s in group}
        indices = [i for method, n in most.items() for i in self.copies[method][:n]]
        started = self._start(indices)
        self.send(started, "go", "hold")
        self.await_event("started", started)
        self.await_held()
        conditions: dict[str, list[TrackedMember]] = {}
        for job_set in group:
            mine = [m for m in started if m.member in self.copies[job_set.method]]
            alive = JobSet(n=min(job_set.n, len(mine)), method=job_set.method)
            if alive.n > 1 and alive.name not in conditions:
                conditions[alive.name] = mine[: alive.n]
                self.sets.append(alive)
        if conditions:
            measure = self._in_turns if self._takes_turns() else self._in_windows
            self._run_phase("window", lambda: measure(lone, conditions, until_s))
            self._collect_evidence(f"end {len(self.evidence)}")
        self._end_copies(started)
        if self._contradicts_itself():
            self.slice_name = AGAIN
            self.resume([lone])
            self._run_phase("window", lambda: self._window(AGAIN, [lone], AGAIN_S, AGAIN_S))
            self._hold([lone])

    def _in_turns(
        self, lone: TrackedMember, sets: dict[str, list[TrackedMember]], until_s: float
    ) -> None:
        """Rounds of one slice each of the job alone and of every set, in random order."""
        conditions = {IN_TURNS: [lone], **sets}
        left_s = until_s - time.monotonic()
        slice_s = min(max(left_s / (ROUNDS * len(conditions)), SHORTEST_SLICE_S), SLICE_S)
        self.drop_s = TRANSITION * slice_s
        spans: dict[str, list[tuple[int, int]]] = {name: [] for name in conditions}
        generator, rounds = random.Random(0), 0
        round_s = slice_s * len(conditions)
        while rounds < LEAST_ROUNDS or time.monotonic() + round_s < until_s:
            for name in generator.sample(list(conditions), len(conditions)):
                self.slice_name = name
                spans[name].append(run_slice(self, conditions[name], slice_s, self.drop_s))
            rounds += 1
        for name, slices in spans.items():
            seconds = round(sum(end - start for start, end in slices) / 1e9, 6)
            self._add_window(name, conditions[name], slices[0][0], slices[-1][1], seconds, slices)
        self._save([lone, *{m.member: m for members in sets.values() for m in members}.values()])

    def _in_windows(
        self, lone: TrackedMember, sets: dict[str, list[TrackedMember]], until_s: float
    ) -> None:
        """A long window of each set, and one of the job alone if there is time for it."""
        for position, (name, members) in enumerate(sets.items()):
            windows_left = len(sets) - position + 1
            share_s = (until_s - time.monotonic()) / windows_left
            self.slice_name = name
            self.resume(members)
            self._window(name, members, share_s, until_s - time.monotonic())
            self._hold(members)
        left_s, cycle = until_s - time.monotonic(), self._progress(self.windows[0], lone)
        if left_s > (LEAST_CYCLES + 1) * cycle.seconds.mean():
            self.slice_name = AGAIN
            self.resume([lone])
            self._window(AGAIN, [lone], left_s, left_s)
            self._hold([lone])

    def _resume(self, members: Sequence[TrackedMember]) -> None:
        for member in members:
            del member.events["held"]
        self.send(members, "resume")

    def _hold(self, members: Sequence[TrackedMember]) -> None:
        self.send(members, "hold")
        self.await_held()

    def _end_copies(self, members: Sequence[TrackedMember]) -> None:
        self.send(members, "stop")
        self.deadline = time.monotonic() + self.timeouts["stop"]
        while late := [member for member in members if not member.gone]:
            self.process_events(late)

    def _contradicts_itself(self) -> bool:
        """Whether the job alone has to be seen once more.

        In turns it had another rate than before, or a set did more than its number of jobs can.
        """
        windows = {window.name: window for window in self.windows}
        if IN_TURNS not in windows or AGAIN in windows:
            return False
        in_turns = self._rate_in_turns(windows[IN_TURNS])
        rates = sorted([self._rate_alone(), in_turns])
        if rates[0] < (1 - AGREE) * rates[1]:
            return True
        measured = [(job_set.n, windows.get(job_set.name)) for job_set in self.sets]
        return any(
            window and window.spans and self._rate_in_turns(window) > n * in_turns
            for n, window in measured
        )

    def _rate_in_turns(self, window: Window) -> float:
        """Steps per second of all members of a window that has turns."""
        drop_ns = round(self.drop_s * 1e9)
        ends = [self._step_ends(self.server.members[index]) for index in window.members]
        return sum(slices_rate(each, window.spans, drop_ns, 1).samples_per_s for each in ends)

    # -- windows ---------------------------------------------------------------------------------

    def _window(
        self,
        name: str,
        members: Sequence[TrackedMember],
        least_s: float,
        most_s: float,
        may_end: Callable[[list[Progress]], bool] = lambda progress: False,
    ) -> list[Progress]:
        """Measure members that train, until each has made enough whole cycles.

        least_s, most_s: bounds of the window. may_end: whether it may end before all have.
        """
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
            done = all(len(p.steps) >= LEAST_CYCLES for p in progress)
            if done or elapsed_s >= most_s or may_end(progress):
                break
        self.watch.close(name)
        seconds = round((now_ns - start_ns) / 1e9, 6)
        self._add_window(name, members, start_ns, now_ns, seconds)
        linger(self, time.monotonic())
        return progress

    def _add_window(
        self,
        name: str,
        members: Sequence[TrackedMember],
        start_ns: int,
        end_ns: int,
        seconds: float,
        spans: list[tuple[int, int]] | None = None,
    ) -> None:
        indices = [member.member for member in members]
        self.windows.append(
            Window(
                name=name,
                start_ns=start_ns,
                end_ns=end_ns,
                seconds=seconds,
                members=indices,
                spans=spans,
            )
        )

    def _save(self, members: Sequence[TrackedMember]) -> None:
        """Have members write their steps so far."""
        for member in members:
            member.events.pop("saved", None)
        self.send(members, "save")
        self.await_event("saved", members)

    def _step_ends(self, member: TrackedMember) -> np.ndarray:
        """When the steps ended that a member has written, int64 [steps]."""
        with suppress(OSError):
            path = Path(self.specs[member.member].folder, "steps.npz")
            return load_step_arrays(path)["end_ns"]
        return np.empty(0, np.int64)

    def _progress(self, window: Window, member: TrackedMember) -> Progress:
        return progress_in(self._step_ends(member), *window.ends)

    def _status_line(self) -> str:
        """For the person who watches: what is done, a colon, and the rate of those that run."""
        if self.phase == "stop":
            return "stopping"
        if self.phase != "window":
            return f"starting {'it' if len(self.members) < 2 else f'{len(self.alive) - 1} copies'}"
        rate = sum(m.recent_rate for m in self.alive if "held" not in m.events)
        return f"{self.slice_name}: {rate:,.1f} samples/s"
