"""Metrics of collocation by their standard names. Pure functions of plain sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence


def progress(collocated: float, alone: float) -> float:
    """Normalised progress of a member: collocated throughput / throughput alone (samples/s)."""
    return collocated / alone


def stp(progresses: Sequence[float]) -> float:
    """System throughput: Σ normalised progress. N where nobody disturbs anybody.

    For equal members this is the paper's throughput gain, serial time / collocated time.
    """
    return math.fsum(progresses)


def antt(progresses: Sequence[float]) -> float:
    """Average normalised turnaround time: mean slowdown, (1/N) Σ 1/progress."""
    if min(progresses) <= 0:
        return math.inf
    return math.fsum(1 / p for p in progresses) / len(progresses)


def jain(progresses: Sequence[float]) -> float:
    """Jain's fairness index (Σ p)² / (N Σ p²): 1 = all alike, 1/N = one member gets all."""
    top = max(progresses)
    if top <= 0:
        return math.nan
    scaled = [p / top for p in progresses]  # keeps tiny values from underflowing
    return math.fsum(scaled) ** 2 / (len(scaled) * math.fsum(p * p for p in scaled))


def serial_time(work: Sequence[float], alone: Sequence[float]) -> float:
    """Seconds if the jobs ran one after the other: Σ work / rate alone (work in samples)."""
    return math.fsum(w / r for w, r in zip(work, alone, strict=True))


def makespan(work: Sequence[float], collocated: Sequence[float], alone: Sequence[float]) -> float:
    """Seconds until fixed work (samples per job) is done by jobs that start together.

    All run at their collocated rates until one job is left; what it still has to do runs at its
    rate alone. For two jobs that is exact. For more it assumes that survivors gain nothing
    before the last one stands alone, so it is an upper bound where leaving helps.
    """
    ends = sorted(
        (w / c if c > 0 else math.inf, i)
        for i, (w, c) in enumerate(zip(work, collocated, strict=True))
    )
    end, last = ends[-1]
    others = ends[-2][0] if len(ends) > 1 else 0.0
    if not math.isfinite(others):
        return math.inf
    if end == others:
        return end
    left = work[last] - collocated[last] * others
    return others + max(left, 0.0) / alone[last]


def saving(collocated: float, serial: float) -> float:
    """Share of what serial takes (time, energy) that collocation saves; < 0 is a loss."""
    return 1 - collocated / serial


def energy_per_sample(watts: float, rates: Sequence[float]) -> float:
    """J per sample of a set: its GPU's mean power / Σ samples/s of all who share it."""
    return watts / math.fsum(rates)
