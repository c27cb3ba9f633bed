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


def middle(found: Sequence[float], scale: str) -> float:
    """Median over hosts; of an even number the mean (of ratios the geometric one) of the middle."""
    if scale == LOG:
        return math.exp(median(math.log(value) for value in found))
    return median(found)


def over_hosts(found: Sequence[Estimate]) -> Estimate:
    """One number from those of single hosts: of one host its interval, of several their range."""
    first, scale = found[0], QUANTITIES[found[0].quantity].scale
    common = {
        "host": "",
        "n": sum(e.n for e in found),
        "hosts": len(found),
        "flags": flags.union(e.flags for e in found),
        "replicates": tuple(r for e in found for r in e.replicates),
    }
    if len(found) == 1:
        return replace(first, **common)
    points = [e.value for e in found]
    span = {"low": min(points), "high": max(points), "spread": RANGE}
    return replace(first, value=middle(points, scale), **span, **common)


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
        place = _Place(
            value.quantity, run.scenario.id, run.arm, run.method, window, value.job
        )
        grouped[place][run.host].append(value)
    estimates = []
    for place, by_host in grouped.items():
        scale = QUANTITIES[place.quantity].scale
        single = []
        for host, of_host in by_host.items():
            mean, low, high = interval([v.replicate.value for v in of_host], scale)
            single.append(
                described(
                    Estimate(
                        **vars(place),
                        host=host,
                        value=mean,
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

    A host that has measured both gives a point; where none has, the middles over hosts are divided,
    and the note says so. The set's replicates are divided by the host's mean, so that intervals do
    not hold the noise of the job alone: none is given.
    """
    best = fastest_alone(estimates)
    alone = {(e.arm, e.scenario, e.host): e for e in estimates if _is_alone_rate(e)}
    for name, e in best.items():
        ways = len({arm for arm, scenario, host in alone if scenario == e.scenario and not host})
        note = f"{ways} ways measured" if ways > 1 else "the only way measured"
        yield replace(e, quantity="fastest_rate", note=note)
    grouped: dict[tuple, dict[str, dict[str, Estimate]]] = defaultdict(lambda: defaultdict(dict))
    for e in estimates:
        scenario = parse_scenario(e.scenario)
        names = [name for name, _ in scenario.parts]
        if e.window or scenario.variant or any(name not in best for name in names):
            continue
        if e.quantity == "rate" and not scenario.mixed:
            grouped[e.scenario, e.arm, e.method][e.host][names[0]] = e
        elif e.quantity == "job_rate":
            grouped[e.scenario, e.arm, e.method][e.host][e.job] = e
    for (scenario_id, arm, method), by_host in grouped.items():
        parts = dict(parse_scenario(scenario_id).parts)
        single, overall = [], None
        for host, rates in by_host.items():
            bases = {name: alone.get((best[name].arm, best[name].scenario, host)) for name in parts}
            if rates.keys() != parts.keys() or not all(bases.values()):
                continue
            shares = [
                rates[name].value * (count if len(parts) > 1 else 1) / bases[name].value
                for name, count in parts.items()
            ]
            e = described(
                Estimate(
                    "over_fastest",
                    scenario=scenario_id,
                    arm=arm,
                    method=method,
                    host=host,
                    value=math.fsum(shares),
                    n=min(each.n for each in rates.values()),
                    hosts=1,
                    flags=flags.union(each.flags for each in rates.values()),
                    note="over " + ", ".join(f"{best[n].scenario}/{best[n].arm}" for n in parts),
                    replicates=tuple(
                        Replicate(
                            cell=r.cell,
                            value=r.value * (parts[n] if len(parts) > 1 else 1) / bases[n].value,
                            numerator=r.value * (parts[n] if len(parts) > 1 else 1),
                            denominator=bases[n].value,
                            over=" ".join(bases[n].cells),
                        )
                        for n, each in rates.items()
                        for r in each.replicates
                    ),
                )
            )
            if host:
                single.append(e)
            else:
                overall = replace(e, note=f"{e.note}; no host measured both: middles over hosts")
        if single:
            yield from [*single, over_hosts(single)]
        elif overall:
            yield overall


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
        yield from [*single, over_hosts(single)]


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
                    Replicate(
                        outcome.id, total / capacity.value, total, capacity.value, cells
                    ),
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
    proven = Counter(run.members[0]["method_verified"] is True for run in current.values() if run.status == COMPLETED)
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
