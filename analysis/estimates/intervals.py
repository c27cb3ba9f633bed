"""Intervals for the next cell on a host and for a new host, fitted to all cells of a study.

An estimate has a value for each host and cell, on logs if its scale is `log`. The variances of
cells and of hosts are pooled over the sets of a kind (over those of the same workloads, where
these have enough degrees of freedom), so that a single cell has an interval, too. Numbers that
share a job alone err together, so degrees of freedom are counted in cells, not in numbers. All
hosts of a study have the same GPU model: `runs.prepare_runs` leaves others out.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import fmean, geometric_mean

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimates import table
from analysis.estimates.quantities import DEMAND, LOG, QUANTITIES, SHARE
from analysis.estimates.runs import mixed_flags
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
CONFIDENCE_TEXT = f"{100 * CONFIDENCE:g} %"  # as texts and pages spell it
MIN_FREEDOM = 3  # degrees of freedom that a pooled variance needs
MIN_WORKLOAD_FREEDOM = 6  # and that the sets of the same workloads need to be pooled by themselves
BUSY = 0.9  # GRACT of a job alone; below, it waits for its host
# Of what their host does to a rate alone, jobs together show 1 / (1 + (kX)^p), by the predictor's
# form: four tenths where they ask for one GPU (X), a tenth from here on.
FULL = 1.5
NEAR = "set_near"  # the kind of sets in between, which are neither as steady nor as host-bound
NUMBER = ["quantity", *table.PLACE]  # columns that identify a number, apart from its host
SUMMED_COLUMNS = ["squares", "count", "freedom"]


def mean_on_scale(values: Sequence[float], scale: str) -> float:
    """Computes the geometric mean for the scale `log` (values > 0), else the arithmetic mean."""
    if scale == LOG and len(values) > 1:
        return geometric_mean(values)
    return fmean(values)


def scaled_values(rows: pd.DataFrame) -> np.ndarray:
    """Gives the column `value` of estimates, as logs where the quantity's scale is `log`."""
    values = rows["value"].to_numpy(float)
    return np.log(values, where=_scales(rows) == LOG, out=values.copy())


def _scales(rows: pd.DataFrame) -> np.ndarray:
    return np.array([QUANTITIES[name].scale for name in rows["quantity"]], dtype=object)


def half_width(freedom: pd.Series, variance: pd.Series) -> pd.Series:
    """Half of the t interval of a single draw; NaN below MIN_FREEDOM degrees of freedom."""
    enough = freedom.where(freedom >= MIN_FREEDOM)
    return stdtrit(enough, (1 + CONFIDENCE) / 2) * np.sqrt(variance.clip(lower=0))


def pairs_sharing_cells(replicates: pd.DataFrame) -> pd.DataFrame:
    """Pairs of rows of one pool that share a cell, directly or as the job alone they divide by.

    replicates: a row for each cell of each number, with quantity, interleaved, kind, cell, and over
    (ids of the cells of the denominator, separated by spaces). Returns positions of rows, in the
    columns `first` and `second`; each row is paired with itself, too.
    """
    parts = []
    for cell, denominator in zip(replicates["cell"], replicates["over"], strict=True):
        parts.append({*f"{cell} {denominator or ''}".split()})
    pool = ["quantity", "interleaved", "kind"]
    cells = replicates[pool].assign(part=parts, first=np.arange(len(parts))).explode("part")
    pairs = cells.merge(cells.rename(columns={"first": "second"}), on=[*pool, "part"])
    return pairs[["first", "second"]].drop_duplicates()


def degrees_of_freedom(replicates: pd.DataFrame) -> np.ndarray:
    """Degrees of freedom that each row contributes; all rows that share a cell have one together.

    replicates: as for `pairs_sharing_cells`, with n, the number's count of cells on its host.
    """
    freedom = np.zeros(len(replicates))
    several = (replicates["n"] > 1).to_numpy()
    counted = replicates[several]
    sharing = np.bincount(pairs_sharing_cells(counted)["first"], minlength=len(counted))
    freedom[several] = (1 - 1 / counted["n"]) / sharing
    return freedom


def pool_keys(rows: pd.DataFrame, design: str) -> Iterator[list[pd.Series]]:
    """What variances are pooled by: first kind and workloads, then kind alone.

    design: name of the column that tells designs apart.
    """
    kind = [rows["quantity"], rows[design], rows["kind"]]
    yield [*kind, rows["scenario"].map(lambda scenario: parse_scenario(scenario).family)]
    yield kind


