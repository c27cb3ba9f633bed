"""Where the next cell on a host lies, and where a new host lies: one fit over all cells of a study.

A number is set + host + cell, on logs if its scale is `log`. How cells and hosts vary is pooled
over the sets of a kind, of the same workloads where they tell enough by themselves, so a single
cell has an interval, too. Numbers that share a job alone err together, so degrees of freedom are
those of the cells, not of the numbers. All hosts of a study have the same GPU model:
`runs.prepared` leaves others out.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import fmean, geometric_mean

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.advice.predict import ACTIVITY
from analysis.estimates.quantities import LOG, QUANTITIES, SHARE
from analysis.estimates.runs import mixed
from analysis.estimates.table import (
    BOTH,
    CELL,
    INTERVAL,
    NONE,
    PLACE,
    PREDICTION,
    RANGE,
    REPLICATES,
)
from workflow.collocation.study.names import (
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
OF_ITS_OWN = 6  # and that the sets of the same workloads need to be pooled by themselves
BUSY = 0.9  # GRACT of a job alone; below, it waits for its host
OF = ["quantity", *PLACE]


def mean(found: Sequence[float], scale: str) -> float:
    """Geometric mean for scale `log` (values > 0), else the arithmetic one."""
    return geometric_mean(found) if scale == LOG and len(found) > 1 else fmean(found)


def scaled(rows: pd.DataFrame) -> np.ndarray:
    """Values of rows with `quantity` and `value` on the scale on which they vary alike."""
    values = rows["value"].to_numpy(float)
    return np.log(values, where=_scales(rows) == LOG, out=values.copy())


def reach(freedom: pd.Series, variance: pd.Series) -> pd.Series:
    """Half a 95 % t interval of a single draw, from a variance and its degrees of freedom; NaN of
    fewer than LEAST.
    """
    enough = freedom.where(freedom >= LEAST)
    return stdtrit(enough, (1 + CONFIDENCE) / 2) * np.sqrt(variance.clip(lower=0))


def sharing(cells: pd.DataFrame) -> pd.DataFrame:
    """Positions `at`, `other` of numbers of one pool that share a cell: their own, or one that they
    are held against.

    cells: a row for each cell of each number: quantity, turned, kind, cell, over.
    """
    both = zip(cells["cell"], cells["over"], strict=True)
    parts = [{*f"{cell} {over or ''}".split()} for cell, over in both]
    pool = ["quantity", "turned", "kind", "part"]
    found = cells[pool[:3]].assign(part=parts, at=np.arange(len(cells))).explode("part")
    pairs = found.merge(found.rename(columns={"at": "other"}), on=pool)
    return pairs[["at", "other"]].drop_duplicates()


def freedom(cells: pd.DataFrame) -> np.ndarray:
    """The part of each cell of each number in the degrees of freedom: all that share it have one.

    cells: as `sharing` takes them, with n: how many cells the number has on its host.
    """
    found, several = np.zeros(len(cells)), (cells["n"] > 1).to_numpy()
    own = cells[several]
    shared = np.bincount(sharing(own)["at"], minlength=len(own))
    found[several] = (1 - 1 / own["n"]) / shared
    return found


def pools(rows: pd.DataFrame, design: str) -> Iterator[list[pd.Series]]:
    """What rows are pooled by: their kind and workloads, and their kind."""
    kind = [rows["quantity"], rows[design], rows["kind"]]
    yield [*kind, rows["scenario"].map(lambda scenario: parse_scenario(scenario).family)]
    yield kind


def chosen(own: pd.DataFrame, kind: pd.DataFrame) -> pd.Series:
    """`reach` of the sums `squares`, `count`, `freedom` of the workloads where that has OF_ITS_OWN
    degrees of freedom, else of the kind.
    """
    enough = own["freedom"].round(6) >= OF_ITS_OWN
    sums = own.where(pd.concat([enough] * 3, axis=1, keys=own.columns), kind)
    return reach(sums["freedom"].round(6), sums["squares"] / sums["count"].where(sums["count"] > 0))


def kinds(found: pd.DataFrame) -> pd.Series:
    """The kind of set that each row is of, by the design and by what its jobs show alone, so that
    no number chooses its own variance.

    What they show alone is the mean of hosts, however many cells each has.
    `alone_` (one separate process) or `set_`, and `graph` (a CUDA graph); `busy` (no job waits for
    its host: GRACT alone of BUSY or more); `full` (one does, and together they ask for more than
    one GPU: X of `analysis.advice.predict`); `waits` (all others, and after a job left).
    """
    ones = (found["method"] == "naive") & (found["window"] == "")
    ones = found[ones & found["quantity"].isin(ACTIVITY.values())]
    what = ["quantity", "implementation", "scenario"]
    alone = ones.groupby([*what, "host"])["value"].mean().groupby(what).mean().to_dict()

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

    The variance is pooled as `chosen` says, over hosts; interleaved cells and others are pooled
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
    n = found.groupby("host_order")["value"].transform("size")
    replicates = [[each] for each in whole.to_dict("records")]
    found = found.assign(replicates=replicates, squares=scaled(found), n=n)
    rows = _gathered(found.assign(freedom=freedom(found)), "host_order")
    rows = rows.sort_values("order", kind="stable").reset_index(drop=True)
    n = rows["n"]
    pooled = chosen(*(totals(rows, by) for by in pools(rows, "turned"))) * np.sqrt(1 + 1 / n)
    own = [of_batches(b, scale) for b, scale in zip(rows["batches"], _scales(rows), strict=True)]
    rows["half"] = half = pooled.fillna(pd.Series(own, rows.index).where(n == 1))
    low, high = ends(rows)
    return rows.assign(
        hosts=1,
        note="",
        low=low,
        high=high,
        spread=np.select([pooled.notna(), half.notna()], [INTERVAL, CELL], NONE),
        design=np.where(rows["turned"], INTERLEAVED, REPLICATES),
    )


def _gathered(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """The first row of each group, with the mean of all values, sums for `totals`, all replicates,
    and what they mix. rows: with `squares`, the values as `scaled`, and `freedom`.
    """
    groups = rows.groupby(by)
    first = rows.drop_duplicates(by).set_index(by).rename_axis(None)
    lists = groups[["value", "replicates", "flags", "code", "data"]].agg(list).loc[first.index]
    conditions = zip(lists["flags"], lists["code"], lists["data"], strict=True)
    count = groups.size() - 1
    return first.assign(
        value=[*map(mean, lists["value"], _scales(first))],
        replicates=[[*chain.from_iterable(each)] for each in lists["replicates"]],
        flags=[mixed(*each) for each in conditions],
        code=[frozenset().union(*each) for each in lists["code"]],
        data=[frozenset().union(*each) for each in lists["data"]],
        squares=groups["squares"].var().fillna(0.0) * count,
        count=count,
        freedom=groups["freedom"].sum(),
    )


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
    logs = scales == LOG
    times = np.exp(half.where(logs))
    low, high = (value - half).mask(logs, value / times), (value + half).mask(logs, value * times)
    return low.mask(scales == SHARE, low.clip(lower=0)), high.mask(
        scales == SHARE, high.clip(upper=1)
    )


def _scales(rows: pd.DataFrame) -> np.ndarray:
    return np.array([QUANTITIES[name].scale for name in rows["quantity"]], dtype=object)


def totals(rows: pd.DataFrame, by: list[pd.Series]) -> pd.DataFrame:
    """Sums of `squares`, `count`, `freedom` over each pool, for each of its rows; NaN where a row
    is of none.
    """
    pool = rows.groupby(by).ngroup()
    sums, pool = ("squares", "count", "freedom"), pool.where(pool >= 0)
    return pd.DataFrame({name: rows[name].groupby(pool).transform("sum") for name in sums})


def over_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Estimates of single hosts, each followed by one over all hosts with the 95 % interval in
    which a new host lies.

    The value is the mean of the hosts' values, however many cells each has. How hosts differ is
    pooled over sets of a kind; no prediction is narrower than an interval of one of its hosts.
    Where few sets have several hosts: of one host its interval, of several the least and the most
    of their values. Rows without a kind have no prediction.
    """
    if rows.empty:
        return rows
    rows = rows.assign(order=rows.groupby(OF, sort=False).ngroup(), squares=scaled(rows))
    # A host that is fast is fast in all sets of the same workloads.
    place = rows["scenario"].map(lambda scenario: parse_scenario(scenario).family) + rows["host"]
    hosts = rows.groupby("order")["host"].transform("size")
    rows["freedom"] = freedom(rows.assign(cell=place, over="", turned=False, n=hosts))
    every = rows.groupby("order").agg(
        n=("n", "sum"),
        hosts=("host", "size"),
        least=("value", "min"),
        most=("value", "max"),
        half=("half", "max"),
        designs=("design", "nunique"),
        notes=("note", list),
    )
    notes = ["; ".join(dict.fromkeys(filter(None, own))) for own in every.pop("notes")]
    first = _gathered(rows, "order").assign(host="", note=notes, **every)
    several = first["hosts"] > 1
    first["design"] = first["design"].mask(first["designs"] > 1, BOTH)
    new = chosen(*(totals(first, by) for by in pools(first, "design")))
    new *= np.sqrt(1 + 1 / first["hosts"])
    told = new.notna()
    low, high = ends(first.assign(half=np.fmax(new, first["half"])))
    first["low"] = low.where(told, first["least"].where(several, first["low"]))
    first["high"] = high.where(told, first["most"].where(several, first["high"]))
    first["spread"] = first["spread"].mask(several, RANGE).mask(told, PREDICTION)
    both = pd.concat([rows, first.reset_index(names="order")]).sort_values("order", kind="stable")
    both = both.drop(columns=["order", "squares", "freedom", "count", "designs"])
    return both.reset_index(drop=True)
