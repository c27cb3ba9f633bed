"""Which numbers a page shows: choosing and sorting, no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from analysis import labels
from analysis.advice import Advice, Option
from analysis.choose import copies, place, unmeasured, value, way
from analysis.claims import Judged, TestJudged
from analysis.estimates.schema import Estimate
from analysis.estimates.table import Estimates
from analysis.pages.tables import Number, Table, by_job, numbers
from analysis.records import flags
from workflow.collocation.spec.names import (
    COMPLETION,
    CONTROL_ARMS,
    PAPER_ARM,
    TWIN,
    arm_order,
    method_order,
    parse_scenario,
    scenario_id,
)

NO_WAIT = 0.98  # GRACT of a set that does not wait for its host
MOSTLY = 0.5  # of what hosts differ by: less remains while the GPU is busy, so most is waiting


def _family(e: Estimate) -> tuple[str, str, str]:
    parsed = parse_scenario(e.scenario)
    return e.arm, parsed.family, parsed.variant


def gains(estimates: Estimates) -> Table:
    """A row for each job (and mix) and arm: alone, and the set that does most: samples/s, as STPs
    of several cells are over jobs alone that differ; of a mix the STP.
    """
    columns = ("job", "written", "alone, samples/s", "GPU busy alone", "best set", "STP", "S")
    table = Table((*columns, "over the fastest way alone", "slowest job takes"))
    found = [e for e in estimates.of("stp", window="") if e.jobs > 1 and e.method != TWIN]

    def does(e: Estimate) -> tuple[float, float]:
        rate = estimates.get("rate", **place(e))
        return rate.value if rate else 0.0, e.value

    best = [max(of, key=does) for _, of in groupby(sorted(found, key=_family), key=_family)]
    for e in sorted(best, key=lambda e: (arm_order(e.arm), -e.value)):
        parsed = parse_scenario(e.scenario)
        one = "" if parsed.mixed else scenario_id({parsed.parts[0][0]: 1}, parsed.variant)
        one = {"scenario": one, "arm": e.arm, "method": "naive"}
        count = labels.scenario(e.scenario) if parsed.mixed else str(parsed.n)
        job = labels.scenario(e.scenario, count=False)
        alone = numbers(estimates, one, "rate:bare", "gract")
        of = numbers(estimates, place(e), "stp:span", "s", "over_fastest:span", "slowdown_worst")
        table.rows.append((job, labels.arm(e.arm), *alone, f"{count} {way(e.method)}", *of))
    return table


def fastest(estimates: Estimates) -> Table:
    """Jobs that were measured in several ways: the fastest one alone, and the fastest set; how busy
    that keeps the GPU, and which ways the study lacks.
    """
    columns = ("job", "fastest alone", "samples/s", "replicates", "fastest set", "samples/s")
    columns += ("over the fastest alone", "replicates", "GRACT", "SMACT", "DRAMA")
    table = Table((*columns, "ways not measured alone"))
    names = ("rate:bare", "over_fastest:span", "rate:how_many", "gract", "smact", "drama")
    for name, rates in copies(estimates, "rate").items():
        for best in estimates.of("fastest_rate", scenario=scenario_id({name: 1})):
            row = [labels.job(name), labels.arm(best.arm), Number(best, "bare_span")]
            top = max((e for e in rates if e.jobs > 1), key=value, default=None)
            what = f"{top.jobs} {way(top.method)}, {labels.arm(top.arm)}" if top else ""
            of = numbers(estimates, place(top) if top else {}, *names)
            lacks = unmeasured(estimates, [name])
            table.rows.append((*row, Number(best, "how_many"), what, *of, lacks))
    return table


def hosts_part(estimates: Estimates) -> Table:
    """Jobs alone: how much of their rate is the host's."""
    columns = ("job", "written", "samples/s", "differs by", "1 / GRACT", "waits")
    table = Table((*columns, "samples/s of busy GPU", "differs by"))
    names = ("rate:bare_span", "rate_apart:pct", "gaps:span", "waits:pct")
    names += ("device_rate:bare_span", "device_rate_apart:pct")
    for e in sorted(estimates.of("device_rate"), key=by_job):
        found = numbers(estimates, place(e), *names)
        table.rows.append((labels.scenario(e.scenario), labels.arm(e.arm), *found))
    return table


