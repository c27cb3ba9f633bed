"""Numbers made of other estimates: over the fastest way alone, variation, memory of the parts."""

import math
from statistics import stdev

import numpy as np
import pandas as pd

from analysis.estimates.intervals import add_over_hosts, mean_on_scale
from analysis.estimates.quantities import LOG
from analysis.estimates.records import flags
from analysis.estimates.table import INTERVAL, NONE, replicate
from workflow.collocation.study.names import (
    ALONE_VARIANTS,
    PAPER_IMPLEMENTATION,
    parse_scenario,
    scenario_id,
)

NO_ENDS = {"low": np.nan, "high": np.nan, "half": np.nan, "spread": NONE}


def derived_estimates(estimates: pd.DataFrame, outcomes: pd.DataFrame) -> pd.DataFrame:
    """Computes all numbers that are made of other estimates.

    estimates: of single hosts and over all hosts. outcomes: what became of each set.
    """
    # The flags of estimates already tell what their replicates mix.
    empty = [frozenset()] * len(estimates)
    estimates = estimates.assign(code=empty, data=empty)
    tables = [_over_fastest(estimates), _over_paper(estimates), _apart(estimates)]
    tables += [_variation(estimates), _memory_of_parts(estimates, outcomes)]
    return pd.concat(tables, ignore_index=True)


def _alone(
    estimates: pd.DataFrame, quantity: str, variants: tuple[str, ...] = ("",)
) -> pd.DataFrame:
    """Numbers of jobs alone as separate processes."""
    alone = (estimates["method"] == "naive") & (estimates["window"] == "")
    alone &= (estimates["jobs"] == 1) & estimates["variant"].isin(variants)
    return estimates[alone & (estimates["quantity"] == quantity)]


def _over_fastest(estimates: pd.DataFrame) -> pd.DataFrame:
    """Each set's rate over that of one job in its fastest implementation alone, host by host."""
    alone = _alone(estimates, "rate")
    all_hosts = alone[alone["host"] == ""]
    counts = all_hosts["scenario"].value_counts()
    best = all_hosts.sort_values("value", ascending=False, kind="stable")
    best = best.drop_duplicates("scenario").set_index("scenario", drop=False)
    best = best.loc[all_hosts["scenario"].drop_duplicates()]
    best = best[best["scenario"].map(counts) > 1]  # else nothing tells which is fastest
    fastest = {parse_scenario(row.scenario).parts[0][0]: row for row in best.itertuples()}
    alone_rates = {(row.implementation, row.scenario, row.host): row for row in alone.itertuples()}

    sets = estimates[(estimates["window"] == "") & (estimates["variant"] == "")]
    parts = {scenario: dict(parse_scenario(scenario).parts) for scenario in set(sets["scenario"])}
    sets = sets[[parts[scenario].keys() <= fastest.keys() for scenario in sets["scenario"]]]
    is_fastest = []
    for row in sets.itertuples():
        names = {fastest[job].implementation for job in parts[row.scenario]}
        is_fastest.append(names == {row.implementation})
    is_fastest = pd.Series(is_fastest, sets.index, dtype=bool)
    stp = sets[is_fastest & (sets["quantity"] == "stp")]  # it is the same ratio
    # `rate` is of all jobs of a set of jobs alike, `job_rate` of one of a mix.
    rate = np.where(sets["scenario"].str.contains("+", regex=False), "job_rate", "rate")
    sets = sets[~is_fastest & (sets["host"] != "") & (sets["quantity"] == rate)]
    keys = ["scenario", "implementation", "method", "host"]
    ratios = []
    for (scenario, *_), group in sets.groupby(keys, sort=False):
        ratio = _set_over_fastest(list(group.itertuples()), parts[scenario], fastest, alone_rates)
        if ratio:
            ratios.append(ratio)
    note = best["scenario"].map(counts).map("{} ways measured".format)
    best = best.assign(quantity="fastest_rate", note=note)
    note = "STP, for " + stp["implementation"] + " is the fastest way"
    stp = stp.assign(quantity="over_fastest", note=note)
    return pd.concat([best, stp, add_over_hosts(pd.DataFrame(ratios))])


def _set_over_fastest(
    rates: list, parts: dict[str, int], fastest: dict[str, tuple], alone_rates: dict
) -> dict | None:
    """One set on one host over its jobs' fastest implementations; None if a job has no rate."""
    jobs = [row.job or next(iter(parts)) for row in rates]
    if set(jobs) != set(parts):
        return None
    bases = []
    for best in (fastest[job] for job in jobs):
        bases.append(alone_rates.get((best.implementation, best.scenario, rates[0].host), best))
    names = [f"{fastest[job].scenario}/{fastest[job].implementation}" for job in parts]
    note = "over " + " and ".join(names)
    if not all(base.host for base in bases):
        note += ", its mean over hosts where a host did not measure it"
    counts = [parts[job] if len(parts) > 1 else 1 for job in jobs]
    ratio = _ratio("over_fastest", rates, counts, bases)
    return ratio | {"flags": flags.union(row.flags for row in rates), "note": note}


def _over_paper(estimates: pd.DataFrame) -> pd.DataFrame:
    """Each job alone over the same job alone as the paper wrote it."""
    alone = _alone(estimates, "rate")
    others = alone[alone["implementation"] != PAPER_IMPLEMENTATION]
    return _over_alone("alone_over_paper", others.assign(base=PAPER_IMPLEMENTATION), alone)


