"""How many runs of any size share a GPU: the next one starts once those before show room for it.

After CARMA's rule: the processors (SMs) in use stay below a limit, and the memory in use, with that
of the largest run so far, fits. A forecast from the activity of each run ends it earlier, where one
more adds too little. Without counters of activity memory alone decides.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import fmean

from workflow.collocation.gpu.nvidia import NVML_ERRORS
from workflow.collocation.gpu.nvml_subprocess import in_subprocess
from workflow.collocation.record.probe import MEMORY_ROOM
from workflow.collocation.telemetry.sources import choose_source

MOST_SMACT = 0.80  # share of the time of all SMs in which they have work
LEAST_GAIN = 1.03  # of the work of all runs together, by one more of them
SETTLE_S, STILL_S = 20.0, 10.0  # since the newest was on the GPU, and since memory last grew
GROWTH = 0.01  # of the memory in use, above which it counts as grown
READINGS = 5  # over which activity is averaged, one every two seconds

Activity = tuple[float, float]  # GRACT and SMACT
# Work of all runs with one more that is as their mean, over that of those there are; the arguments
# are the method and the activity of each run.
Gain = Callable[[str, list[Activity]], float]

_SOURCES: dict = {}  # by card, in the child process that asks NVML


@in_subprocess()
def recent_activity(uuid: str) -> Activity | None:
    """GRACT and SMACT of a card since the call before; None where no counter has a value."""
    if uuid not in _SOURCES:
        _SOURCES[uuid], _ = choose_source(uuid, ["gpu"])
    rates = {}
    with suppress(*NVML_ERRORS):
        rates = _SOURCES[uuid].read_rates().get("gpu", {}) if _SOURCES[uuid] else {}
    values = rates.get("gract"), rates.get("smact")
    return None if None in values else values


class Admission:
    """Decides for one card; times are seconds of one clock, memory is in MB."""

    def __init__(self, method: str, gain: Gain):
        self.method, self.gain = method, gain
        self.running: set[int] = set()
        self.unsettled: set[int] = set()  # those of them that have not settled
        self.not_on_gpu: set[int] = set()  # those of these that have not been on the GPU
        self.shown_runs = 0  # how many have settled, or ended well
        self.known_activities: list[Activity] = []  # of these
        # When a run last started or reached the GPU, and when the memory in use last grew.
        self.changed_s = self.grown_s = 0.0
        self.used_mb = self.highest_mb = self.largest_mb = 0.0
        self.run_mb: dict[int, float] = {}
        self.shares: dict[int, Activity] = {}  # of each run that has settled, by its number
        self.before: Activity = (0.0, 0.0)  # of the card, when the first of `unsettled` started
        self.readings: deque[Activity] = deque(maxlen=READINGS)
        self.has_counters = False

    def started(self, run: int, now_s: float) -> None:
        if self.readings and not self.unsettled:
            self.before = self._activity()
        for runs in (self.running, self.unsettled, self.not_on_gpu):
            runs.add(run)
        self.changed_s = self.grown_s = now_s
        self.highest_mb = self.used_mb
        self.readings.clear()

    def ended(self, run: int, is_well: bool) -> None:
        self.run_mb.pop(run, None)  # it may start again before the next reading
        if is_well and run in self.unsettled - self.not_on_gpu:
            self.shown_runs += 1
            if self.unsettled == {run} and not self.shares and self.readings:
                self.known_activities.append(max(self.readings, key=lambda activity: activity[1]))
        self.shares.pop(run, None)
        for runs in (self.running, self.unsettled, self.not_on_gpu):
            runs.discard(run)
        self.before = tuple(map(sum, zip((0.0, 0.0), *self.shares.values(), strict=True)))
        self.readings.clear()

    def see(
        self, now_s: float, used_mb: float, of_runs: Mapping[int, float], activity: Activity | None
    ) -> None:
        """Take in readings: memory in use on the card and by each run on it, and its activity."""
        self.used_mb, self.run_mb = used_mb, {**of_runs}
        if used_mb > self.highest_mb * (1 + GROWTH):
            self.highest_mb, self.grown_s = used_mb, now_s
        self.largest_mb = max([self.largest_mb, *of_runs.values()])
        if activity is not None:
            self.has_counters = True
            self.readings.append(activity)
        is_busy = activity[1] > 0 if activity else not self.has_counters
        arrived = self.not_on_gpu & of_runs.keys()
        if not of_runs and is_busy and self.grown_s > self.changed_s:  # NVML may list no process
            arrived = {*self.not_on_gpu}
        if arrived:
            self.not_on_gpu -= arrived
            self.changed_s = now_s
        if not of_runs and (on_gpu := self.running - self.not_on_gpu):
            self.largest_mb = max(self.largest_mb, used_mb / len(on_gpu))

    def admits(self, now_s: float, total_mb: float | None) -> bool:
        """Whether one more run may start beside those that run. total_mb: of the card."""
        if not self.running:
            return True
        if now_s - self.changed_s >= SETTLE_S and now_s - self.grown_s >= STILL_S:
            self._settle()
        # The first runs show what runs are like; each that has lets two more be on their way.
        if len(self.unsettled) >= max(1, 2 * self.shown_runs):
            return False
        needed_mb = self.largest_mb or self.used_mb / len(self.running)
        growing_mb = sum(max(0.0, needed_mb - self.run_mb.get(run, 0.0)) for run in self.unsettled)
        in_use_mb = self.used_mb + growing_mb
        if not total_mb or not needed_mb or in_use_mb + needed_mb > MEMORY_ROOM * total_mb:
            return False
        if not self.has_counters:
            return True
        if not (self.known_activities if self.unsettled else self.readings):
            return False
        shares = [*self.shares.values()]
        smact = self._activity()[1] if self.readings else 0.0
        if self.unsettled:
            mean = tuple(map(fmean, zip(*self.known_activities, strict=True)))
            shares += [mean] * len(self.unsettled)
            smact = max(smact, sum(share[1] for share in shares))
        return smact < MOST_SMACT and self.gain(self.method, shares) >= LEAST_GAIN

    def _settle(self) -> None:
        """Give runs that have come to the GPU their shares of the activity, if known by now."""
        settled = self.unsettled - self.not_on_gpu
        if not settled or (self.has_counters and not self.readings):
            return
        if self.readings:
            pairs = zip(self._activity(), self.before, strict=True)
            share = tuple(max(0.0, now - before) / len(settled) for now, before in pairs)
            self.shares |= dict.fromkeys(settled, share)
            self.known_activities += [share] * len(settled)
            self.before = self._activity()
        self.shown_runs += len(settled)
        self.unsettled -= settled

    def _activity(self) -> Activity:
        return tuple(map(fmean, zip(*self.readings, strict=True)))
