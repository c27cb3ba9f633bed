"""Where the next cell on a host lies, and where a new host lies: one fit over all cells of a study.

A number is set + host + cell, on logs if its scale is `log`. How cells and hosts vary is pooled
over the sets of a kind, so a single cell has an interval, too. All hosts of a study have the same
GPU model: `runs.prepared` leaves others out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimates import BOTH, CELL, INTERVAL, NONE, PLACE, PREDICTION, RANGE, REPLICATES
from analysis.predict import ACTIVITY
from analysis.quantities import LOG, QUANTITIES, SHARE
from analysis.records import flags
from analysis.runs import mixed
from workflow.collocation.spec.names import (
    AFTER,
    ALONE_VARIANTS,
    IMPLEMENTATIONS,
    INTERLEAVED,
    family_of,
    parse_scenario,
    scenario_id,
)

CONFIDENCE = 0.95
LEAST = 3  # degrees of freedom that a pooled variance needs
BUSY = 0.9  # GRACT of a job alone; below, it waits for its host
OF = ["quantity", *PLACE]


def mean(found: Sequence[float], scale: str) -> float:
    """Geometric mean for scale `log` (values > 0), else the arithmetic one."""
    if len(found) < 2:
        return found[0]
    used = [math.log(value) for value in found] if scale == LOG else found
    middle = math.fsum(used) / len(used)
    return math.exp(middle) if scale == LOG else middle


def scaled(rows: pd.DataFrame) -> np.ndarray:
    """Values of rows with `quantity` and `value` on the scale on which they vary alike."""
    values = rows["value"].to_numpy(float)
    return np.log(values, where=_scales(rows) == LOG, out=values.copy())


def reach(freedom: pd.Series, squares: pd.Series) -> pd.Series:
    """Half a 95 % t interval of a single draw, from a variance's degrees of freedom and sum of
    squares; NaN of fewer than LEAST.
    """
    enough = freedom.where(freedom >= LEAST)
    return stdtrit(enough, (1 + CONFIDENCE) / 2) * np.sqrt(squares.clip(lower=0) / enough)


def kinds(found: pd.DataFrame) -> pd.Series:
    """The kind of set that each row is of, by the design and by what its jobs show alone, so that
    no number chooses its own variance.

    `alone_` (one separate process) or `set_`, and `graph` (a CUDA graph); `busy` (no job waits for
    its host: GRACT alone of BUSY or more); `full` (one does, and together they ask for more than
    one GPU: X of `analysis.predict`); `waits` (all others, and after a job left).
    """
    ones = (found["method"] == "naive") & (found["window"] == "")
    ones = found[ones & found["quantity"].isin(ACTIVITY.values())]
    alone = ones.groupby(["quantity", "implementation", "scenario"])["value"].mean().to_dict()

    def kind(scenario: str, implementation: str, method: str, window: str) -> str:
        of, family = parse_scenario(scenario), family_of(method)
        variant = of.variant if of.variant in ALONE_VARIANTS else ""

        def shares(name: str) -> list[float]:
            ones = [scenario_id({job: 1}, variant) for job, _ in of.parts]
            return [alone.get((name, implementation, one), 0.0) for one in ones]

        asked = zip(of.parts, shares(ACTIVITY.get(family, "smact")), strict=True)
        if IMPLEMENTATIONS.get(implementation, {}).get("cuda_graph"):
            how = "graph"
        elif min(shares("gract")) >= BUSY:
            how = "busy"
        elif window != AFTER and sum(count * share for (_, count), share in asked) >= 1:
            how = "full"
        else:
            how = "waits"
        return f"{'alone' if of.n == 1 and family == 'naive' else 'set'}_{how}"

    places = [*zip(*(found[name] for name in PLACE[:4]), strict=True)]
    known = {place: kind(*place) for place in set(places)}
    return pd.Series([known[place] for place in places], found.index, dtype=object)


def by_host(found: pd.DataFrame) -> pd.DataFrame:
    """Each host's estimate of every quantity from its replicates, with the 95 % interval of its
    next cell.

    The variance is pooled over hosts and sets of a kind; interleaved cells and others are pooled
    apart. Where that has too few degrees of freedom, a single interleaved cell has the interval of
    its batches: what it tells of itself, which is too narrow for another cell. One number, one
    route: where a host has it of interleaved cells, other cells do not count.
    """
    found = found.assign(
        order=found.groupby(OF, sort=False).ngroup(),
        host_order=found.groupby([*OF, "host"], sort=False).ngroup(),
        kind=kinds(found),
    )
    turned = found.groupby("host_order")["turned"].transform("any")
    found = found[found["turned"] | ~turned]
    columns = ["cell", "value", "numerator", "denominator", "over", "batches"]
    whole = found[columns].astype(object).where(found[columns].notna(), None)
    found = found.assign(replicate=whole.to_dict("records"), squares=scaled(found))
    lists = ("value", "batches", "replicate", "flags", "code", "data")
    rows = found.groupby(["order", "host_order", *OF, "host"], as_index=False).agg(
        dict.fromkeys(lists, list) | {"turned": "first", "kind": "first", "squares": "var"}
    )
    scales, n = _scales(rows), rows["value"].map(len)
    rows["squares"] = rows["squares"].fillna(0.0) * (n - 1)
    kind = [rows["quantity"], rows["turned"], rows["kind"]]
    pooled = reach(_total(n - 1, kind), _total(rows["squares"], kind)) * np.sqrt(1 + 1 / n)
    own = [of_batches(b[0], s) for b, s in zip(rows["batches"], scales, strict=True)]
    half = pooled.fillna(pd.Series(own, rows.index).where(n == 1))
    values = [mean(each, scale) for each, scale in zip(rows["value"], scales, strict=True)]
    rows = rows.assign(value=values, half=half, n=n, hosts=1, note="")
    low, high = ends(rows)
    conditions = zip(rows["flags"], rows["code"], rows["data"], strict=True)
    return rows.assign(
        low=low,
        high=high,
        spread=np.select([pooled.notna(), half.notna()], [INTERVAL, CELL], NONE),
        flags=[mixed(*each) for each in conditions],
        code=[frozenset().union(*each) for each in rows["code"]],
        data=[frozenset().union(*each) for each in rows["data"]],
        design=np.where(rows["turned"], INTERLEAVED, REPLICATES),
    ).rename(columns={"replicate": "replicates"})


def of_batches(found: Sequence[float], scale: str) -> float:
    """Half the 95 % t interval of the mean of an interleaved cell's batches; NaN without any."""
    if len(found) < 2:
        return math.nan
    used = np.log(found) if scale == LOG else np.array(found)
    deviation = used.std(ddof=1) / math.sqrt(len(used))
    return float(stdtrit(len(used) - 1, (1 + CONFIDENCE) / 2) * deviation)


