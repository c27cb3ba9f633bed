"""Seconds that cells will take, from what others of their study took."""

import itertools

from workflow.collocation.cell.record import MEASURED
from workflow.collocation.cell.spec import digest
from workflow.collocation.study.attempts import Attempt
from workflow.collocation.study.grid import Cell

OVERHEAD_S = 12.0  # start-up and warm-up of a cell that nothing like it has been measured for
OVERHEAD_PER_MEMBER_S = 1.0
EPOCH_S = 20.0


class Estimates:
    """Seconds that cells will take, from what others of the study took."""

    def __init__(self, attempts: dict[str, list[Attempt]]):
        # cell but for its block: digest of the measure, s
        self._took: dict[str, list[tuple[str, float]]] = {}
        off = []
        for attempt in itertools.chain.from_iterable(attempts.values()):
            timing = (attempt.content or {}).get("timing", {})
            if attempt.status in MEASURED and "total_s" in timing:
                seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                spec = attempt.content["spec"]
                known = _as_measured(spec), seconds
                self._took.setdefault(_blockless(attempt.cell), []).append(known)
                # Others end early, or with work of which nobody knows how long it takes.
                if attempt.status == "completed" and "window_s" in (spec.get("measure") or {}):
                    off.append(seconds / _rule_of_thumb(spec))
        # On this machine cells may all be faster than the rule has it.
        self._off = _median(off) if off else 1.0

    def of(self, cell: Cell) -> float:
        """As another replicate of it took, else by a rule of thumb, as far off as it was so far."""
        spec = cell.spec.to_json()
        now = _as_measured(spec)
        took = [s for known, s in self._took.get(_blockless(cell.id), []) if known == now]
        return _median(took) if took else self._off * _rule_of_thumb(spec)


def _blockless(cell_id: str) -> str:
    return cell_id.rsplit("/", 1)[0]


def _as_measured(spec: dict) -> str:
    return digest({"measure": spec.get("measure")})


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _rule_of_thumb(spec: dict) -> float:
    measure = spec["measure"]
    times = {"window": 1, "departure": 2, "completion": 2, "epochs": measure.get("epochs", 0)}
    windows = times[measure["kind"]]
    return (
        OVERHEAD_S
        + OVERHEAD_PER_MEMBER_S * len(spec["members"])
        + measure.get("settle_s", 0)
        + measure.get("warmup_s", 0)
        + windows * measure.get("window_s", EPOCH_S)
    )
