"""One host, one interval; several hosts, their points and the range."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimates import BOTH, INTERVAL, NONE, PLACE, RANGE, REPLICATES
from analysis.quantities import LOG, QUANTITIES, SHARE
from analysis.records import flags
from analysis.runs import mixed
from workflow.collocation.spec.names import INTERLEAVED

CONFIDENCE = 0.95
FEW = 3  # of fewer cells a t interval says less than each of them does of itself
OF = ["quantity", *PLACE]


def interval(found: Sequence[float], scale: str) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t interval of one host's replicates; low and high are None for a single one.

    On logs for scale `log` (values > 0), within 0 to 1 for `share`. Each cell speaks for itself:
    nothing is pooled with other cells.
    """
    if len(found) < 2:
        return found[0], None, None
    used = [math.log(value) for value in found] if scale == LOG else list(found)
    middle, freedom = math.fsum(used) / len(used), len(used) - 1
    deviation = math.sqrt(math.fsum((each - middle) ** 2 for each in used) / freedom)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(len(used))
    if scale == LOG:
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
    low, high = middle - half, middle + half
    return middle, *((max(low, 0.0), min(high, 1.0)) if scale == SHARE else (low, high))


def mean(found: Sequence[float], scale: str) -> float:
    """Geometric mean for scale `log` (values > 0), else the arithmetic one."""
    return interval(found, scale)[0]


def of_cells(
    found: Sequence[float], batches: Sequence[Sequence[float]], scale: str
) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval of one host's cells, by what they tell of themselves.

    FEW cells or more: their t interval, which holds what differs from cell to cell. Of fewer that
    have batches: from the lowest to the highest end of the cells' own intervals, each the t
    interval of its batches around its value. That is one cell's own interval if there is one.
    """
    value, low, high = interval(found, scale)
    if len(found) >= FEW or not all(batches):
        return value, low, high
    own = [_own(cell, batch, scale) for cell, batch in zip(found, batches, strict=True)]
    return value, min(low for low, _ in own), max(high for _, high in own)


def _own(cell: float, batches: Sequence[float], scale: str) -> tuple[float, float]:
    middle, low, high = interval(batches, scale)
    if scale == LOG:
        return cell * low / middle, cell * high / middle
    low, high = cell + low - middle, cell + high - middle
    return (max(low, 0.0), min(high, 1.0)) if scale == SHARE else (low, high)


def by_host(found: pd.DataFrame) -> pd.DataFrame:
    """Each host's estimate of every quantity, from its replicates.

    One number, one route: where a host has it of interleaved cells, other cells do not count.
    """
    found = found.assign(
        order=found.groupby(OF, sort=False).ngroup(),
        host_order=found.groupby([*OF, "host"], sort=False).ngroup(),
    )
    turned = found.groupby("host_order")["turned"].transform("any")
    found = found[found["turned"] | ~turned]
    columns = ["cell", "value", "numerator", "denominator", "over", "batches"]
    whole = found[columns].astype(object).where(found[columns].notna(), None)
    found = found.assign(replicate=whole.to_dict("records"))
    lists = ("value", "batches", "replicate", "flags", "code", "data")
    rows = found.groupby(["order", "host_order", *OF, "host"], as_index=False).agg(
        dict.fromkeys(lists, list) | {"turned": "first"}
    )
    scales = [QUANTITIES[name].scale for name in rows["quantity"]]
    ends = map(of_cells, rows["value"], rows["batches"], scales)
    value, low, high = np.array(list(ends), dtype=float).reshape(-1, 3).T
    conditions = zip(rows["flags"], rows["code"], rows["data"], strict=True)
    return rows.assign(
        value=value,
        low=low,
        high=high,
        n=rows["value"].map(len),
        hosts=1,
        spread=np.where(np.isnan(low), NONE, INTERVAL),
        flags=[mixed(*each) for each in conditions],
        code=[frozenset().union(*each) for each in rows["code"]],
        data=[frozenset().union(*each) for each in rows["data"]],
        design=np.where(rows["turned"], INTERLEAVED, REPLICATES),
        note="",
    ).rename(columns={"replicate": "replicates"})


def over_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Estimates of single hosts, each followed by one over all hosts: of one host its interval, of
    several their range.

    The value is the mean over all replicates, each counting alike. Hosts are no replicates of each
    other, so no interval is made of them: low and high are the least and the most of their values.
    """
    if rows.empty:
        return rows
    rows = rows.assign(order=rows.groupby(OF, sort=False).ngroup())
    group = rows.groupby("order")
    every = group.agg(
        n=("n", "sum"),
        hosts=("host", "size"),
        least=("value", "min"),
        most=("value", "max"),
        designs=("design", "nunique"),
        note=("note", lambda notes: "; ".join(dict.fromkeys(filter(None, notes)))),
        replicates=("replicates", lambda lists: [each for found in lists for each in found]),
        flags=("flags", flags.union),
        code=("code", lambda found: frozenset().union(*found)),
        data=("data", lambda found: frozenset().union(*found)),
    )
    every["flags"] = [mixed([e.flags], [e.code], [e.data]) for e in every.itertuples(index=False)]
    first = rows.drop_duplicates("order").set_index("order")
    first = first.assign(host="").drop(columns=every.columns, errors="ignore").join(every)
    several = first["hosts"] > 1
    means = [
        mean([r["value"] for r in e.replicates], QUANTITIES[e.quantity].scale)
        if e.hosts > 1
        else e.value
        for e in first.itertuples()
    ]
    first["value"] = pd.Series(means, first.index).clip(first["least"], first["most"])
    first["low"] = first["least"].where(several, first["low"])
    first["high"] = first["most"].where(several, first["high"])
    first["spread"] = first["spread"].mask(several, RANGE)
    first["design"] = first["design"].mask(first["designs"] > 1, BOTH)
    both = pd.concat([rows, first.reset_index()]).sort_values("order", kind="stable")
    return both.drop(columns=["order", "least", "most", "designs"]).reset_index(drop=True)
