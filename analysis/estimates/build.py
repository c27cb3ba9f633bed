"""From runs to estimates: one host, one interval; several hosts, their points and the range."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev

from scipy.special import stdtrit

from analysis.estimates import runs as of_runs
from analysis.estimates.quantities import LOG, QUANTITIES, SHARE
from analysis.estimates.replicates import Value, values
from analysis.estimates.runs import COMPLETED, NOT_RUN, PLAIN, Host, Run
from analysis.estimates.schema import INTERVAL, NONE, RANGE, Estimate, Replicate, described
from analysis.names import ALONE_VARIANTS, parse_scenario
from analysis.records import flags

CONFIDENCE = 0.95


def interval(found: Sequence[float], scale: str) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t interval of one host's replicates; low and high are None for a single one.

    On logs for scale `log` (values > 0), within 0 to 1 for `share`. Each cell speaks for itself:
    nothing is pooled with other cells.
    """
    logs = scale == LOG
    used = [math.log(value) for value in found] if logs else list(found)
    mean = math.fsum(used) / len(used)
    back: Callable[[float], float] = math.exp if logs else float
    if len(used) < 2:
        return found[0], None, None
    half = float(stdtrit(len(used) - 1, (1 + CONFIDENCE) / 2)) * stdev(used) / math.sqrt(len(used))
    low, high = back(mean - half), back(mean + half)
    if scale == SHARE:
        low, high = max(low, 0.0), min(high, 1.0)
    return back(mean), low, high


def mean(found: Sequence[float], scale: str) -> float:
    """Geometric mean for scale `log` (values > 0), else the arithmetic one."""
    return interval(found, scale)[0]


def over_hosts(found: Sequence[Estimate]) -> Estimate:
    """One number from those of single hosts: of one host its interval, of several their range.

    The value is the mean over all replicates, each counting alike. Hosts are no replicates of each
    other, so no interval is made of them: low and high are the least and the most of their values.
    """
    first, scale = found[0], QUANTITIES[found[0].quantity].scale
    common = {
        "host": "",
        "n": sum(e.n for e in found),
        "hosts": len(found),
        "flags": flags.union(e.flags for e in found),
        "note": "; ".join(dict.fromkeys(e.note for e in found if e.note)),
        "replicates": tuple(r for e in found for r in e.replicates),
    }
    if len(found) == 1:
        return replace(first, **common)
    points = [e.value for e in found]
    span = {"low": min(points), "high": max(points), "spread": RANGE}
    value = mean([r.value for r in common["replicates"]], scale)
    return replace(first, value=value, **span, **common)


@dataclass(frozen=True)
class _Place:
    quantity: str
    scenario: str
    arm: str
    method: str
    window: str
    job: str


def estimated(found: Iterable[Value]) -> list[Estimate]:
    """Each host's estimate of every quantity, and the one over all hosts."""
    grouped: dict[_Place, dict[str, list[Value]]] = defaultdict(lambda: defaultdict(list))
    for value in found:
        run = value.run
        window = "" if run.window == PLAIN else run.window
        place = _Place(value.quantity, run.scenario.id, run.arm, run.method, window, value.job)
        grouped[place][run.host].append(value)
    estimates = []
    for place, by_host in grouped.items():
        scale = QUANTITIES[place.quantity].scale
        single = []
        for host, of_host in by_host.items():
            value, low, high = interval([v.replicate.value for v in of_host], scale)
            single.append(
                described(
                    Estimate(
                        **vars(place),
                        host=host,
                        value=value,
                        low=low,
                        high=high,
                        spread=NONE if low is None else INTERVAL,
                        n=len(of_host),
                        hosts=1,
                        flags=flags.union(of_cells([v.run for v in of_host])),
                        replicates=tuple(v.replicate for v in of_host),
                    )
                )
            )
        estimates += [*single, over_hosts(single)]
    return estimates


def of_cells(runs: Sequence[Run]) -> list[str]:
    """Flags of runs, with those that only several together, or the total, can have."""
    found = [run.members[0]["flags"] or "" for run in runs]
    found += [flags.UNSTEADY for run in runs if not of_runs.steady(run)]
    if len({m["digest"] for run in runs for m in run.members}) > 1:
        found.append(flags.MIXED_CODE)
    if len({(m["dataset"], m["source"]) for run in runs for m in run.members}) > len(
        {m["dataset"] for run in runs for m in run.members}
    ):
        found.append(flags.MIXED_DATA)
    return found


# -- numbers made of other numbers ----------------------------------------------------------------


def fastest_alone(estimates: Sequence[Estimate]) -> dict[str, Estimate]:
    """Workload → the rate alone of its fastest measured way of writing (over all hosts)."""
    best: dict[str, Estimate] = {}
    for e in estimates:
        scenario = parse_scenario(e.scenario)
        alone = e.quantity == "rate" and not e.host and scenario.n == 1 and e.method == "naive"
        if alone and scenario.variant == "" and not e.window:
            name = scenario.parts[0][0]
            if name not in best or e.value > best[name].value:
                best[name] = e
    return best


