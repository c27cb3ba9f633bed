"""A probe of one job: alone, and then in sets of copies of it.

The first copy stays loaded for the whole probe, so that the job starts only once more: for the
sets.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workflow.collocation.record.cycles import LEAST_CYCLES, StepBlocks
from workflow.collocation.record.probe import (
    AGAIN,
    AGREE,
    ALONE,
    IN_TURNS,
    JobSet,
    LoneReading,
    SetGroup,
)
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.run.probe import (
    LEAST_ROUNDS,
    SHORTEST_SLICE_S,
    STOP_S,
    Conditions,
    Probe,
)

ALONE_SHARE, LEAST_ALONE_S = 0.25, 8.0  # of the time, for the job alone
MOST_ALONE_SHARE = 0.5  # of the time, to learn how a job pauses
AGAIN_S = 10.0  # to measure the job alone once more, where its rates contradict each other

# From what is known of the job alone to the sets to measure.
Choose = Callable[[LoneReading], Sequence[SetGroup]]


@dataclass
class CopiesProbe(Probe):
    """Conducts the copies of one job.

    copies: method → the indices of as many members as may be started by it. The lone copy, member
    0, is the first of the separate processes. choose: says which sets are measured.
    """

    copies: dict[str, list[int]] = field(default_factory=dict)
    choose: Choose = lambda reading: []
    start_s: float = 0.0  # that the lone copy took from its start to its warm-up's end

    def measure_all(self) -> None:
        self.start([0])
        self.raise_if_over()
        [lone] = self.members
        self._collect_evidence("start")
        if self.on_gpu:
            self._open_second_contexts()
        self.start_s = time.monotonic() - self.began_s
        self.send([lone], "go")
        self.await_event("started", [lone])
        self._run_phase("window", lambda: self._measure_alone(lone))
        telemetry, self.peak_bytes = self.read_telemetry()
        if self.needed_s:
            return
        rate, cores = self.progress(ALONE, lone).rate, len(self.specs[0].cores)
        reading = LoneReading(rate, telemetry, self.peak_bytes, cores, tuple(self.copies))
        groups = self.choose(reading)
        if groups:
            self.send([lone], "hold")
        for number, group in enumerate(groups):
            share_s = (self.until_s - STOP_S - time.monotonic()) / (len(groups) - number)
            if group.is_needed or share_s > self.start_s + 2 * LEAST_ROUNDS * SHORTEST_SLICE_S:
                self._measure_group(lone, group, time.monotonic() + share_s, number)
        if self._contradicts_itself():
            self.end_members([m for m in self.members if m.alive and m is not lone])
            self.resume([lone])
            self._run_phase("window", lambda: self.measure_window(AGAIN, [lone], AGAIN_S, AGAIN_S))

    # -- the job alone ---------------------------------------------------------------------------

    def _measure_alone(self, lone: TrackedMember) -> None:
        whole_s = self.until_s - self.began_s
        least_s = max(ALONE_SHARE * whole_s, LEAST_ALONE_S)
        most_s = MOST_ALONE_SHARE * whole_s
        [alone] = self.measure_window(ALONE, [lone], least_s, most_s, self._takes_too_long)
        if len(alone.steps) < LEAST_CYCLES:
            self.needed_s = self._time_needed(alone)
        else:
            self.least_window_s = (LEAST_CYCLES + 1) * float(alone.seconds.mean())

    def _takes_too_long(self, progress: list[StepBlocks]) -> bool:
        """Whether a whole cycle is known, and the time cannot hold enough of them."""
        [alone] = progress
        if not alone.pauses or not len(alone.steps):
            return False
        return self._time_needed(alone) > self.until_s - self.began_s

    def _time_needed(self, alone: StepBlocks) -> float:
        """How long a probe of this job has to be; at least, if no whole cycle is known yet."""
        cycle_s = time.monotonic() - self.began_s - self.start_s
        if len(alone.steps):
            cycle_s = float(alone.seconds.mean())
        # Twice so many cycles, each time after a part of one; and a second start.
        return 2 * self.start_s + 2 * (LEAST_CYCLES + 1) * cycle_s + STOP_S

    # -- sets ------------------------------------------------------------------------------------

    def _measure_group(
        self, lone: TrackedMember, group: SetGroup, until_s: float, number: int
    ) -> None:
        """Load the copies of a group of sets, and measure each set.

        Copies of the group before stay loaded if this one has use for them.
        """
        most = {s.method: max(o.n for o in group.sets if o.method == s.method) for s in group.sets}
        indices = {i for method, n in most.items() for i in self.copies[method][:n]}
        if group.with_lone:
            indices.add(0)
        loaded = [member for member in self.members if member.alive]
        if not indices >= {0}:
            self.await_held()
            self.lone = ()
        self.end_members([member for member in loaded if member.member not in indices])
        missing = sorted(indices - {member.member for member in loaded})
        self.start_held(missing)
        self._collect_evidence(f"group {number + 1}")
        sets: dict[str, list[TrackedMember]] = {}
        for job_set in group.sets:
            wanted = self.copies[job_set.method][: job_set.n]
            mine = [m for m in self.members if m.alive and m.member in wanted]
            alive = JobSet(n=len(mine), method=job_set.method)
            if alive.n > 1 and alive.name not in sets:
                sets[alive.name] = mine
                self.sets.append(alive)
        if not sets:
            return
        if group.with_lone and self.takes_turns(ALONE, lone, max(map(len, sets.values()))):
            name = IN_TURNS + (f" {number + 1}" if number else "")
            self.measure_together({name: [lone], **sets}, until_s, in_turns=True)
        else:
            self._measure_in_windows_with(lone, sets, until_s, group.with_lone)

    def _measure_in_windows_with(
        self, lone: TrackedMember, sets: Conditions, until_s: float, with_lone: bool
    ) -> None:
        """Long windows of the sets, and one more of the job alone if there is time for it."""
        left_s = until_s - time.monotonic()
        has_time = left_s > (1 + len(sets)) * self.least_window_s
        has_time &= AGAIN not in [window.name for window in self.windows]
        conditions = {**sets, AGAIN: [lone]} if has_time and with_lone else sets
        self.measure_together(conditions, until_s, in_turns=False)

    def _contradicts_itself(self) -> bool:
        """Whether the job alone has to be seen once more.

        In turns it had another rate than before, or a set did more than its number of jobs can.
        """
        windows = {window.name: window for window in self.windows}
        if IN_TURNS not in windows or AGAIN in windows or not self.lone:
            return False
        lone = self.server.members[0]
        in_turns = self.rate_in_turns(windows[IN_TURNS])
        rates = sorted([self.progress(ALONE, lone).rate, in_turns])
        if rates[0] < (1 - AGREE) * rates[1]:
            return True
        measured = [(job_set.n, windows.get(job_set.name)) for job_set in self.sets]
        return any(
            window is not None and window.spans and self.rate_in_turns(window) > n * in_turns
            for n, window in measured
        )
