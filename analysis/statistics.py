"""Intervals over replicates, on log ratios, with a variance pooled over a workload's cells.

The ratios of a block share its baseline: pooled cells are no independent evidence of the variance,
which its degrees of freedom allow for. A cell much noisier than the others speaks for itself.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


def t_cdf(t: float, df: int) -> float:
    """Student's t distribution function for whole degrees of freedom (closed form).

    Abramowitz & Stegun 26.7.3 and 26.7.4: a finite trigonometric sum. Raises ValueError if df < 1.
    """
    if df < 1:
        raise ValueError(f"degrees of freedom: {df} < 1")
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if df % 2 else 1.0
    total = 0.0
    for k in range(3 if df % 2 else 2, df + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    inner = 2 / math.pi * (angle + sine * total) if df % 2 else sine * total
    return 0.5 * (1 + inner)


@lru_cache(maxsize=4096)
def t_quantile(probability: float, df: int) -> float:
    """Inverse of `t_cdf` by bisection, to about 1e-12 relative."""
    if not 0 < probability < 1:
        raise ValueError(f"probability {probability} is not within (0, 1)")
    if probability < 0.5:
        return -t_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < probability:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Estimate:
    """Geometric mean of ratios, and its confidence interval; None where there is none.

    `error` is the standard error of the mean's log, with `df` degrees of freedom.
    """

    mean: float
    low: float | None
    high: float | None
    replicates: int
    error: float | None = None
    df: int | None = None


# A cell's own variance beyond this many times that of the others is its own, and no chance.
APART = 3.0


def pooled_estimates(
    ratios: Mapping[Hashable, Mapping[Hashable, float]],
    fixed: frozenset[Hashable] | set[Hashable] = frozenset(),
    confidence: float = 0.95,
) -> dict[Hashable, Estimate]:
    """Estimate each cell's ratio; `ratios` holds the replicates (> 0) of one workload's cells, by
    block: cells of one block share its baseline, and so its error.

    Per cell the mean of the logs, ± t(df) · s / √R, where s² pools the squares within all cells
    over R − 1 each. What cells of a block have in common is no independent evidence of s²: df is
    Satterthwaite's (`_degrees`). A cell whose own variance is more than APART times that of the
    others gets the interval of its own R replicates where that is wider. Cells in `fixed` are
    ratios of a run to itself (1 by construction): they bring no variance and get no interval. Nor
    does a cell with one replicate.
    """
    logs = {
        key: {block: math.log(ratio) for block, ratio in of.items()}
        for key, of in ratios.items()
        if of
    }
    means = {key: math.fsum(of.values()) / len(of) for key, of in logs.items()}
    pool = {
        key: {block: value - means[key] for block, value in of.items()}
        for key, of in logs.items()
        if key not in fixed and len(of) >= 2
    }
    squares = {key: math.fsum(off * off for off in of.values()) for key, of in pool.items()}
    total, freedom = math.fsum(squares.values()), sum(len(of) - 1 for of in pool.values())
    df = _degrees(list(pool.values()), total) if pool else 0
    level = (1 + confidence) / 2
    result = {}
    for key, of in logs.items():
        count, error, used = len(of), None, None
        if key in pool:
            error, used = math.sqrt(total / freedom / count), df
            own, others = squares[key] / (count - 1), freedom - (count - 1)
            if others and own > APART * (total - squares[key]) / others:
                alone = math.sqrt(own / count)
                if alone * t_quantile(level, count - 1) > error * t_quantile(level, df):
                    error, used = alone, count - 1
        half = None if error is None else error * t_quantile(level, used)
        low, high = (
            None if half is None else math.exp(means[key] + side * half) for side in (-1, 1)
        )
        result[key] = Estimate(math.exp(means[key]), low, high, count, error, used)
    return result


def _degrees(cells: Sequence[Mapping[Hashable, float]], squares: float) -> int:
    """Satterthwaite's degrees of freedom of the variance that pools these cells, rounded down.

    `cells` hold deviations from their mean by block, `squares` is the sum of their squares. Of the
    variance a share ρ is common to all cells of a block: by least squares, what is left beside
    block effects tells 1 − ρ; where nothing is left to tell, ρ is 1. With ρ the variance of s² is
    that of D / (1 + ρ² (T / D − 1)) degrees, D = Σ (R − 1), T the trace of the squared matrix of
    block effects within cells. For K cells in the same R blocks T / D is K: K (R − 1) degrees
    without a common share, R − 1 where all is common.
    """
    blocks = {block: at for at, block in enumerate(dict.fromkeys(b for of in cells for b in of))}
    present, off = np.zeros((2, len(cells), len(blocks)))
    for row, of in enumerate(cells):
        for block, value in of.items():
            present[row, blocks[block]], off[row, blocks[block]] = 1.0, value
    counts = present.sum(axis=1)
    freedom = float((counts - 1).sum())
    if squares == 0 or len(cells) == 1:
        return int(freedom)
    within = np.diag(present.sum(axis=0)) - (present.T / counts) @ present
    values, vectors = np.linalg.eigh(within)
    effects = values > 1e-9 * values[-1]
    explained = ((vectors.T @ off.sum(axis=0))[effects] ** 2 / values[effects]).sum()
    left, common = freedom - effects.sum(), 1.0
    if left > 0:
        rest = max(squares - float(explained), 0.0) / left
        common = min(max(1 - rest / (squares / freedom), 0.0), 1.0)
    spread = float((within**2).sum()) / freedom
    # Whole but for rounding is whole.
    return max(1, math.floor(freedom / (1 + common**2 * (spread - 1)) + 1e-6))


def tost(estimate: Estimate, margin: float) -> float | None:
    """p-value of two one-sided tests that a ratio lies within 1 / (1 + margin) … 1 + margin.

    On the log scale: the larger of P(t ≤ (m − δ) / s) and P(t ≥ (m + δ) / s) with δ = log(1 +
    margin), so that a ratio and its inverse get the same answer (Schuirmann 1987). It is at most α
    exactly where the 1 − 2α interval lies within the margin. None without a standard error; 0 or 1
    where that error is 0.
    """
    if estimate.error is None:
        return None
    mean, bound = math.log(estimate.mean), math.log1p(margin)
    if estimate.error == 0:
        return 0.0 if abs(mean) <= bound else 1.0
    return t_cdf((abs(mean) - bound) / estimate.error, estimate.df)