def over_fastest(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """Each set's rate over that of one job in its fastest way alone, host by host.

    Each replicate is divided by the host's mean of that rate; where the host has not measured it,
    by the mean over hosts, which the note says. The divisor is the same for all replicates of a
    host, so no interval is given.
    """
    best = fastest_alone(estimates)
    alone = {(e.arm, e.scenario, e.host): e for e in estimates if _is_alone_rate(e)}
    for e in best.values():
        ways = len({arm for arm, scenario, host in alone if scenario == e.scenario and not host})
        note = f"{ways} ways measured" if ways > 1 else "the only way measured"
        yield replace(e, quantity="fastest_rate", note=note)
    sets: dict[tuple, dict[str, dict[str, Estimate]]] = defaultdict(lambda: defaultdict(dict))
    for e in estimates:
        scenario = parse_scenario(e.scenario)
        names = [name for name, _ in scenario.parts]
        known = not e.window and not scenario.variant and all(name in best for name in names)
        if known and e.host and e.quantity == ("job_rate" if scenario.mixed else "rate"):
            sets[e.scenario, e.arm, e.method][e.host][e.job or names[0]] = e
    for (scenario_id, arm, method), by_host in sets.items():
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
            replicates = _shares(rates, counts, bases)
            single.append(
                described(
                    Estimate(
                        "over_fastest",
                        scenario=scenario_id,
                        arm=arm,
                        method=method,
                        host=host,
                        value=mean([r.value for r in replicates], LOG),
                        n=len(replicates),
                        hosts=1,
                        flags=flags.union(each.flags for each in rates.values()),
                        note=note,
                        replicates=replicates,
                    )
                )
            )
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


def _is_alone_rate(e: Estimate) -> bool:
    scenario = parse_scenario(e.scenario)
    plain = e.quantity == "rate" and e.method == "naive" and not e.window
    return plain and scenario.n == 1 and scenario.variant == ""


def variation(estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """How far a rate varies over the blocks of one host; over hosts the middle and the range."""
    grouped: dict[tuple, list[Estimate]] = defaultdict(list)
    for e in estimates:
        if e.quantity == "rate" and e.host and e.n > 1:
            spread = stdev(math.log(r.value) for r in e.replicates)
            cv = replace(e, quantity="rate_cv", value=spread, low=None, high=None, spread=NONE)
            cv = replace(cv, unit="", relative_to=QUANTITIES["rate_cv"].relative_to)
            grouped[e.scenario, e.arm, e.method, e.window].append(cv)
    for single in grouped.values():
        points = [cv.value for cv in single]
        span = {"low": min(points), "high": max(points), "spread": RANGE} if points[1:] else {}
        yield from [*single, replace(over_hosts(single), value=median(points), **span)]


def memory_of_parts(
    estimates: Sequence[Estimate], planned: Iterable[Estimate]
) -> Iterator[Estimate]:
    """Memory of a set's jobs alone over the card's, for every set that ran or ran out of memory."""
    memory = {
        (e.arm, e.scenario): e
        for e in estimates
        if e.quantity == "memory" and not e.host and e.method == "naive" and not e.window
    }
    capacity = next((e for e in estimates if e.quantity == "capacity" and not e.host), None)
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
        cells = " ".join(cell for e in parts for cell in e.cells)
        yield described(
            replace(
                outcome,
                quantity="parts_over_capacity",
                value=total / capacity.value,
                n=min(e.n for e in parts),
                hosts=min(e.hosts for e in parts),
                flags="",
                replicates=(
                    Replicate(outcome.id, total / capacity.value, total, capacity.value, cells),
                ),
            )
        )


# -- outcomes and counts --------------------------------------------------------------------------


def outcomes(runs: Sequence[Run], expected: Iterable[Mapping]) -> list[Estimate]:
    """What became of each planned set: completed replicates of those planned, and why not more."""
    cells: dict[tuple, dict[int, Run | None]] = defaultdict(dict)
    for cell in expected:
        key = (cell["scenario"], cell["arm"], cell["method"])
        cells[key].setdefault(cell["replicate"], None)
    for run in runs:
        if run.current:
            cells[run.scenario.id, run.arm, run.method][run.block] = run
    found = []
    for (scenario, arm, method), by_block in cells.items():
        counted = Counter(run.status if run else NOT_RUN for run in by_block.values())
        done = [run for run in by_block.values() if run and run.status == COMPLETED]
        rest = Counter({s: c for s, c in counted.items() if s != COMPLETED})
        reasons = [run.members[0]["reason"] for run in by_block.values() if run]
        found.append(
            described(
                Estimate(
                    "outcome",
                    scenario=scenario,
                    arm=arm,
                    method=method,
                    value=float(counted[COMPLETED]),
                    n=counted.total(),
                    hosts=len({run.host for run in done}),
                    status=COMPLETED if done else _commonest(rest),
                    note=next((reason for reason in reasons if reason), ""),
                    replicates=tuple(Replicate(run.cell, 1.0) for run in done),
                )
            )
        )
    return found


def _commonest(counted: Counter) -> str:
    """Most frequent status; what was run before what was not."""
    return max(sorted(counted), key=lambda status: (status != NOT_RUN, counted[status]))


def counts(
    runs: Sequence[Run],
    planned: Sequence[Estimate],
    estimates: Sequence[Estimate],
    hosts: Iterable[Host],
    left_out: Mapping[str, int],
) -> Iterator[Estimate]:
    """Numbers of the whole study: cells by status, hosts, windows, how well rates repeat."""

    def count(name: str, value: float, note: str, **more: object) -> Estimate:
        return Estimate("count", name=name, value=float(value), note=note, **more)

    current = {run.cell: run for run in runs if run.current}
    by_status = Counter(run.status for run in current.values())
    by_status[NOT_RUN] = sum(e.n for e in planned) - by_status.total()
    yield count("cells", sum(e.n for e in planned), "cells planned")
    for status in (COMPLETED, "out_of_memory", "unsupported", "failed", "timed_out", NOT_RUN):
        yield count(f"cells_{status}", by_status[status], f"cells {status.replace('_', ' ')}")
    hosts = list(hosts)
    yield count("hosts", len(hosts), "machines that measured cells")
    yield count("sessions", len({s for h in hosts for s in h.sessions}), "visits to them")
    for host in hosts:
        note = f"{host.machine}: {host.hardware}; {', '.join(host.sessions)}"
        yield count("host_cells", host.cells, note, host=host.label)
    for hardware, cells in left_out.items():
        yield count(f"left_out_{_slug(hardware)}", cells, f"cells on {hardware}, left out")
    done = [run for run in runs if run.current and run.status == COMPLETED and run.window]
    seconds = [run.members[0]["window_s"] for run in done if run.window == PLAIN]
    if seconds := [s for s in seconds if s]:
        span = {"low": min(seconds), "high": max(seconds), "spread": RANGE, "unit": "s"}
        yield count("window_s", median(seconds), "length of the plain windows", **span)
    unsteady = [run for run in done if not of_runs.steady(run)]
    yield count("windows", len(done), "windows of completed cells")
    yield count("windows_unsteady", len(unsteady), "windows whose total rate was not steady")
    planned_sets = [e.n for e in planned if e.value]
    if planned_sets:
        completed = [e.value for e in planned if e.value]
        span = {"low": min(completed), "high": max(completed), "spread": RANGE}
        yield count("replicates", median(completed), "completed replicates of a set", **span)
    for name, chosen in (("alone", True), ("together", False)):
        found = [
            e.value
            for e in estimates
            if e.quantity == "rate_cv" and not e.host and (e.jobs == 1) is chosen
        ]
        if found:
            span = {"low": min(found), "high": max(found), "spread": RANGE}
            note = f"variation of throughput over a host's blocks, jobs {name}: middle of the sets"
            yield count(f"cv_{name}", median(found), note, **span)
    losses = Counter(m["loss_check"] for run in done for m in run.members)
    for verdict, number in sorted(losses.items(), key=str):
        if verdict:
            note = f"members whose loss: {verdict}"
            yield count(f"losses_{_slug(verdict)}", number, note)
    proven = Counter(
        run.members[0]["method_verified"] is True
        for run in current.values()
        if run.status == COMPLETED
    )
    yield count("method_proven", proven[True], "completed cells whose method was proven in force")
    yield count("method_not_proven", proven[False], "completed cells without that proof")


def _slug(text: object) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(text)).strip("_").lower()


def build(
    rows: Sequence[Mapping], expected: Sequence[Mapping], work: Mapping[str, Mapping[str, float]]
) -> list[Estimate]:
    """All measured numbers of a study: rows are those of runs.parquet, expected those of plan.json,
    work as `replicates.values` takes it.
    """
    hardware, left_out = of_runs.main_hardware(rows)
    used = [row for row in rows if row["hardware"] == hardware or row["status"] != COMPLETED]
    hosts = of_runs.hosts_of(used)
    runs = of_runs.runs_of(used, hosts)
    found = estimated(values(runs, work))
    planned = outcomes(runs, expected)
    found += [*over_fastest(found), *variation(found), *memory_of_parts(found, planned)]
    return [*found, *planned, *counts(runs, planned, found, hosts.values(), left_out)]