def pool_sums(rows: pd.DataFrame, keys: list[pd.Series]) -> pd.DataFrame:
    """Sums of the columns SUMMED_COLUMNS over each row's pool; NaN for rows without a key."""
    pool = rows.groupby(keys).ngroup()
    pool = pool.where(pool >= 0)
    sums = {name: rows[name].groupby(pool).transform("sum") for name in SUMMED_COLUMNS}
    return pd.DataFrame(sums)


def pooled_half_width(by_workload: pd.DataFrame, by_kind: pd.DataFrame) -> pd.Series:
    """`half_width` from the workloads' sums if they have MIN_WORKLOAD_FREEDOM, else the kind's."""
    enough = by_workload["freedom"].round(6) >= MIN_WORKLOAD_FREEDOM
    sums = by_workload.where(pd.concat([enough] * 3, axis=1, keys=SUMMED_COLUMNS), by_kind)
    variance = sums["squares"] / sums["count"].where(sums["count"] > 0)
    return half_width(sums["freedom"].round(6), variance)


def set_kinds(replicates: pd.DataFrame) -> pd.Series:
    """Gives each row the kind of its set, by its design and what its jobs show alone.

    So no number chooses its own variance. A kind is `alone_` (one separate process) or `set_`, and
    one of `graph` (a CUDA graph), `busy` (every job has GRACT alone of BUSY or more), `full` (some
    job waits for its host, and together they ask for FULL GPUs or more: X of
    `analysis.advice.predict`), `near` (for one GPU or more) or `waits` (all others, and any set
    after a job left).
    """
    alone = (replicates["method"] == "naive") & (replicates["window"] == "")
    alone = replicates[alone & replicates["quantity"].isin(DEMAND.values())]
    keys = ["quantity", "implementation", "scenario"]
    # The mean of hosts, however many cells each has.
    host_means = alone.groupby([*keys, "host"])["value"].mean()
    activity = host_means.groupby(keys).mean().to_dict()
    columns = ["scenario", "implementation", "method", "window"]
    places = list(zip(*(replicates[name] for name in columns), strict=True))
    kinds = {place: _set_kind(*place, activity) for place in set(places)}
    return pd.Series([kinds[place] for place in places], replicates.index, dtype=object)


def _set_kind(
    scenario: str, implementation: str, method: str, window: str, activity: dict[tuple, float]
) -> str:
    """activity: (quantity, implementation, scenario of a job alone) → its mean."""
    parsed, family = parse_scenario(scenario), family_of(method)
    prefix = "alone" if parsed.n == 1 and family == "naive" else "set"
    if IMPLEMENTATIONS.get(implementation, {}).get("cuda_graph"):
        return f"{prefix}_graph"
    variant = parsed.variant if parsed.variant in ALONE_VARIANTS else ""
    summed = DEMAND.get(family, "smact")
    gract, demand = [], []
    for job, count in parsed.parts:
        alone = scenario_id({job: 1}, variant)
        gract.append(activity.get(("gract", implementation, alone), 0.0))
        demand.append(count * activity.get((summed, implementation, alone), 0.0))
    if min(gract) >= BUSY:
        return f"{prefix}_busy"
    gpus = 0.0 if window == AFTER else sum(demand)
    if 1 <= gpus < FULL:
        return NEAR
    return f"{prefix}_full" if gpus >= FULL else f"{prefix}_waits"


def estimates_by_host(replicates: pd.DataFrame) -> pd.DataFrame:
    """Estimates every number on each host, with the interval of the host's next cell.

    The variance is pooled over hosts (`pooled_half_width`); interleaved cells and others are pooled
    apart. Where a pool has too few degrees of freedom, a single interleaved cell has the interval
    of its batches, which is too narrow for another cell. Where a host has a number from interleaved
    cells, its other cells do not count.

    replicates: a row for each cell of each number, as of `build`.
    """
    replicates = replicates.assign(
        order=replicates.groupby(NUMBER, sort=False).ngroup(),
        host_order=replicates.groupby([*NUMBER, "host"], sort=False).ngroup(),
        kind=set_kinds(replicates),
    )
    has_interleaved = replicates.groupby("host_order")["interleaved"].transform("any")
    replicates = replicates[replicates["interleaved"] | ~has_interleaved]
    cells = replicates[["cell", "value", "numerator", "denominator", "over", "batches"]]
    cells = cells.astype(object).where(cells.notna(), None).to_dict("records")
    replicates = replicates.assign(
        replicates=[[cell] for cell in cells],
        squares=scaled_values(replicates),
        n=replicates.groupby("host_order")["value"].transform("size"),
    )
    rows = _grouped(replicates.assign(freedom=degrees_of_freedom(replicates)), "host_order")
    rows = rows.sort_values("order", kind="stable").reset_index(drop=True)
    sums = [pool_sums(rows, keys) for keys in pool_keys(rows, "interleaved")]
    pooled = pooled_half_width(*sums) * np.sqrt(1 + 1 / rows["n"])
    of_batches = map(batch_half_width, rows["batches"], _scales(rows))
    of_batches = pd.Series(list(of_batches), rows.index).where(rows["n"] == 1)
    rows["half"] = half = pooled.fillna(of_batches)
    low, high = interval_ends(rows)
    return rows.assign(
        hosts=1,
        note="",
        low=low,
        high=high,
        spread=np.select([pooled.notna(), half.notna()], [table.INTERVAL, table.CELL], table.NONE),
        design=np.where(rows["interleaved"], INTERLEAVED, table.REPLICATES),
    )


