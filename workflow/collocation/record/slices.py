"""How busy a GPU was in the slices of an interleaved cell, from readings over time."""

import numpy as np

# A reading may be of a time that ended so much earlier: on an H200 the first readings of a slice of
# one job, after one of seven, were up to 0.71, and later ones 0.23.
LAG_NS = 100_000_000


def activity(
    since: np.ndarray, until: np.ndarray, values: np.ndarray, spans: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """For each slice the sum of readings times their length, and the sum of their lengths (ns).

    since, until: int64 [readings], the time that each reading is a mean over. spans: (start, stop)
    of the slices, in order. Only readings count that lie in one slice as a whole, LAG_NS after its
    start or later: the others hold some of another load.
    """
    starts, stops = np.array(spans).T
    at = np.searchsorted(starts + LAG_NS, since, side="right") - 1
    inside = (at >= 0) & (until <= stops[at]) & (until > since) & np.isfinite(values)
    at, took = at[inside], (until - since)[inside]
    sums = np.bincount(at, took * values[inside], len(spans))
    return sums, np.bincount(at, took, len(spans))


def means(t: np.ndarray, values: np.ndarray, spans: list[tuple[int, int]]) -> list[float | None]:
    """Mean of each slice, None where no reading is of this slice alone. values: each a mean since
    the reading before it, at times `t` (ns).
    """
    sums, took = activity(t[:-1], t[1:], values[1:], spans)
    return [float(s / ns) if ns else None for s, ns in zip(sums, took, strict=True)]