def _apart(estimates: pd.DataFrame) -> pd.DataFrame:
    """Each set of jobs alike over one such job alone, on hosts where no cell holds both."""
    sets = (estimates["window"] == "") & (estimates["variant"] == "") & (estimates["jobs"] > 1)
    place = ["scenario", "implementation", "method", "host"]
    with_stp = pd.MultiIndex.from_frame(
        estimates.loc[sets & (estimates["quantity"] == "stp"), place]
    )
    rates = estimates[sets & (estimates["quantity"] == "rate")]
    rates = rates[~pd.MultiIndex.from_frame(rates[place]).isin(with_stp)]
    return _over_alone(
        "stp_apart", rates.assign(base=rates["implementation"]), _alone(estimates, "rate")
    )


def _over_alone(quantity: str, rates: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """Rates over that of one such job alone in implementation `base`, host by host."""
    bases = {(row.scenario, row.implementation, row.host): row for row in alone.itertuples()}
    ratios = []
    for row in rates[rates["host"] != ""].itertuples():
        base = bases.get((f"1x_{parse_scenario(row.scenario).family}", row.base, row.host))
        if base:
            ratio = _ratio(quantity, [row], [1], [base])
            ratios.append(ratio | {"flags": flags.union([row.flags, base.flags])})
    return add_over_hosts(pd.DataFrame(ratios))


def _ratio(quantity: str, rates: list, counts: list[int], bases: list) -> dict:
    """A host's sum of count · rate / base, cell by cell, as an estimate like the first rate."""
    shares: dict[str, list[tuple]] = {}
    base_cells: dict[str, dict] = {}
    for rate, count, base in zip(rates, counts, bases, strict=True):
        for cell in rate.replicates:
            shares.setdefault(cell["cell"], []).append((count * cell["value"], base.value))
            cells = base_cells.setdefault(cell["cell"], {})
            cells.update(dict.fromkeys(cell["cell"] for cell in base.replicates))
    replicates = []
    for cell, pairs in shares.items():
        value = math.fsum(rate / base for rate, base in pairs)
        numerator, denominator = pairs[0] if len(rates) == 1 else (None, None)
        over = " ".join(base_cells[cell])
        replicates.append(
            replicate(cell, value, numerator=numerator, denominator=denominator, over=over)
        )
    first, base = rates[0], bases[0]
    value = mean_on_scale([cell["value"] for cell in replicates], LOG)
    ratio = {"quantity": quantity, "job": "", "replicates": replicates, "n": len(replicates)}
    ratio |= {"value": value} | NO_ENDS
    # The interval of a ratio of two numbers of the host joins theirs: on logs half widths add up as
    # squares (MOVER: Zou and Donner, 2008), as if the two were measured apart. Where they vary
    # together from replicate to replicate, it is too wide.
    if len(rates) == 1 and base.host and first.spread == base.spread == INTERVAL:
        half = math.hypot(first.half, base.half)
        low, high = value * math.exp(-half), value * math.exp(half)
        ratio |= {"low": low, "high": high, "half": half, "spread": INTERVAL}
    return first._asdict() | ratio


def _variation(estimates: pd.DataFrame) -> pd.DataFrame:
    """How far a rate varies over one host's replicates; over hosts the median and the range."""
    rates = estimates[(estimates["quantity"] == "rate") & (estimates["host"] != "")]
    rates = rates[rates["n"] > 1]
    deviations = []
    for replicates in rates["replicates"]:
        deviations.append(stdev(math.log(cell["value"]) for cell in replicates))
    rates = rates.assign(quantity="rate_cv", value=deviations, kind=None, **NO_ENDS)
    rates = add_over_hosts(rates)
    if rates.empty:
        return rates
    over_hosts = rates["host"] == ""
    places = [rates[name] for name in ("scenario", "implementation", "method", "window")]
    medians = rates["value"].where(~over_hosts).groupby(places).transform("median")
    return rates.assign(value=rates["value"].mask(over_hosts, medians))


def _memory_of_parts(estimates: pd.DataFrame, outcomes: pd.DataFrame) -> pd.DataFrame:
    """Memory of a set's jobs alone over what the card has for jobs, if the set was tried."""
    all_hosts = estimates[estimates["host"] == ""]
    capacities = all_hosts.loc[all_hosts["quantity"] == "capacity_for_jobs", "value"].tolist()
    if not capacities:
        return pd.DataFrame()
    capacity = capacities[0]
    alone = _alone(all_hosts, "memory_of_jobs", variants=ALONE_VARIANTS)
    memory = {(row.implementation, row.scenario): row for row in alone.itertuples()}
    tried = outcomes[outcomes["status"].isin(("completed", "out_of_memory"))]
    rows = []
    for outcome in tried.itertuples():
        scenario = parse_scenario(outcome.scenario)
        variant = scenario.variant if scenario.variant in ALONE_VARIANTS else ""
        parts = []
        for job, count in scenario.parts:
            place = outcome.implementation, scenario_id({job: 1}, variant)
            parts.append((count, memory.get(place)))
        if scenario.n == 1 or not all(estimate for _, estimate in parts):
            continue
        replicates = []
        for count, estimate in parts:
            for cell in estimate.replicates:
                gb = count * cell["value"]
                ratio = {"numerator": gb, "denominator": capacity}
                replicates.append(replicate(cell["cell"], gb / capacity, **ratio))
        total = math.fsum(count * estimate.value for count, estimate in parts)
        row = {"quantity": "parts_over_capacity", "flags": "", "replicates": replicates}
        row |= {"value": total / capacity}
        row |= {name: min(getattr(part, name) for _, part in parts) for name in ("n", "hosts")}
        rows.append(outcome._asdict() | row)
    return pd.DataFrame(rows)
