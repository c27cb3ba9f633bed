"""Do the intervals hold what they promise? A study's own cells and hosts, each left out once."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.estimates.intervals import (
    OF,
    chosen,
    freedom,
    over_hosts,
    pools,
    scaled,
    sharing,
    totals,
)
from analysis.estimates.table import PREDICTION

COVERED = ("rate", "stp", "s", "rate_over_naive")
CELLS, HOSTS = "cells", "hosts"  # what is left out


def coverage(single: pd.DataFrame) -> Iterator[dict]:
    """Numbers of the study: the share of cells that lie in their host's interval, and of hosts that
    lie in the prediction for a new host, made without them; by quantity and kind, and of all.
    Their notes say how many cells and hosts that is: numbers that share a cell are as one.

    single: estimates of single hosts, of `intervals.by_host`.
    """
    single = single[single["quantity"].isin(COVERED)]
    for name, found in ((CELLS, _cells(single)), (HOSTS, _hosts(single))):
        if len(found):
            yield _row(name, found)
        for (kind, quantity), of in found.groupby(["kind", "quantity"]):
            yield _row(f"{name}/{kind}/{quantity}", of)


def _row(name: str, found: pd.DataFrame) -> dict:
    share, n, hosts = float(found["inside"].mean()), len(found), found["host"].nunique()
    cells = len({r["over"] or r["cell"] for own in found["replicates"] for r in own})
    note = f"{cells} cells on {hosts} host{'s' * (hosts != 1)}"
    return {"quantity": "covered", "name": name, "value": share, "n": n, "note": note}


def _cells(single: pd.DataFrame) -> pd.DataFrame:
    """Each cell that is not the only one of its set on its host: whether it lies in the interval
    that the others give, with a variance from which the whole cell was left out: all numbers that
    are of it, or of the same job alone.
    """
    cells = single.explode("replicates")
    for name in ("value", "cell", "over"):
        cells[name] = [replicate[name] for replicate in cells["replicates"]]
    own = pd.Series(scaled(cells), cells.index)
    cells["off"] = own - own.groupby(level=0).transform("mean")
    cells = cells[cells["n"] > 1].reset_index(drop=True)
    n, squares = cells["n"], cells["off"] ** 2
    cells = cells.assign(squares=squares, count=1 - 1 / n, freedom=freedom(cells))
    # What each takes with it where it is left out: of two cells, the other one, too.
    lost = cells[["squares", "count", "freedom"]].mul(n / (n - 1), axis=0)
    pairs, left = sharing(cells), []
    for by in pools(cells, "turned"):
        pool = cells.groupby(by).ngroup().to_numpy()
        own = pairs[pool[pairs["at"]] == pool[pairs["other"]]]
        left.append(totals(cells, by) - lost.loc[own["other"]].groupby(own["at"].to_numpy()).sum())
    half = chosen(*left) * np.sqrt(1 + 1 / (n - 1))
    inside = (cells["off"] * n / (n - 1)).abs() <= half
    varies = totals(cells, by)["squares"] > 0
    cells["replicates"] = [[replicate] for replicate in cells["replicates"]]
    return cells.assign(inside=inside)[half.notna() & varies]


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
