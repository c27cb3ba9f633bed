"""Estimates how long cells will take, from cells like them that were measured."""

from statistics import median_high

from workflow.collocation.plan.attempts import CellAttempt
from workflow.collocation.record.run_json import MEASURED
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.names import list_conditions

# Seconds of a cell that is like none measured: in all, for each member, and for each member that
# chooses its kernels while others wait, which takes 4 to 15 s on an H200.
CELL_S, MEMBER_S, AUTOTUNE_S = 9.0, 3.5, 4.0
WORK_S = 20.0  # a fixed amount of work
CPU_FACTOR = 0.15  # the models of the study `smoke` are tiny

Attempts = dict[str, list[CellAttempt]]  # by cell id


class DurationEstimates:
    """Durations of cells: their windows, and the median overhead of other replicates.

    attempts: at the cells of this study. on_gpu: False if the cells run on a CPU.
    """

    def __init__(self, attempts: Attempts, on_gpu: bool = True):
        self._factor = 1.0 if on_gpu else CPU_FACTOR
        self._overheads = self._median_overheads(attempts)

    def cell_seconds(self, cell: Cell) -> float:
        """Seconds from the start of the cell's job to its end."""
        kind = cell.id.rpartition("/")[0]
        overhead = self._overheads.get(kind)
        if overhead is None:
            member_s = MEMBER_S
            if cell.spec.measure.autotune == "sequential":
                member_s += AUTOTUNE_S
            overhead = self._factor * (CELL_S + member_s * cell.n)
        return max(overhead + self._window_seconds(cell.spec.to_json()), 1.0)

    def _median_overheads(self, attempts: Attempts) -> dict[str, float]:
        """Scenario/implementation/method → seconds that such cells took without their windows."""
        overheads: dict[str, list[float]] = {}
        for cell, cell_attempts in attempts.items():
            for attempt in cell_attempts:
                timing = attempt.record.timing if attempt.status in MEASURED else {}
                if timing.get("total_s", 0) > 0:
                    seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                    seconds -= self._window_seconds(attempt.record.spec)
                    overheads.setdefault(cell.rpartition("/")[0], []).append(seconds)
        return {kind: median_high(seconds) for kind, seconds in overheads.items()}

    def _window_seconds(self, spec: dict) -> float:
        """Seconds that the measurement itself takes; a guess if that is an amount of work."""
        measure = spec.get("measure") or {}
        if measure.get("kind") == "interleaved":
            workloads = [member["workload"] for member in spec["members"]]
            slices = len(list_conditions(spec["method"], workloads)) * measure.get("slices", 0)
            seconds = slices * measure.get("slice_s", 0.0)
        else:
            windows = 2 if measure.get("kind") in ("departure", "completion") else 1
            seconds = windows * measure.get("window_s", self._factor * WORK_S)
            seconds += measure.get("settle_s", 0)
        return seconds + measure.get("warmup_s", 0)
