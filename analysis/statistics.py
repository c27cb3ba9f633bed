"""Intervals over replicates, on log ratios, with a variance pooled over a workload's cells."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache


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


def pooled_estimates(
    ratios: Mapping[Hashable, Sequence[float]],
    fixed: frozenset[Hashable] | set[Hashable] = frozenset(),
    confidence: float = 0.95,
) -> dict[Hashable, Estimate]:
    """Estimate each cell's ratio; `ratios` holds the replicates (> 0) of one workload's cells.

    Per cell the mean of the logs, ± t(df) · s / √R, where s² pools the squares within all cells
    and df their degrees of freedom. A ratio already carries its baseline's error, since it is
    taken within its block. Cells in `fixed` are ratios of a run to itself (1 by construction):
    they bring no variance and get no interval. Nor does a cell with one replicate.
    """
    logs = {key: [math.log(r) for r in values] for key, values in ratios.items() if len(values)}
    means = {key: math.fsum(values) / len(values) for key, values in logs.items()}
    squares, df = 0.0, 0
    for key, values in logs.items():
        if key not in fixed:
            squares += math.fsum((v - means[key]) ** 2 for v in values)
            df += len(values) - 1
    result = {}
    for key, values in logs.items():
        found = Estimate(math.exp(means[key]), None, None, len(values))
        if key not in fixed and len(values) >= 2:
            error = math.sqrt(squares / df / len(values))
            half = t_quantile((1 + confidence) / 2, df) * error
            low, high = math.exp(means[key] - half), math.exp(means[key] + half)
            found = Estimate(found.mean, low, high, len(values), error, df)
        result[key] = found
    return result


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
