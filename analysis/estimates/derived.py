"""Numbers made of other estimates: over the fastest way alone, variation, memory of the parts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, stdev

from analysis.estimates.intervals import mean, over_hosts
from analysis.estimates.quantities import LOG
from analysis.estimates.runs import COMPLETED
from analysis.estimates.schema import INTERVAL, NONE, RANGE, Estimate, Replicate, described
from analysis.records import flags
from workflow.collocation.spec.names import ALONE_VARIANTS, PAPER_ARM, parse_scenario


def fastest_alone(estimates: Sequence[Estimate]) -> dict[str, Estimate]:
    """Workload → the rate alone of its fastest measured way of writing (over all hosts)."""
    best: dict[str, Estimate] = {}
    for e in estimates:
        if _is_alone_rate(e) and not e.host:
            name = parse_scenario(e.scenario).parts[0][0]
            if name not in best or e.value > best[name].value:
                best[name] = e
    return best


def over_fastest(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """Each set's rate over that of one job in its fastest way alone, host by host.

    Of a set that is written in that way it is STP. Of any other each replicate is divided by the
    host's mean of that rate; where the host has not measured it, by the mean over hosts, which the
    note says. Its interval joins those of the two rates (see `_joined`). Jobs of which one way of
    writing was measured have no such number.
    """
    alone = {(e.arm, e.scenario, e.host): e for e in estimates if _is_alone_rate(e)}
    ways = Counter(scenario for _, scenario, host in alone if not host)
    best = {name: e for name, e in fastest_alone(estimates).items() if ways[e.scenario] > 1}
    for e in best.values():
        yield replace(e, quantity="fastest_rate", note=f"{ways[e.scenario]} ways measured")
    for e in estimates:
        names = [name for name, _ in parse_scenario(e.scenario).parts]
        same = all(name in best and best[name].arm == e.arm for name in names)
        if e.quantity == "stp" and same and not e.window and not parse_scenario(e.scenario).variant:
            note = f"STP, for {e.arm} is the fastest way"
            yield described(replace(e, quantity="over_fastest", relative_to="", note=note))
    sets: dict[tuple, dict[str, dict[str, Estimate]]] = defaultdict(lambda: defaultdict(dict))
    for e in estimates:
        scenario = parse_scenario(e.scenario)
        names = [name for name, _ in scenario.parts]
        known = not e.window and not scenario.variant and all(name in best for name in names)
        if all(best[name].arm == e.arm for name in names if known):
            continue
        if known and e.host and e.quantity == ("job_rate" if scenario.mixed else "rate"):
            sets[e.scenario, e.arm, e.method][e.host][e.job or names[0]] = e
    for (scenario_id, *_), by_host in sets.items():
        parts = dict(parse_scenario(scenario_id).parts)
        # `rate` is of all jobs of a set of jobs alike, `job_rate` of one of a mix.
        counts = parts if len(parts) > 1 else dict.fromkeys(parts, 1)
        single = []
        for host, rates in by_host.items():
            if rates.keys() != parts.keys():
                continue
            bases = {
                name: alone.get((best[name].arm, best[name].scenario, host), best[name])
                for name in parts
            }
            elsewhere = [name for name in parts if not bases[name].host]
            note = "over " + " and ".join(f"{best[n].scenario}/{best[n].arm}" for n in parts)
            if elsewhere:
                note += ", its mean over hosts where a host did not measure it"
            found = _shares(rates, counts, bases)
            about = {"job": "", "note": note}
            if len(parts) == 1 and not elsewhere:
                about |= _joined(*rates.values(), *bases.values())
            single.append(_of_host("over_fastest", [*rates.values()], found, **about))
        if single:
            yield from [*single, over_hosts(single)]


def _shares(
    rates: Mapping[str, Estimate], counts: Mapping[str, int], bases: Mapping[str, Estimate]
) -> tuple[Replicate, ...]:
    """Per cell the sum over jobs of throughput over the fastest way alone."""
    by_cell: dict[str, dict[str, float]] = defaultdict(dict)
    for name, e in rates.items():
        for r in e.replicates:
            by_cell[r.cell][name] = counts[name] * r.value
    found = []
    for cell, each in by_cell.items():
        value = math.fsum(rate / bases[name].value for name, rate in each.items())
        over = " ".join(dict.fromkeys(c for name in each for c in bases[name].cells))
        one = next(iter(each)) if len(each) == 1 else None
        pair = (each[one], bases[one].value) if one else (None, None)
        found.append(Replicate(cell, value, *pair, over))
    return tuple(found)


def _joined(over: Estimate, under: Estimate) -> dict[str, object]:
    """The interval of a ratio of two numbers of a host, from theirs; nothing where one has none.

    On logs the half widths add up as squares (MOVER: Zou and Donner, 2008), as if the two were
    measured apart; where they share what changes from block to block, it is too wide.
    """
    if {over.spread, under.spread} != {INTERVAL}:
        return {}
    ratio = over.value / under.value
    down = math.hypot(math.log(over.value / over.low), math.log(under.high / under.value))
    up = math.hypot(math.log(over.high / over.value), math.log(under.value / under.low))
    return {"low": ratio * math.exp(-down), "high": ratio * math.exp(up), "spread": INTERVAL}


def _of_host(
    quantity: str, of: Sequence[Estimate], found: tuple[Replicate, ...], **more: object
) -> Estimate:
    """A ratio on one host, made of these numbers, where the first of them stands."""
    about = {"n": len(found), "flags": flags.union(e.flags for e in of), "replicates": found}
    return _made_of(of[0], quantity, mean([r.value for r in found], LOG), **about, **more)


def _made_of(e: Estimate, quantity: str, value: float, **more: object) -> Estimate:
    """Another quantity in the place of an estimate, so far without spread."""
    bare = {"low": None, "high": None, "spread": NONE, "unit": "", "relative_to": ""}
    return described(replace(e, quantity=quantity, value=value, **bare | more))


def _is_alone_rate(e: Estimate) -> bool:
    scenario = parse_scenario(e.scenario)
    plain = e.quantity == "rate" and e.method == "naive" and not e.window
    return plain and scenario.n == 1 and scenario.variant == ""


def over_paper(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """Each job alone, as it is written, over the same job as the paper wrote it, host by host."""
    alone = {(e.arm, e.scenario, e.host): e for e in estimates if _is_alone_rate(e)}
    grouped: dict[tuple, list[Estimate]] = defaultdict(list)
    for (arm, scenario, host), e in alone.items():
        base = alone.get((PAPER_ARM, scenario, host))
        if arm == PAPER_ARM or not host or base is None:
            continue
        over = " ".join(base.cells)
        replicates = tuple(
            Replicate(r.cell, r.value / base.value, r.value, base.value, over) for r in e.replicates
        )
        ratio = _of_host("alone_over_paper", [e, base], replicates, **_joined(e, base))
        grouped[arm, scenario].append(ratio)
    for single in grouped.values():
        yield from [*single, over_hosts(single)]


def variation(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """How far a rate varies over the blocks of one host; over hosts the middle and the range."""
    grouped: dict[tuple, list[Estimate]] = defaultdict(list)
    for e in estimates:
        if e.quantity == "rate" and e.host and e.n > 1:
            spread = stdev(math.log(r.value) for r in e.replicates)
            cv = _made_of(e, "rate_cv", spread)
            grouped[e.scenario, e.arm, e.method, e.window].append(cv)
    for single in grouped.values():
        points = [cv.value for cv in single]
        span = {"low": min(points), "high": max(points), "spread": RANGE} if points[1:] else {}
        yield from [*single, replace(over_hosts(single), value=median(points), **span)]


def apart(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """How far a job alone differs between hosts: in its rate, and in that of a busy GPU."""
    for e in estimates:
        scenario = parse_scenario(e.scenario)
        alone = scenario.n == 1 and scenario.variant in ALONE_VARIANTS
        plain = e.quantity in ("rate", "device_rate") and e.method == "naive" and not e.window
        if alone and plain and not e.host and e.hosts > 1:
            yield _made_of(e, f"{e.quantity}_apart", e.high / e.low - 1)


def memory_of_parts(
    estimates: Sequence[Estimate], planned: Iterable[Estimate]
) -> Iterator[Estimate]:
    """Memory of a set's jobs alone over what the card has for them, for every set that ran or ran
    out of memory. What the card holds when idle is not for them.
    """
    memory = {
        (e.arm, e.scenario): e
        for e in estimates
        if e.quantity == "memory_of_jobs" and not e.host and e.method == "naive" and not e.window
    }
    sizes = (e for e in estimates if e.quantity == "capacity_for_jobs" and not e.host)
    capacity = next(sizes, None)
    for outcome in planned:
        scenario = parse_scenario(outcome.scenario)
        measured = outcome.status in (COMPLETED, "out_of_memory")
        if capacity is None or not measured or scenario.n == 1:
            continue
        suffix = f"--{scenario.variant}" if scenario.variant in ALONE_VARIANTS[1:] else ""
        parts = [memory.get((outcome.arm, f"1x_{name}{suffix}")) for name, _ in scenario.parts]
        if not all(parts):
            continue
        total = math.fsum(
            count * e.value for (_, count), e in zip(scenario.parts, parts, strict=True)
        )
        replicates = tuple(
            Replicate(r.cell, each / capacity.value, each, capacity.value)
            for (_, count), e in zip(scenario.parts, parts, strict=True)
            for r in e.replicates
            for each in (count * r.value,)
        )
        about = {"n": min(e.n for e in parts), "hosts": min(e.hosts for e in parts), "flags": ""}
        about["replicates"] = replicates
        yield _made_of(outcome, "parts_over_capacity", total / capacity.value, **about)
