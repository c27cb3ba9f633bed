"""Do the intervals hold what they promise? A study's own cells and hosts, each left out once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.estimates import PREDICTION
from analysis.intervals import OF, over_hosts, reach, scaled

COVERED = ("rate", "stp", "s", "rate_over_naive")
CELLS, HOSTS = "cells", "hosts"  # what is left out


def coverage(single: pd.DataFrame) -> Iterator[dict]:
    """Numbers of the study: the share of cells that lie in their host's interval, and of hosts that
    lie in the prediction for a new host, made without them; by quantity and kind, and of all.

    single: estimates of single hosts, of `intervals.by_host`.
    """
    single = single[single["quantity"].isin(COVERED)]
    for name, found in ((CELLS, _cells(single)), (HOSTS, _hosts(single))):
        if len(found):
            yield _row(name, found)
        for (kind, quantity), of in found.groupby(["kind", "quantity"]):
            yield _row(f"{name}/{kind}/{quantity}", of)


def _row(name: str, found: pd.DataFrame) -> dict:
    share, n = float(found["inside"].mean()), len(found)
    return {"quantity": "covered", "name": name, "value": share, "n": n}


def _cells(single: pd.DataFrame) -> pd.DataFrame:
    """Each cell that is not the only one of its set on its host: whether it lies in the interval
    that the others give, with a variance from which it was left out.
    """
    cells = single[["quantity", "turned", "kind", "n", "replicates"]].explode("replicates")
    cells["value"] = [replicate["value"] for replicate in cells["replicates"]]
    own = pd.Series(scaled(cells), cells.index)
    cells["off"] = own - own.groupby(level=0).transform("mean")
    cells = cells[cells["n"] > 1]
    n, pool = cells["n"], [cells["quantity"], cells["turned"], cells["kind"]]
    squares = (cells["off"] ** 2).groupby(pool).transform("sum")
    freedom = (1 - 1 / n).groupby(pool).transform("sum").round()
    left = squares - cells["off"] ** 2 * n / (n - 1)
    half = reach(freedom - 1, left) * np.sqrt(1 + 1 / (n - 1))
    inside = (cells["off"] * n / (n - 1)).abs() <= half
    return cells.assign(inside=inside)[half.notna() & (squares > 0)]


def _hosts(single: pd.DataFrame) -> pd.DataFrame:
    """Each host's numbers: whether they lie in what all other hosts predict of a new one."""
    found = [single.iloc[:0].assign(inside=False)]
    for host in dict.fromkeys(single["host"]):
        new = over_hosts(single[single["host"] != host])
        new = new[(new["spread"] == PREDICTION) & (new["low"] < new["high"])] if len(new) else new
        if len(new):
            own = single[single["host"] == host]
            both = own.merge(new[[*OF, "low", "high"]], on=OF, suffixes=("", "_new"))
            found.append(
                both.assign(inside=both["value"].between(both["low_new"], both["high_new"]))
            )
    return pd.concat(found)
