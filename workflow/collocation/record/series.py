"""Time series of readings, and their means over a window.

Both the cell that measures and the checks of its record compute the means here.
"""

import math
from collections.abc import Iterable
from functools import cache, cached_property

import numpy as np

# A rate may lag by this much: on an H200 the first readings of a slice with one job, after a slice
# with seven, were up to 0.71, and later ones 0.23.
LAG_NS = 100_000_000
# Shares of the GPU's time or cycles. DCGM has reported 1.29 for an instance of an A100.
SHARES = ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64", "integer")
SHARES += ("gpu_util", "memory_util")
MAX_SHARE = 1 + 1e-6  # rounding in single precision

Pieces = list[tuple[int, int]]


class Series:
    """Readings of one device, process or host.

    t: int64 [rows], times in ns. columns: name → float [rows], NaN where missing. rates: names of
    the columns that are means since the previous row with any rate; all others are gauges.
    """

    def __init__(self, t: np.ndarray, columns: dict[str, np.ndarray], rates: Iterable[str]):
        self.t, self.columns, self.rates = t, columns, tuple(rates)
        self._weights = cache(self._find_weights)

    @classmethod
    def of_rows(cls, rows: list[dict], names: Iterable[str], rates: Iterable[str] = ()) -> "Series":
        """From the sampler's rows: a time "t", and values "v" by name."""
        columns = {name: np.array([row["v"].get(name) for row in rows], float) for name in names}
        return cls(np.array([row["t"] for row in rows], np.int64), columns, rates)

    @classmethod
    def of_table(cls, table) -> "Series":
        """From an Arrow table of rows of gpu, member or host.parquet, with its metadata."""
        kinds = {field.name: (field.metadata or {}).get(b"kind") for field in table.schema}
        columns = {n: table[n].to_numpy().astype(float) for n, kind in kinds.items() if kind}
        t = table["t_ns"].to_numpy() + int(table.schema.metadata[b"origin_ns"])
        return cls(t, columns, [name for name, kind in kinds.items() if kind == b"rate"])

    def over(
        self,
        name: str,
        ends: tuple[int, int],
        pieces: Pieces | None = None,
        min_coverage: float = 0.0,
    ) -> float | None:
        """Mean of a column over a window; readings of a rate are weighted by their duration.

        ends, pieces: start and end of the window, and its slices if it has any, in ns. Returns None
        if no more than `min_coverage` of the time is covered, or if a share is not in 0 to 1.
        """
        values, weights = self.weighted_values(name, ends, pieces)
        if weights.sum() <= min_coverage * (ends[1] - ends[0]):
            return None
        if name in SHARES and not 0 <= values.min() <= values.max() <= MAX_SHARE:
            return None
        return float(np.average(values, weights=weights))

    def readings(self, name: str, pieces: Pieces) -> np.ndarray:
        """The values of a column that were read in one of these [start, end), in ns."""
        values = self.columns[name]
        return values[self._is_inside(pieces) & np.isfinite(values)]

    def _is_inside(self, pieces: Iterable[tuple[int, int]]) -> np.ndarray:
        """Whether each row was read in one of these [start, end), in ns."""
        return np.any([(self.t >= start) & (self.t < end) for start, end in pieces], axis=0)

    def integral(self, name: str, ends: tuple[int, int]) -> float | None:
        """Integral of a column over [start, end) in ns, by trapezoids, in its unit times s."""
        points = self._interpolated(name, *ends)
        if points is None:
            return None
        times, values = points
        return float(np.trapezoid(values, times / 1e9))

    def longest_gap(self, ends: tuple[int, int], any_of: Iterable[str] = ()) -> float:
        """The longest time in s without a row in [start, end), in ns.

        any_of: only rows with a value in one of these columns count. If no row lies inside, the gap
        reaches from the row before to the next one; it is infinite if there is none before.
        """
        start, end = ends
        t = self.t[self._has_any(any_of)] if any_of else self.t
        inside = t[(t >= start) & (t < end)]
        if len(inside):
            return float(np.diff([start, *inside, end]).max()) / 1e9
        before, after = t[t < start], t[t >= end]
        if not len(before):
            return math.inf
        next_row = after[0] if len(after) else end
        return float(next_row - before[-1]) / 1e9

    def weighted_values(
        self, name: str, ends: tuple[int, int], pieces: Pieces | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The values of a column that count in a window, and their weights.

        The load differs before and after a slice. So in slices a rate counts only if its whole time
        lies in one slice, at least LAG_NS after its start.
        """
        rows, weights = self._weights(name in self.rates, ends, tuple(map(tuple, pieces or ())))
        values = self.columns[name][rows]
        is_read = np.isfinite(values)
        return values[is_read], weights[is_read]

    def _find_weights(
        self, of_rates: bool, ends: tuple[int, int], pieces: tuple[tuple[int, int], ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the rows that count in a window, and their weights, for any column."""
        if not of_rates:
            rows = np.flatnonzero(self._is_inside(pieces or [ends]))
            return rows, np.ones(len(rows))
        rows, since, until = self._spans
        if pieces:
            starts, stops = np.array(pieces).T
            piece = np.searchsorted(starts + LAG_NS, since, side="right") - 1
            weights = np.where((piece >= 0) & (until <= stops[piece]), until - since, 0)
        else:
            weights = np.minimum(until, ends[1]) - np.maximum(since, ends[0])
        return rows[weights > 0], weights[weights > 0]

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The indices of rows with rates, and the start and end (ns) of the time of each."""
        rows = np.flatnonzero(self._has_any(self.rates))
        since = np.concatenate([np.maximum(rows[:1] - 1, 0), rows[:-1]])
        return rows, self.t[since], self.t[rows]

    def _has_any(self, names: Iterable[str]) -> np.ndarray:
        """Whether each row has a value in any of these columns."""
        return np.any([np.isfinite(self.columns[name]) for name in names], axis=0)

    def _interpolated(
        self, name: str, start: int, end: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Times since start and values of the readings in (start, end) and at both ends.

        None if there are no readings inside, nor on both sides.
        """
        values = self.columns[name]
        is_read = np.isfinite(values)
        t, values = self.t[is_read] - start, values[is_read]
        within = (t > 0) & (t < end - start)
        if not len(t) or (not within.any() and (t[0] > 0 or t[-1] < end - start)):
            return None
        times = np.concatenate([[0], t[within], [end - start]])
        return times, np.interp(times, t, values)
