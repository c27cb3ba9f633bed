"""Metrics of collocation. A job's progress is its throughput over that alone; STP is their sum.

All rates and progresses are above zero: a run with one that is not has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def antt(progresses: Sequence[float]) -> float:
    """Average normalised turnaround time: mean slowdown, (1/N) Σ 1/progress."""
    return math.fsum(1 / p for p in progresses) / len(progresses)


def jain(progresses: Sequence[float]) -> float:
    """Jain's fairness index (Σ p)² / (N Σ p²): 1 = all alike, 1/N = one member gets all."""
    top = max(progresses)
    scaled = [p / top for p in progresses]
    return math.fsum(scaled) ** 2 / (len(scaled) * math.fsum(p * p for p in scaled))


def makespan(work: Sequence[float], collocated: Sequence[float], alone: Sequence[float]) -> float:
    """Seconds until fixed work (samples per job) is done by jobs that start together.

    All run at their collocated rates until one job is left; what it still has to do runs at its
    rate alone. For two jobs that is exact. For more it assumes that survivors gain nothing
    before the last one stands alone, so it is an upper bound where leaving helps.
    """
    ends = sorted((w / c, i) for i, (w, c) in enumerate(zip(work, collocated, strict=True)))
    others = ends[-2][0] if len(ends) > 1 else 0.0
    _, last = ends[-1]
    return others + max(work[last] - collocated[last] * others, 0.0) / alone[last]
