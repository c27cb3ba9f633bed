"""Readings over time, and what they come to over a window.

The cell that measures and whoever checks it afterwards compute a window's values here.
"""

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

# A rate may be of a time that ended this much earlier: on an H200 the first readings of a slice of
# one job, after one of seven, were up to 0.71, and later ones 0.23.
LAG_NS = 100_000_000
# Shares of the GPU's time or cycles. DCGM has told 1.29 of an A100's instance.
SHARES = ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64", "integer")
SHARES += ("ctxsw_active", "gpu_util", "memory_util")
MAX_SHARE = 1 + 1e-6  # of a share, in single precision

Pieces = list[tuple[int, int]]


class Series:
    """Readings of one thing at times t (ns); in columns, a value that is missing is NaN.

    rates: the columns that are means since the row before that has any of them.
    """

    def __init__(self, t: np.ndarray, columns: dict[str, np.ndarray], rates: Iterable[str]):
        self.t, self.columns, self.rates = t, columns, tuple(rates)

    @classmethod
    def of_rows(cls, rows: list[dict], names: Iterable[str], rates: Iterable[str] = ()) -> "Series":
        """Of the sampler's rows: a time "t" and values "v" by name."""
        columns = {name: np.array([row["v"].get(name) for row in rows], float) for name in names}
        return cls(np.array([row["t"] for row in rows], np.int64), columns, rates)

    @classmethod
    def of_table(cls, table) -> "Series":
        """Of rows of gpu, member or host.parquet, as an Arrow table with its metadata."""
        kinds = {field.name: (field.metadata or {}).get(b"kind") for field in table.schema}
        columns = {n: table[n].to_numpy().astype(float) for n, kind in kinds.items() if kind}
        t = table["t_ns"].to_numpy() + int(table.schema.metadata[b"origin_ns"])
        return cls(t, columns, [name for name, kind in kinds.items() if kind == b"rate"])

    def over(
        self, name: str, ends: tuple[int, int], pieces: Pieces | None = None, known: float = 0.0
    ) -> float | None:
        """Mean over a window: of a rate by how long it was so, of a gauge over the readings.

        pieces: the slices that the window consists of, if it does. None where no more than `known`
        of the time is covered, or where a share reads below 0 or above 1.
        """
        values, weights = self.counting(name, ends, pieces)
        too_few = weights.sum() <= known * (ends[1] - ends[0])
        if too_few or (name in SHARES and not 0 <= values.min() <= values.max() <= MAX_SHARE):
            return None
        return float(np.average(values, weights=weights))

    def readings(self, name: str, pieces: Pieces) -> np.ndarray:
        """Those that were taken in one of these [start, end) and are known."""
        values = self.columns[name]
        there = [(self.t >= start) & (self.t < end) for start, end in pieces]
        return values[np.any(there, axis=0) & np.isfinite(values)]

    def integral(self, name: str, ends: tuple[int, int]) -> float | None:
        """Of a reading over [start, end), by trapezoids, in its unit times s."""
        found = self._around(name, *ends)
        return float(np.trapezoid(found[1], found[0] / 1e9)) if found else None

    def longest_gap(self, ends: tuple[int, int], any_of: Iterable[str] = ()) -> float:
        """Most seconds in [start, end) without a row; with `any_of`, one that knows one of these.

        Where no row lies inside, those around it count; infinite where none was before, either.
        """
        t, (start, end) = (self.t[self._known(any_of)] if any_of else self.t), ends
        inside, before, after = t[(t >= start) & (t < end)], t[t < start], t[t >= end]
        if not len(inside) and not len(before):
            return math.inf
        points = [start, *inside, end] if len(inside) else [before[-1], *after[:1], end][:2]
        return float(np.diff(points).max()) / 1e9

    def counting(self, name: str, ends: tuple[int, int], pieces: Pieces | None):
        """The values that count in a window, and how much each does.

        Neighbours of a slice are other loads. So of slices only rates count that lie in one as a
        whole, LAG_NS after its start or later.
        """
        if name not in self.rates:
            values = self.readings(name, pieces or [ends])
            return values, np.ones(len(values))
        rows, since, until = self._spans
        values = self.columns[name][rows]
        if pieces:
            starts, stops = np.array(pieces).T
            piece = np.searchsorted(starts + LAG_NS, since, side="right") - 1
            weights = np.where((piece >= 0) & (until <= stops[piece]), until - since, 0)
        else:
            weights = np.minimum(until, ends[1]) - np.maximum(since, ends[0])
        count = np.isfinite(values) & (weights > 0)
        return values[count], weights[count]

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows that have rates, by index, and what they are means over: from and to (ns)."""
        rows = np.flatnonzero(self._known(self.rates))
        since = np.concatenate([np.maximum(rows[:1] - 1, 0), rows[:-1]])
        return rows, self.t[since], self.t[rows]

    def _known(self, any_of: Iterable[str]) -> np.ndarray:
        """Whether each row has any of these columns."""
        return np.any([np.isfinite(self.columns[name]) for name in any_of], axis=0)

    def _around(self, name: str, start: int, end: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The readings in (start, end) with one at each end, times since start; None unless there
        are some before or at both.
        """
        values = self.columns[name]
        there = np.isfinite(values)
        t, values = self.t[there] - start, values[there]
        within = (t > 0) & (t < end - start)
        if not len(t) or (not within.any() and (t[0] > 0 or t[-1] < end - start)):
            return None
        at = np.concatenate([[0], t[within], [end - start]])
        return at, np.interp(at, t, values)