def hosts_wait(estimates: Estimates) -> bool:
    """True if hosts differ mostly in how long they let the GPU wait: jobs alone differ by less than
    half as much per second of busy GPU as in all.
    """
    names = ("device_rate_apart", "rate_apart")
    busy, whole = (estimates.get("count", name=name) for name in names)
    return bool(busy and whole) and busy.value < MOSTLY * whole.value


def over_plain(estimates: Estimates) -> Table:
    """MPS without limits against plain processes: a row for each job, a column for each count."""
    found = _over_plain(estimates)
    counts = sorted({e.jobs for e in found})
    table = Table(("job", "written", *(f"{n} jobs" for n in counts)))
    for (arm, *_), of in groupby(found, key=_family):
        by_count = {e.jobs: e for e in of}
        name = labels.scenario(next(iter(by_count.values())).scenario, count=False)
        row = (Number(by_count.get(n), "span") for n in counts)
        table.rows.append((name, labels.arm(arm), *row))
    return table


def waiting(estimates: Estimates) -> str:
    """Sets that leave the GPU idle under MPS: what they gain by it depends on the host's speed."""
    busy = ((e, estimates.get("gract", **place(e))) for e in _over_plain(estimates))
    return _names_of(e for e, gract in busy if gract and gract.value and gract.value < NO_WAIT)


def _over_plain(estimates: Estimates) -> list[Estimate]:
    found = estimates.of("rate_over_naive", method="mps", window="")
    return [e for e in found if e.jobs > 1 and not parse_scenario(e.scenario).mixed]


def missing(estimates: Estimates) -> Iterator[tuple[str, str, str, str]]:
    """(status, methods, sets, reason) of what was planned without result, alike ones together."""
    found: dict[tuple[str, str, str], list[Estimate]] = {}
    for e in estimates.of("outcome"):
        if not e.value:
            reason = e.note.partition(". ")[0].rpartition("OutOfMemoryError: ")[2]
            found.setdefault((e.status, reason, e.method), []).append(e)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (status, reason, method), of in found.items():
        alike.setdefault((status, reason, _names_of(of)), []).append(method)
    for (status, reason, sets), methods in sorted(alike.items()):
        by = ", ".join(map(labels.method, sorted(methods, key=method_order)))
        yield labels.status(status), by, sets, reason


def _names_of(sets: Iterable[Estimate]) -> str:
    """`2, 3, 7 × ResNet26 b32; 1, 2 × ResNet152 b32, bf16`."""
    counts: dict[str, dict[str, None]] = {}
    for e in sets:
        text = labels.scenario(e.scenario, count=False)
        text += "" if e.arm == PAPER_ARM else f", {labels.arm(e.arm)}"
        parts = parse_scenario(e.scenario).parts
        counts.setdefault(text, {})["+".join(str(n) for _, n in parts)] = None
    return "; ".join(f"{', '.join(numbers)} × {text}" for text, numbers in counts.items())


def flagged(estimates: Estimates, flag: str) -> list[Estimate]:
    """Sets with a flag on their throughput gain or rate."""
    found = (e for name in ("rate", "stp") for e in estimates.of(name))
    sets = {tuple(place(e).values()): e for e in found if flag in flags.split(e.flags)}
    return list(sets.values())


def decided(judged: Judged, estimates: Estimates) -> tuple[Estimate | None, Estimate | None]:
    """The number that a claim's verdict rests on first, and the paper's number beside it."""
    every = [cell for test in judged.tests for cell in test.cells]
    cells = [cell for cell in every if cell.ids] or every
    deciding = [cell for cell in cells if cell.verdict == judged.verdict] or cells
    chosen = sorted(deciding, key=lambda cell: not cell.reported)[:1]
    ours = next((cell.ids[0] for cell in chosen if cell.ids), None)
    theirs = next((cell.reported for cell in chosen if cell.reported), None)
    return ours and estimates[ours], theirs and estimates[theirs]