def _grouped(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """The first row of each group, with the mean value, sums, and all replicates and conditions."""
    groups = rows.groupby(by)
    first = rows.drop_duplicates(by).set_index(by).rename_axis(None)
    lists = groups[["value", "replicates", "flags", "code", "data"]].agg(list).loc[first.index]
    count = groups.size() - 1
    return first.assign(
        value=list(map(mean_on_scale, lists["value"], _scales(first))),
        replicates=[list(chain.from_iterable(cells)) for cells in lists["replicates"]],
        flags=list(map(mixed_flags, lists["flags"], lists["code"], lists["data"])),
        code=[frozenset().union(*digests) for digests in lists["code"]],
        data=[frozenset().union(*pairs) for pairs in lists["data"]],
        squares=groups["squares"].var().fillna(0.0) * count,
        count=count,
        freedom=groups["freedom"].sum(),
    )


def batch_half_width(batches: Sequence[float], scale: str) -> float:
    """Half of the t interval of the mean of a cell's batches, on the scale; NaN without batches."""
    if len(batches) < 2:
        return math.nan
    values = np.log(batches) if scale == LOG else np.array(batches)
    deviation = values.std(ddof=1) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2) * deviation)


def interval_ends(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Low and high ends, from `value` and `half` (on the scale); of shares within 0 to 1."""
    value, half, scales = rows["value"].astype(float), rows["half"].astype(float), _scales(rows)
    logs, shares = scales == LOG, scales == SHARE
    factor = np.exp(half.where(logs))
    low = (value - half).mask(logs, value / factor)
    high = (value + half).mask(logs, value * factor)
    return low.mask(shares, low.clip(lower=0)), high.mask(shares, high.clip(upper=1))


def add_over_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds one estimate over all hosts, with the interval of a new host, after those of each host.

    Its value is the mean of the hosts' values, however many cells each has. How hosts differ is
    pooled over sets of a kind; no prediction is narrower than an interval of one of its hosts.
    Where few sets have several hosts, and for sets of the kind NEAR, there is no prediction: one
    host gives its interval, several give the lowest and the highest of their values. Rows without a
    kind have no prediction.
    """
    if rows.empty:
        return rows
    rows = rows.assign(order=rows.groupby(NUMBER, sort=False).ngroup(), squares=scaled_values(rows))
    # A host that is fast is fast in all sets of the same workloads, so it counts as one cell.
    workloads = rows["scenario"].map(lambda scenario: parse_scenario(scenario).family)
    cells = rows.assign(cell=workloads + rows["host"], over="", interleaved=False)
    cells["n"] = rows.groupby("order")["host"].transform("size")
    rows["freedom"] = degrees_of_freedom(cells)
    summary = rows.groupby("order").agg(
        n=("n", "sum"),
        hosts=("host", "size"),
        least=("value", "min"),
        most=("value", "max"),
        half=("half", "max"),
        designs=("design", "nunique"),
        notes=("note", list),
    )
    notes = ["; ".join(dict.fromkeys(filter(None, notes))) for notes in summary.pop("notes")]
    over = _grouped(rows, "order").assign(host="", note=notes, **summary)
    several = over["hosts"] > 1
    over["design"] = over["design"].mask(over["designs"] > 1, table.MIXED_DESIGNS)
    half = pooled_half_width(*(pool_sums(over, keys) for keys in pool_keys(over, "design")))
    half = (half * np.sqrt(1 + 1 / over["hosts"])).where(over["kind"] != NEAR)
    predicted = half.notna()
    low, high = interval_ends(over.assign(half=np.fmax(half, over["half"])))
    over["low"] = low.where(predicted, over["least"].where(several, over["low"]))
    over["high"] = high.where(predicted, over["most"].where(several, over["high"]))
    over["spread"] = over["spread"].mask(several, table.RANGE).mask(predicted, table.PREDICTION)
    rows = pd.concat([rows, over.reset_index(names="order")]).sort_values("order", kind="stable")
    return rows.drop(columns=["order", *SUMMED_COLUMNS, "designs"]).reset_index(drop=True)
