"""Numbers made of other estimates: over the fastest way alone, variation, memory of the parts."""

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np
import pandas as pd

from analysis.estimates.intervals import mean, over_hosts
from analysis.estimates.quantities import LOG
from analysis.estimates.records import flags
from analysis.estimates.table import INTERVAL, NONE, replicate
from workflow.collocation.study.names import (
    ALONE_VARIANTS,
    PAPER_IMPLEMENTATION,
    parse_scenario,
    scenario_id,
)

BARE = {"low": np.nan, "high": np.nan, "half": np.nan, "spread": NONE}


def derived(found: pd.DataFrame, outcomes: pd.DataFrame) -> pd.DataFrame:
    """All of them, from the estimates of single hosts and over all, and what became of each set."""
    none = [frozenset()] * len(found)
    found = found.assign(code=none, data=none)  # flags hold already what replicates mix
    made = (over_fastest, over_paper, variation)
    parts = [*(each(found) for each in made), memory_of_parts(found, outcomes)]
    return pd.concat(parts, ignore_index=True)


def _alone(found: pd.DataFrame, *quantities: str, variants: Sequence[str] = ("",)) -> pd.DataFrame:
    """Numbers of jobs alone as separate processes."""
    plain = (found["method"] == "naive") & (found["window"] == "") & (found["jobs"] == 1)
    return found[plain & found["quantity"].isin(quantities) & found["variant"].isin(variants)]


def over_fastest(found: pd.DataFrame) -> pd.DataFrame:
    """Each set's rate over that of one job in its fastest way alone, host by host.

    Of a set that is written in that way it is STP. Of any other each replicate is divided by the
    host's mean of that rate; where the host has not measured it, by the mean over hosts, which the
    note says. Its interval joins those of the two rates (see `_ratio`). Jobs of which one way of
    writing was measured have no such number.
    """
    alone = _alone(found, "rate")
    every = alone[alone["host"] == ""]
    ways = every["scenario"].value_counts()
    best = every.sort_values("value", ascending=False, kind="stable").drop_duplicates("scenario")
    best = best.set_index("scenario", drop=False).loc[every["scenario"].drop_duplicates()]
    best = best[best["scenario"].map(ways) > 1]
    counted = best["scenario"].map(ways).map("{} ways measured".format)
    base = {(e.implementation, e.scenario, e.host): e for e in alone.itertuples()}
    fastest = {parse_scenario(e.scenario).parts[0][0]: e for e in best.itertuples()}

    plain = found[(found["window"] == "") & (found["variant"] == "")]
    jobs = {scenario: dict(parse_scenario(scenario).parts) for scenario in set(plain["scenario"])}
    plain = plain[[jobs[scenario].keys() <= fastest.keys() for scenario in plain["scenario"]]]
    best_of = {s: {fastest[name].implementation for name in jobs[s]} for s in plain["scenario"]}
    same = [best_of[e.scenario] == {e.implementation} for e in plain.itertuples()]
    same = pd.Series(same, plain.index, dtype=bool)
    stp = plain[same & (plain["quantity"] == "stp")]
    note = "STP, for " + stp["implementation"] + " is the fastest way"
    # `rate` is of all jobs of a set of jobs alike, `job_rate` of one of a mix.
    rates = np.where(plain["scenario"].str.contains("+", regex=False), "job_rate", "rate")
    sets = plain[~same & (plain["host"] != "") & (plain["quantity"] == rates)]
    single = []
    for (scenario, *_), of_host in sets.groupby(
        ["scenario", "implementation", "method", "host"], sort=False
    ):
        parts, rates = jobs[scenario], list(of_host.itertuples())
        names = [e.job or next(iter(parts)) for e in rates]
        if set(names) != set(parts):
            continue
        bests = [fastest[name] for name in names]
        bases = [base.get((b.implementation, b.scenario, rates[0].host), b) for b in bests]
        over = (f"{fastest[name].scenario}/{fastest[name].implementation}" for name in parts)
        note_of = "over " + " and ".join(over)
        if not all(b.host for b in bases):
            note_of += ", its mean over hosts where a host did not measure it"
        counts = [parts[name] if len(parts) > 1 else 1 for name in names]
        flagged = flags.union(e.flags for e in rates)
        single.append(_ratio("over_fastest", rates, counts, bases, flagged, note_of))
    return pd.concat(
        [
            best.assign(quantity="fastest_rate", note=counted),
            stp.assign(quantity="over_fastest", note=note),
            over_hosts(pd.DataFrame(single)),
        ]
    )