def promised(estimates: Estimates) -> bool:
    """True if rates promise a pair more than its cells with fixed work show, wherever both are."""
    pairs = [
        (e, estimates.get("saving_by_rates", **place(e) | {"scenario": e.scenario.split("--")[0]}))
        for e in estimates.of("saving", window=COMPLETION)
    ]
    return (found := [by.value > e.value for e, by in pairs if by]) != [] and all(found)


def slow_survivors(estimates: Estimates) -> bool:
    """True if all jobs that outlast the other one of their pair are slower then than alone."""
    found = estimates.of("survivor_over_alone", window=COMPLETION)
    return bool(found) and all(e.value < 1 for e in found)


def reported(pair: Table) -> bool:
    """True if a pair has values of the paper beside ours."""
    return any(row[-1] for row in pair.rows)


def papers(test: TestJudged, estimates: Estimates) -> list[Estimate]:
    """The paper's numbers of the cells of a test."""
    return [estimates[cell.reported] for cell in test.cells if cell.reported]


_OPTION = ("samples/s", "STP", "S", "over fastest", "slowest takes", "memory")


def _of(option: Option) -> tuple[Number, ...]:
    rest = (option.s, option.over_fastest, option.slowdown, option.memory)
    return Number(option.rate, "bare"), Number(option.stp, "span"), *map(Number, rest)


def same_reason(found: Iterable[Judged]) -> dict[str, dict[str, list[str]]]:
    """Of claims whose rules were changed: reason → `old → new verdict` → their ids."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for each in found:
        if changed := each.claim.changed:
            verdicts = f"{changed.before} → {each.verdict}"
            grouped.setdefault(changed.why, {}).setdefault(verdicts, []).append(each.claim.id)
    return grouped


def by_gain(advised: Iterable[Advice]) -> list[Advice]:
    """Jobs as in the paper first, and of these the highest gain."""
    found = sorted(advised, key=lambda each: -each.knee.stp.value if each.knee else 0.0)
    return sorted(found, key=lambda each: arm_order(each.arm))


def foremost(advised: Iterable[Advice]) -> list[Advice]:
    """Of each job that was measured in sets, the way of writing whose advised option does the most;
    the highest gain first.
    """
    found: dict[str, Advice] = {}
    for each in (each for each in advised if each.sets and each.knee):
        found[each.job] = max(found.get(each.job, each), each, key=_does)
    return sorted(found.values(), key=lambda each: -each.knee.stp.value)


def _does(advice: Advice) -> tuple[bool, float, float]:
    rate = advice.knee.rate
    return advice.arm not in CONTROL_ARMS, rate.value if rate else 0.0, advice.knee.stp.value


def knee(advised: Iterable[Advice], job: str, arm: str) -> Option:
    """The option that is advised for a job written in one way."""
    return next(each.knee for each in advised if (each.job, each.arm) == (job, arm))


def summary(advised: Iterable[Advice]) -> Table:
    """The knee of each job: what to do, on one line."""
    table = Table(("job", "written", "run", *_OPTION, "measured on"))
    for each in advised:
        if each.knee:
            run = each.knee.label if each.sets else "sharing not measured"
            names = (labels.job(each.job), labels.arm(each.arm), run)
            table.rows.append((*names, *_of(each.knee), Number(each.knee.stp, "how_many")))
    return table


def options(advice: Advice) -> Table:
    """The options that no other beats in throughput, slowdown and memory together."""
    table = Table(("run", "", *_OPTION, "hosts"))
    for option in advice.pareto:
        mark = ", ".join(["knee"] * (option == advice.knee) + ["best"] * (option == advice.best))
        hosts = ", ".join(option.hosts) if advice.ragged else ""
        table.rows.append((option.label, mark, *_of(option), hosts))
    return table


def advised(found: Iterable[Advice]) -> Table:
    """Every measured option of every job, for CSV."""
    table = Table(("job", "written", "run", "jobs", "method", "pareto", "chosen", *_OPTION))
    for each in found:
        for option in each.options:
            chosen = "knee" if option == each.knee else "best" if option == each.best else ""
            pareto = "yes" if option in each.pareto else ""
            names = (each.job, each.arm, option.label, str(option.n), option.method)
            table.rows.append((*names, pareto, chosen, *_of(option)))
    return table
