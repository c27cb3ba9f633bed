"""Coverage of the intervals: a study's own cells and hosts, each left out once.

Counts how many cells lie in the interval that the other cells give, and how many hosts lie in the
prediction that the other hosts give.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.estimates import intervals
from analysis.estimates.table import PREDICTION

COVERED = ("rate", "stp", "s", "rate_over_naive")
CELLS, HOSTS = "cells", "hosts"  # what is left out


def interval_coverage(host_estimates: pd.DataFrame) -> Iterator[dict]:
    """Yields rows of estimates: the share of cells, and of hosts, inside their intervals.

    They are given by quantity and kind of set, and over all. `n` counts numbers; the notes count
    cells and hosts, because numbers that share a cell lie inside or outside together.

    host_estimates: as `intervals.estimates_by_host` gives them.
    """
    host_estimates = host_estimates[host_estimates["quantity"].isin(COVERED)]
    for name, tested in ((CELLS, _cells(host_estimates)), (HOSTS, _hosts(host_estimates))):
        if len(tested):
            yield _row(name, tested)
        for (kind, quantity), group in tested.groupby(["kind", "quantity"]):
            yield _row(f"{name}/{kind}/{quantity}", group)


def _row(name: str, tested: pd.DataFrame) -> dict:
    cells = set()
    for replicates in tested["replicates"]:
        cells.update(replicate["over"] or replicate["cell"] for replicate in replicates)
    hosts = tested["host"].nunique()
    note = f"{len(cells)} measurements on {hosts} host{'s' * (hosts != 1)}"
    share = float(tested["inside"].mean())
    return {"quantity": "covered", "name": name, "value": share, "n": len(tested), "note": note}


def _cells(host_estimates: pd.DataFrame) -> pd.DataFrame:
    """Cells of sets with several on a host, and whether each is `inside` the others' interval."""
    cells = host_estimates.explode("replicates")
    for name in ("value", "cell", "over"):
        cells[name] = [replicate[name] for replicate in cells["replicates"]]
    values = pd.Series(intervals.scaled_values(cells), cells.index)
    cells["off"] = values - values.groupby(level=0).transform("mean")
    cells = cells[cells["n"] > 1].reset_index(drop=True)
    n = cells["n"]
    cells = cells.assign(
        squares=cells["off"] ** 2, count=1 - 1 / n, freedom=intervals.degrees_of_freedom(cells)
    )
    # A cell is left out of the variance whole: with all numbers measured in it, or divided by it.
    # Where a number has two cells, the other one tells nothing without it, so both are removed.
    removed = cells[intervals.SUMMED_COLUMNS].mul(n / (n - 1), axis=0)
    pairs, remaining = intervals.pairs_sharing_cells(cells), []
    for keys in intervals.pool_keys(cells, "interleaved"):
        sums = intervals.pool_sums(cells, keys)
        pool = cells.groupby(keys).ngroup().to_numpy()
        pooled = pairs[pool[pairs["first"]] == pool[pairs["second"]]]
        by_cell = removed.loc[pooled["second"]].groupby(pooled["first"].to_numpy())
        remaining.append(sums - by_cell.sum())
    half = intervals.pooled_half_width(*remaining) * np.sqrt(1 + 1 / (n - 1))
    inside = (cells["off"] * n / (n - 1)).abs() <= half
    varies = sums["squares"] > 0
    cells["replicates"] = [[replicate] for replicate in cells["replicates"]]
    return cells.assign(inside=inside)[half.notna() & varies]


def _hosts(host_estimates: pd.DataFrame) -> pd.DataFrame:
    """Numbers of each host, and whether they are `inside` the prediction of all other hosts."""
    tested = [host_estimates.iloc[:0].assign(inside=False)]
    for host in dict.fromkeys(host_estimates["host"]):
        predicted = intervals.add_over_hosts(host_estimates[host_estimates["host"] != host])
        predicted = predicted[predicted["spread"] == PREDICTION]
        predicted = predicted[predicted["low"] < predicted["high"]]
        if predicted.empty:
            continue
        held_out = host_estimates[host_estimates["host"] == host]
        ends = predicted[[*intervals.NUMBER, "low", "high"]]
        merged = held_out.merge(ends, on=intervals.NUMBER, suffixes=("", "_new"))
        inside = merged["value"].between(merged["low_new"], merged["high_new"])
        tested.append(merged.assign(inside=inside))
    return pd.concat(tested)
