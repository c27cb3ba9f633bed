"""Rates of a job that pauses, from whole cycles of steps and pauses.

A script may stop stepping for a while, again and again: to evaluate, to collect data, to start
again. A rate over any piece of time then depends on how many pauses are in it. So its time is cut
where a pause begins, into cycles, and only whole ones count. A steady job's time is cut into blocks
of as many steps each. Cycles and blocks are the samples from which intervals come.
"""

from typing import NamedTuple

import numpy as np

PAUSE_S, PAUSE_STEPS = 0.25, 5  # a pause is longer than that, and than so many median steps
IGNORED = 0.03  # share of the time up to which pauses count as slow steps
LIKE_LONGEST = 0.5  # cycles end at pauses of at least so much of the longest one
LEAST_CYCLES = 3  # for an interval
BLOCKS = 8  # of a steady job


class StepBlocks(NamedTuple):
    """Whole cycles or blocks, in order.

    steps, seconds: float [n], of each. pauses: whether the job pauses, so that they are cycles.
    """

    steps: np.ndarray
    seconds: np.ndarray
    pauses: bool

    @property
    def rate(self) -> float:
        """Steps per second; NaN without a whole cycle."""
        if not len(self.steps):
            return np.nan
        return float(self.steps.sum() / self.seconds.sum())

    @property
    def relative_error(self) -> float:
        """Standard error of `rate`, relative to it; NaN from fewer than two cycles."""
        count = len(self.steps)
        if count < 2:
            return np.nan
        residuals = self.steps - self.rate * self.seconds
        return float(np.sqrt(count / (count - 1) * np.sum(residuals**2)) / self.steps.sum())


def cycle_ends(end_ns: np.ndarray) -> np.ndarray:
    """Indices of the steps after which a cycle's pause begins; empty for a steady job.

    Pauses of different lengths nest, as of logging and of evaluation: cycles end at the longest
    ones, as far as these matter for the rate.

    end_ns: int64 [steps], when each step ended.
    """
    gaps = np.diff(end_ns)
    if not len(gaps):
        return np.empty(0, int)
    least = _longest_step_ns(gaps)
    pauses = gaps[gaps > least]
    while pauses.sum() > IGNORED * gaps.sum():
        longest = pauses >= LIKE_LONGEST * pauses.max()
        is_rare = longest.sum() <= LEAST_CYCLES
        if not is_rare or pauses[longest].sum() > IGNORED * gaps.sum():
            return np.flatnonzero((gaps > least) & (gaps >= pauses[longest].min()))
        pauses = pauses[~longest]
    return np.empty(0, int)


def progress_in(end_ns: np.ndarray, start_ns: int, stop_ns: int) -> StepBlocks:
    """Whole cycles, or blocks, of the steps that ended in [start_ns, stop_ns); it may have none.

    end_ns: int64 [steps], when each step of the job ended.
    """
    inside = end_ns[(end_ns >= start_ns) & (end_ns < stop_ns)]
    edges = cycle_ends(inside)
    pauses = bool(len(edges))
    if not pauses:
        # A pause that the window's end cuts off, too, makes the job one that pauses.
        pauses = len(inside) > 1 and _pauses_at_end(inside, stop_ns)
        count = 0 if pauses else min(BLOCKS, len(inside) - 1)
        edges = np.linspace(0, len(inside) - 1, count + 1).astype(int) if count > 0 else edges
    return StepBlocks(np.diff(edges).astype(float), np.diff(inside[edges]) / 1e9, pauses)


def _pauses_at_end(end_ns: np.ndarray, stop_ns: int) -> bool:
    rest_ns = stop_ns - end_ns[-1]
    is_pause = rest_ns > _longest_step_ns(np.diff(end_ns))
    return bool(is_pause and rest_ns > IGNORED * (stop_ns - end_ns[0]))


def _longest_step_ns(gaps: np.ndarray) -> float:
    """The longest time from one step to the next that is no pause. gaps: all such times, in ns."""
    return max(PAUSE_S * 1e9, PAUSE_STEPS * np.median(gaps))
