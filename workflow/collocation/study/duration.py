"""Seconds that cells will take, from what their like took: in this study, or in one that ships."""

from collections.abc import Iterable, Iterator
from statistics import median_high

from workflow.collocation.cell.record import MEASURED
from workflow.collocation.study.attempts import Attempt
from workflow.collocation.study.grid import Cell

OVERHEAD_S = 12.0  # start-up and warm-up of a cell that nothing like it has been measured for
OVERHEAD_PER_MEMBER_S = 1.0
EPOCH_S = 20.0  # also of work of which nobody knows how long it takes
LEAST_S = 1.0

Attempts = dict[str, list[Attempt]]  # by cell id


class Estimates:
    """A cell takes its windows, and beside them what cells of its scenario, arm and method took:
    here, or else in a study that ships.
    """

    def __init__(self, here: Attempts, shipped: Attempts | None = None):
        self._beside = _medians(_took(shipped or {})) | _medians(_took(here))

    def of(self, cell: Cell) -> float:
        """Seconds from the start of its job to the end."""
        by_thumb = OVERHEAD_S + OVERHEAD_PER_MEMBER_S * cell.n
        beside = self._beside.get(_kind(cell.id), by_thumb)
        return max(beside + _windows(cell.spec.measure.to_json()), LEAST_S)


def _took(attempts: Attempts) -> Iterator[tuple[str, float]]:
    """Kind, seconds beside its windows, of all that measured."""
    for cell, tried in attempts.items():
        for attempt in tried:
            timing = (attempt.content or {}).get("timing", {})
            if attempt.status in MEASURED and "total_s" in timing:
                seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                measure = attempt.content["spec"].get("measure") or {}
                yield _kind(cell), seconds - _windows(measure)


def _medians(took: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for kind, seconds in took:
        found.setdefault(kind, []).append(seconds)
    return {kind: median_high(each) for kind, each in found.items()}


def _kind(cell_id: str) -> str:
    return cell_id.rsplit("/", 1)[0]


def _windows(measure: dict) -> float:
    """Seconds that are known beforehand."""
    times = {"departure": 2, "completion": 2, "epochs": measure.get("epochs", 0)}
    windows = times.get(measure.get("kind"), 1) * measure.get("window_s", EPOCH_S)
    return windows + measure.get("settle_s", 0) + measure.get("warmup_s", 0)
