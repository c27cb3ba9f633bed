"""How long cells will take, from what cells like them took."""

from statistics import median_high

from workflow.collocation.plan.attempts import CellAttempt
from workflow.collocation.record.run_json import MEASURED
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.names import list_conditions

# Where no cell like it was measured. On an H200, a process that chooses its kernels, or compiles,
# while the others rest takes 4 s (ResNet152) to 15 s (EfficientNetV2-S) in all.
CELL_S, MEMBER_S, IN_TURN_S = 9.0, 3.5, 4.0
WORK_S = 20.0  # a fixed amount of work
ON_CPU = 0.15  # times these guesses: the models of `smoke` are tiny

Attempts = dict[str, list[CellAttempt]]  # by cell id


class DurationEstimates:
    """A cell takes its windows, and beside them the median of what other replicates took.

    attempts: of this study. on_gpu: False where the cells run on a CPU.
    """

    def __init__(self, attempts: Attempts, on_gpu: bool = True):
        self._guess = 1.0 if on_gpu else ON_CPU
        self._beside = self._medians(attempts)

    def cell_seconds(self, cell: Cell) -> float:
        """Seconds from the start of the cell's job to its end."""
        kind = cell.id.rpartition("/")[0]
        if kind not in self._beside:
            in_turn = IN_TURN_S * (cell.spec.measure.autotune == "sequential")
            self._beside[kind] = self._guess * (CELL_S + (MEMBER_S + in_turn) * cell.n)
        return max(self._beside[kind] + self._windows(cell.spec.to_json()), 1.0)

    def _medians(self, attempts: Attempts) -> dict[str, float]:
        """Scenario/implementation/method → seconds that its cells took beside their windows."""
        took: dict[str, list[float]] = {}
        for cell, tried in attempts.items():
            for attempt in tried:
                timing = attempt.record.timing if attempt.status in MEASURED else {}
                if timing.get("total_s", 0) > 0:
                    seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                    seconds -= self._windows(attempt.record.spec)
                    took.setdefault(cell.rpartition("/")[0], []).append(seconds)
        return {kind: median_high(each) for kind, each in took.items()}

    def _windows(self, spec: dict) -> float:
        """Seconds that the measure itself takes; guessed where that is an amount of work."""
        measure = spec.get("measure") or {}
        if measure.get("kind") == "interleaved":
            names = [member["workload"] for member in spec["members"]]
            slices = len(list_conditions(spec["method"], names)) * measure.get("slices", 0)
            windows = slices * measure.get("slice_s", 0.0)
        else:
            count = 2 if measure.get("kind") in ("departure", "completion") else 1
            windows = count * measure.get("window_s", self._guess * WORK_S)
            windows += measure.get("settle_s", 0)
        return windows + measure.get("warmup_s", 0)
