"""The tables of the page that says why a study's numbers can be believed."""

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.coverage import CELLS, COVERED, HOSTS
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import Row
from analysis.report.pages import spelling as as_
from analysis.report.pages.tables import Number


def coverage(estimates: pd.DataFrame) -> pd.DataFrame:
    """How many cells and hosts lie in the interval made without them, by kind and quantity."""
    names, rows = set(table.select(estimates, "covered")["name"]), []
    for kind, title in labels.KINDS.items():
        for quantity in COVERED:
            own = [f"{what}/{kind}/{quantity}" for what in (CELLS, HOSTS)]
            if not names.isdisjoint(own):
                cells, hosts = (table.get(estimates, "covered", name=name) for name in own)
                said = {"jobs": title, "quantity": QUANTITIES[quantity].title}
                said |= {"next cells inside": Number(cells, as_.share_of)}
                rows.append(said | {"new hosts inside": Number(hosts, as_.share_of)})
    return pd.DataFrame(rows)


def agreement(estimates: pd.DataFrame) -> pd.DataFrame:
    """Comparisons of a set with itself: the ratio should be 1. Shown: the interval excludes a
    larger difference than the bound.
    """
    rows = []
    for e in table.select(estimates, "aa", host="*").itertuples():
        most = 0.03 if e.jobs == 1 else 0.003  # a job alone changes its speed with its host
        said = {"compared": "the same set twice, in turns in one cell"}
        said |= {"jobs": labels.scenario(e.scenario)}
        said |= {"written": labels.implementation(e.implementation), "host": e.host}
        said |= {"ratio": Number(e, as_.precise), "of": Number(e, as_.how_many)}
        rows.append(said | {"within its bound": f"{_within(e, most)} ({100 * most:g} %)"})
    return pd.DataFrame(rows)


def _within(e: Row, most: float) -> str:
    """Whether the interval shows that a ratio differs from 1 by no more than so much."""
    if e.low != e.low or any(e.low < end < e.high for end in (1 - most, 1 + most)):
        return "not shown"
    return "yes" if 1 - most < e.low and e.high < 1 + most else "no"
