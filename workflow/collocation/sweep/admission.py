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
from workflow.collocation.telemetry.sources import choose_source

MOST_SMACT = 0.80  # share of the time of all SMs in which they have work
MOST_MEMORY = 0.95  # of the card's
LEAST_GAIN = 1.03  # of the work of all runs together, by one more of them
SETTLE_S, STILL_S = 20.0, 10.0  # since the newest began, and since memory in use last grew
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
        self.newest: int | None = None  # the run that started last, while it runs
        self.started_s = self.grown_s = 0.0
        self.used_mb = self.highest_mb = self.largest_mb = 0.0
        self.shares: dict[int, Activity] = {}  # of each run, by its number
        self.before: Activity = (0.0, 0.0)  # of the card, when the newest run started
        self.readings: deque[Activity] = deque(maxlen=READINGS)
        self.has_counters = False

    def started(self, run: int, now_s: float) -> None:
        if self.readings:
            self.before = self._activity()
        self.newest, self.started_s, self.grown_s = run, now_s, now_s
        self.highest_mb = self.used_mb
        self.readings.clear()

    def ended(self, run: int) -> None:
        self.shares.pop(run, None)
        self.newest = None if run == self.newest else self.newest
        self.before = tuple(map(sum, zip((0.0, 0.0), *self.shares.values(), strict=True)))
        self.readings.clear()

    def see(
        self, now_s: float, used_mb: float, of_runs: Mapping[int, float], activity: Activity | None
    ) -> None:
        """Take in readings: memory in use on the card and by run, and the card's activity."""
        self.used_mb = used_mb
        if used_mb > self.highest_mb * (1 + GROWTH):
            self.highest_mb, self.grown_s = used_mb, now_s
        self.largest_mb = max([self.largest_mb, *of_runs.values()])
        if activity is not None:
            self.has_counters = True
            self.readings.append(activity)

    def admits(self, now_s: float, running: int, total_mb: float | None) -> bool:
        """Whether one more run may start beside those that run. total_mb: of the card."""
        if not running:
            return True
        settled = now_s - self.started_s >= SETTLE_S and now_s - self.grown_s >= STILL_S
        if self.newest is not None and not settled:
            return False
        needed_mb = self.largest_mb or self.used_mb / running
        if not total_mb or not needed_mb or self.used_mb + needed_mb > MOST_MEMORY * total_mb:
            return False
        if not self.has_counters:
            return True
        if not self.readings:
            return False
        activity = self._activity()
        if self.newest is not None and self.newest not in self.shares:
            pairs = zip(activity, self.before, strict=True)
            self.shares[self.newest] = tuple(max(0.0, now - before) for now, before in pairs)
        if activity[1] >= MOST_SMACT:
            return False
        return self.gain(self.method, [*self.shares.values()]) >= LEAST_GAIN

    def _activity(self) -> Activity:
        return tuple(map(fmean, zip(*self.readings, strict=True)))
