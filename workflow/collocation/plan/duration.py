"""Seconds that cells will take, from what their like took: in this study, or in one that ships."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from statistics import median_high

from workflow.collocation.plan.attempts import Attempt
from workflow.collocation.record.run_json import MEASURED
from workflow.collocation.spec.grid import Cell

# Start-up of a cell that nothing like it has been measured for, as on H200s: 6 to 25 s where all
# jobs choose their kernels at once.
OVERHEAD_S = 9.0
PER_MEMBER_S = {"together": 0.6, "turn": 3.5}
EPOCH_S = 20.0  # also of work of which nobody knows how long it takes
LEAST_S = 1.0
# Of these guesses, what cells without a GPU take: tiny models, which choose no kernels.
ON_CPU = 0.15
# Of an arm, what the first cell with a workload takes besides: its jobs compile (40 to 150 s on
# H200s' hosts), and later cells find that. Not where it was measured before in this study.
FIRST_S = {"compile": 60.0}

Attempts = dict[str, list[Attempt]]  # by cell id


class Estimates:
    """A cell takes its windows, and beside them what cells of its scenario, arm and method took.

    Where only studies that ship have such cells, or none has, that is as far off as it was so far
    on this machine.
    """

    def __init__(
        self,
        here: Attempts,
        shipped: Callable[[str], Attempts] = lambda kind: {},
        on_gpu: bool = True,
    ):
        """shipped: reads cells of a kind (scenario/arm/method) in the studies that ship, if there
        are none here. on_gpu: False where the cells run on a CPU.
        """
        self._guess = 1.0 if on_gpu else ON_CPU
        self._took, self._read = list(_took(here, self._guess)), shipped
        self._here = _medians(self._took)
        self._shipped: dict[str, float | None] = {}
        # The first cell with a job; "" where that was measured.
        self._first = {job: "" for kind, *_ in self._took for job in _jobs(kind)}

    @cached_property
    def _off(self) -> float:
        off = [
            max(seconds, 0) / self._foreseen(kind, attempt.content["spec"])
            for kind, attempt, seconds in self._took
            # Others end early, or with work of which nobody knows how long it takes.
            if attempt.status == "completed" and "window_s" in _measure(attempt.content["spec"])
        ]
        return median_high(off) if off else 1.0

    def of(self, cell: Cell) -> float:
        """Seconds from the start of its job to the end.

        Whoever is asked for first with a workload that has to be compiled pays for that.
        """
        kind, spec = _kind(cell.id), cell.spec.to_json()
        beside = self._here.get(kind)
        if beside is None:
            beside = self._off * self._foreseen(kind, spec)
        firsts = sum(self._first.setdefault(job, cell.id) == cell.id for job in _jobs(kind))
        seconds = max(beside + _windows(spec, self._guess), LEAST_S)
        return seconds + firsts * FIRST_S.get(cell.arm, 0.0)

    def knows(self, cell: Cell) -> bool:
        """Whether cells like it were measured."""
        kind = _kind(cell.id)
        return kind in self._here or self._as_shipped(kind) is not None

    def _foreseen(self, kind: str, spec: dict) -> float:
        each = PER_MEMBER_S[_measure(spec).get("tune", "turn")]
        by_thumb = self._guess * (OVERHEAD_S + each * len(spec["members"]))
        known = self._as_shipped(kind)
        return max(by_thumb if known is None else known, LEAST_S)

    def _as_shipped(self, kind: str) -> float | None:
        if kind not in self._shipped:
            self._shipped[kind] = _medians(_took(self._read(kind), self._guess)).get(kind)
        return self._shipped[kind]


def _took(attempts: Attempts, guess: float) -> Iterator[tuple[str, Attempt, float]]:
    """Kind, attempt, seconds beside its windows, of all that measured."""
    for cell, tried in attempts.items():
        for attempt in tried:
            timing = (attempt.content or {}).get("timing", {})
            if attempt.status in MEASURED and "total_s" in timing:
                seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                yield _kind(cell), attempt, seconds - _windows(attempt.content["spec"], guess)


def _medians(took: Iterable[tuple[str, Attempt, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for kind, _, seconds in took:
        found.setdefault(kind, []).append(seconds)
    return {kind: median_high(each) for kind, each in found.items()}


def _kind(cell_id: str) -> str:
    return cell_id.rsplit("/", 1)[0]


def _jobs(kind: str) -> set[tuple[str, str]]:
    """(workload, arm) of its members."""
    scenario, arm, _ = kind.split("/")
    parts = scenario.partition("--")[0].split("+")
    return {(part.partition("x_")[2], arm) for part in parts}


def _measure(spec: dict) -> dict:
    return spec.get("measure") or {}


def _windows(spec: dict, guess: float) -> float:
    """Seconds that are known beforehand, and of work of unknown length so much of EPOCH_S."""
    measure = _measure(spec)
    if measure.get("kind") == "alternate":
        sides = len({member.get("side") for member in spec["members"]})
        turns = sides * measure.get("slices", 0) * measure.get("slice_s", 0.0)
        return turns + measure.get("warmup_s", 0)
    times = {"departure": 2, "completion": 2}
    windows = times.get(measure.get("kind"), 1) * measure.get("window_s", guess * EPOCH_S)
    return windows + measure.get("settle_s", 0) + measure.get("warmup_s", 0)
