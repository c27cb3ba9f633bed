"""The gains that the paper's sources report, as figures put them beside ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from analysis import reported
from analysis.quantities import Quantity, quantity
from analysis.views import Key, View

# The first that says something of a set of jobs stands for it.
SOURCES = ("SUIT25", "SLIDES", "LEC22")
OLD = "LEC22"
OLD_SAID = "older software, batch not stated"


@dataclass(frozen=True)
class Gains:
    """What is reported of a set of jobs under a method.

    what: the number that both sides are compared by. said: source → number and status, in the
    order of SOURCES; no number where the cell did not complete.
    """

    what: Quantity
    said: dict[str, tuple[float | None, str]]

    @property
    def first(self) -> tuple[str, float | None]:
        """The source that stands for the set, and its number."""
        source = next(iter(self.said))
        return source, self.said[source][0]


def gains(values: pd.DataFrame) -> dict[Key, Gains]:
    """By set and method, but jobs alone as plain processes; values: analysis.reported.read.

    The number is the gain (STP); of a mix whose time as a whole is reported, serial time over
    time, for the same fixed work.
    """
    work, views = reported.work(values), reported.views(values)
    found: dict[Key, Gains] = {}
    for source in SOURCES:
        for view in views[source]:
            what = _compared_by(view, work[source])
            value = what.of(view) if view.completed else None
            if not view.key.is_baseline and (value or not view.completed):
                known = found.setdefault(view.key, Gains(what, {}))
                known.said[source] = (value, view.status)
    return found


def _compared_by(view: View, work: dict[str, float]) -> Quantity:
    if view.total is None:
        return quantity("gain")
    time = quantity("time", work=work)

    def over_time(view: View) -> float | None:
        share = time.of(view)
        return 1 / share if share else None

    return replace(time, name="serial time over time for fixed work", of=over_time)