def ends(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Low and high of rows with `half` on their scale: NaN where it is; shares within 0 to 1."""
    value, half, scales = rows["value"].astype(float), rows["half"].astype(float), _scales(rows)
    logs, times = scales == LOG, np.exp(half)
    low, high = (value - half).mask(logs, value / times), (value + half).mask(logs, value * times)
    return low.mask(scales == SHARE, low.clip(lower=0)), high.mask(
        scales == SHARE, high.clip(upper=1)
    )


def _scales(rows: pd.DataFrame) -> np.ndarray:
    return np.array([QUANTITIES[name].scale for name in rows["quantity"]], dtype=object)


def _total(of: pd.Series, by: list[pd.Series]) -> pd.Series:
    """The sum over each group, for each of its rows; NaN where a row is of none."""
    return of.groupby(by).transform("sum")


def over_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Estimates of single hosts, each followed by one over all hosts with the 95 % interval in
    which a new host lies.

    The value is the mean over all replicates, each counting alike. How hosts differ is pooled over
    sets of a kind, each host counting once; no prediction is narrower than an interval of one of
    its hosts. Where few sets have several hosts: of one host its interval, of several the least and
    the most of their values. Rows without a kind have no prediction.
    """
    if rows.empty:
        return rows
    rows = rows.assign(order=rows.groupby(OF, sort=False).ngroup(), squares=scaled(rows))
    group = rows.groupby("order")
    every = group.agg(
        n=("n", "sum"),
        hosts=("host", "size"),
        least=("value", "min"),
        most=("value", "max"),
        half=("half", "max"),
        squares=("squares", "var"),
        weight=("n", lambda n: (n**2).sum() / n.sum() ** 2),
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
    first["design"] = first["design"].mask(first["designs"] > 1, BOTH)
    freedom, kind = first["hosts"] - 1, [first["quantity"], first["design"], first["kind"]]
    squares = _total(first["squares"].fillna(0.0) * freedom, kind)
    new = reach(_total(freedom, kind), squares) * np.sqrt(1 + first["weight"])
    told = new.notna()
    low, high = ends(first.assign(half=np.fmax(new, first["half"])))
    first["low"] = low.where(told, first["least"].where(several, first["low"]))
    first["high"] = high.where(told, first["most"].where(several, first["high"]))
    first["spread"] = first["spread"].mask(several, RANGE).mask(told, PREDICTION)
    both = pd.concat([rows, first.reset_index()]).sort_values("order", kind="stable")
    return both.drop(columns=["order", "squares", "weight", "designs"]).reset_index(drop=True)