def over_paper(found: pd.DataFrame) -> pd.DataFrame:
    """Each job alone, as it is written, over the same job as the paper wrote it, host by host."""
    alone = _alone(found, "rate")
    papers = alone["implementation"] == PAPER_IMPLEMENTATION
    base = {(e.scenario, e.host): e for e in alone[papers & (alone["host"] != "")].itertuples()}
    made = [
        _ratio("alone_over_paper", [e], [1], [paper], flags.union([e.flags, paper.flags]), e.note)
        for e in alone[~papers].itertuples()
        if (paper := base.get((e.scenario, e.host)))
    ]
    return over_hosts(pd.DataFrame(made))


def _ratio(
    quantity: str, rates: list, counts: list[int], bases: list, flagged: str, note: str
) -> dict:
    """A host's sum of rates over rates alone, cell by cell, in the place of the first rate.

    The interval of a ratio of two numbers of the host joins theirs: on logs the half widths add up
    as squares (MOVER: Zou and Donner, 2008), as if the two were measured apart; where they share
    what changes from replicate to replicate, it is too wide. Other sums have none.
    """
    cells: dict[str, dict] = {}
    for e, count, base in zip(rates, counts, bases, strict=True):
        over = dict.fromkeys(r["cell"] for r in base.replicates)
        for r in e.replicates:
            cell = cells.setdefault(r["cell"], {"shares": [], "over": {}})
            cell["shares"].append((count * r["value"], base.value))
            cell["over"] |= over
    replicates = []
    for cell, each in cells.items():
        value = math.fsum(rate / base for rate, base in each["shares"])
        rate, base = each["shares"][0] if len(rates) == 1 else (None, None)
        of = {"numerator": rate, "denominator": base, "over": " ".join(each["over"])}
        replicates.append(replicate(cell, value, **of))
    first, base = rates[0], bases[0]
    made = {"value": mean([r["value"] for r in replicates], LOG), "n": len(replicates)} | BARE
    if len(rates) == 1 and base.host and first.spread == base.spread == INTERVAL:
        half = math.hypot(first.half, base.half)
        ends = made["value"] * math.exp(-half), made["value"] * math.exp(half)
        made |= dict(zip(BARE, (*ends, half, INTERVAL), strict=True))
    made |= {"quantity": quantity, "job": "", "replicates": replicates}
    return first._asdict() | made | {"flags": flagged, "note": note}


def variation(found: pd.DataFrame) -> pd.DataFrame:
    """How far a rate varies over the replicates of one host; over all the middle and the range."""
    rates = found[(found["quantity"] == "rate") & (found["host"] != "") & (found["n"] > 1)]
    spreads = [stdev(math.log(r["value"]) for r in found) for found in rates["replicates"]]
    every = over_hosts(rates.assign(quantity="rate_cv", value=spreads, kind=None, **BARE))
    if every.empty:
        return every
    both = every["host"] == ""
    place = [every[c] for c in ("scenario", "implementation", "method", "window")]
    middle = every["value"].where(~both).groupby(place).transform("median")
    return every.assign(value=every["value"].mask(both, middle))


def memory_of_parts(found: pd.DataFrame, outcomes: pd.DataFrame) -> pd.DataFrame:
    """Memory of a set's jobs alone over what the card has for them, for every set that ran or ran
    out of memory. What the card holds when idle is not for them.
    """
    every = found[found["host"] == ""]
    alone = _alone(every, "memory_of_jobs", variants=ALONE_VARIANTS)
    memory = {(e.implementation, e.scenario): e for e in alone.itertuples()}
    sizes = every.loc[every["quantity"] == "capacity_for_jobs", "value"].tolist()
    tried = outcomes[outcomes["status"].isin(("completed", "out_of_memory"))]
    made = []
    for outcome in tried.itertuples() if sizes else ():
        scenario, capacity = parse_scenario(outcome.scenario), sizes[0]
        variant = scenario.variant if scenario.variant in ALONE_VARIANTS else ""
        ones = [(n, scenario_id({job: 1}, variant)) for job, n in scenario.parts]
        parts = [(n, memory.get((outcome.implementation, one))) for n, one in ones]
        if scenario.n == 1 or not all(e for _, e in parts):
            continue
        used = [(r["cell"], count * r["value"]) for count, e in parts for r in e.replicates]
        replicates = [
            replicate(cell, gb / capacity, numerator=gb, denominator=capacity) for cell, gb in used
        ]
        about = {"value": math.fsum(count * e.value for count, e in parts) / capacity}
        about |= {name: min(getattr(e, name) for _, e in parts) for name in ("n", "hosts")}
        about |= {"quantity": "parts_over_capacity", "flags": "", "replicates": replicates}
        made.append(outcome._asdict() | about)
    return pd.DataFrame(made)
