"""Rows over time, and what they come to over a window."""

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from workflow.collocation.record.slices import activity


class Series:
    """Rows of one thing over time. Times are ns; a value that is missing is NaN in here.

    rates: the columns that are means since the row before that has any of them.
    """

    def __init__(self, rows: Iterable[dict], rates: Iterable[str] = ()):
        self.rows, self.rates = list(rows), tuple(rates)
        self.t = np.array([row["t"] for row in self.rows], np.int64)
        self._columns: dict[str, np.ndarray] = {}

    def column(self, name: str) -> np.ndarray:
        if name not in self._columns:
            self._columns[name] = np.array([row["v"].get(name) for row in self.rows], float)
        return self._columns[name]

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows that have rates, by index, and what they are means over: from and to (ns)."""
        rows = np.flatnonzero(self.known(self.rates))
        since = np.concatenate([np.maximum(rows[:1] - 1, 0), rows[:-1]])
        return rows, self.t[since], self.t[rows]

    def known(self, any_of: Iterable[str]) -> np.ndarray:
        """Whether each row has any of these columns."""
        there = [np.isfinite(self.column(name)) for name in any_of]
        return np.any(there, axis=0) if there else np.zeros(len(self.t), bool)

    def readings(self, name: str, start: int, end: int) -> np.ndarray:
        """Those in [start, end) that are known."""
        values = self.column(name)[(self.t >= start) & (self.t < end)]
        return values[np.isfinite(values)]

    def mean(self, name: str, start: int, end: int) -> float | None:
        """Of the readings in [start, end)."""
        values = self.readings(name, start, end)
        return float(values.mean()) if len(values) else None

    def rate(self, name: str, start: int, end: int, known: float = 0.0) -> float | None:
        """Mean over [start, end); None where no more than `known` of that time is covered."""
        rows, since, until = self.spans
        values = self.column(name)[rows]
        overlap = np.minimum(until, end) - np.maximum(since, start)
        weights = np.where(np.isfinite(values), np.maximum(overlap, 0), 0)
        if weights.sum() <= known * (end - start):
            return None
        return float(np.average(np.nan_to_num(values), weights=weights))

    def rate_within(self, name: str, pieces: list[tuple[int, int]]) -> float | None:
        """Mean over the rows of which each lies in one of these slices as a whole."""
        rows, since, until = self.spans
        sums, took = activity(since, until, self.column(name)[rows], pieces)
        return float(sums.sum() / took.sum()) if took.any() else None

    def over(self, name: str, ends: tuple[int, int], pieces: list | None) -> float | None:
        """Mean over a window: of a rate by how long it was so, of a gauge over the readings. Of
        slices, whose neighbours are other loads, only by rows that lie in them as a whole.
        """
        if name in self.rates:
            return self.rate_within(name, pieces) if pieces else self.rate(name, *ends)
        values = np.concatenate([self.readings(name, *piece) for piece in pieces or [ends]])
        return float(values.mean()) if len(values) else None

    def growth(self, name: str, start: int, end: int) -> float | None:
        """Of a counter over [start, end), straight between readings."""
        found = self._around(name, start, end)
        return float(found[1][-1] - found[1][0]) if found else None

    def integral(self, name: str, start: int, end: int) -> float | None:
        """Of a reading over [start, end), by trapezoids, in its unit times s."""
        found = self._around(name, start, end)
        return float(np.trapezoid(found[1], found[0] / 1e9)) if found else None

    def _around(self, name: str, start: int, end: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The readings in (start, end) with one at each end, times since start; None unless there
        are some before or at both.
        """
        values = self.column(name)
        there = np.isfinite(values)
        t, values = self.t[there] - start, values[there]
        within = (t > 0) & (t < end - start)
        if not len(t) or (not within.any() and (t[0] > 0 or t[-1] < end - start)):
            return None
        at = np.concatenate([[0], t[within], [end - start]])
        return at, np.interp(at, t, values)

    def longest_gap(self, start: int, end: int, any_of: Iterable[str] = ()) -> float:
        """Most seconds in [start, end) without a row; with `any_of`, one that knows one of these.

        Where no row lies inside, those around it count; infinite where none was before, either.
        """
        t = self.t[self.known(any_of)] if any_of else self.t
        inside, before, after = t[(t >= start) & (t < end)], t[t < start], t[t >= end]
        if len(inside):
            points = [start, *inside, end]
        elif len(before):
            points = [before[-1], after[0] if len(after) else end]
        else:
            return math.inf
        return float(np.diff(points).max()) / 1e9
