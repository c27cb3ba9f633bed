"""Which numbers a page shows: choosing and sorting, no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from analysis import labels
from analysis.advice import Advice, Option
from analysis.claims import Judged, TestJudged
from analysis.estimates.schema import Estimate
from analysis.estimates.table import Estimates
from analysis.names import PAPER_ARM, TWIN, method_order, parse_scenario
from analysis.pages.tables import Number, Table


def _family(e: Estimate) -> tuple[str, str, str]:
    parsed = parse_scenario(e.scenario)
    return e.arm, parsed.family, parsed.variant


def best_sets(estimates: Estimates) -> list[Estimate]:
    """The STP of each job's (and mix's) best set of two jobs or more, by arm; highest first."""
    found = [e for e in estimates.of("stp") if e.jobs > 1 and e.method != TWIN and not e.window]
    found.sort(key=_family)
    best = [max(of, key=lambda e: e.value) for _, of in groupby(found, key=_family)]
    return sorted(best, key=lambda e: (e.arm != PAPER_ARM, e.arm, -e.value))


def gains(estimates: Estimates) -> Table:
    """A row for each job and arm: alone, and its best set."""
    columns = ("job", "written", "alone, samples/s", "GPU busy alone", "best set", "STP", "S")
    table = Table((*columns, "over the fastest way alone", "slowest job takes"))
    for e in best_sets(estimates):
        parsed = parse_scenario(e.scenario)
        set_of = {"scenario": e.scenario, "arm": e.arm, "method": e.method}
        one = {"scenario": "", "arm": e.arm, "method": "naive"}
        if not parsed.mixed:
            suffix = f"--{parsed.variant}" if parsed.variant else ""
            one["scenario"] = f"1x_{parsed.parts[0][0]}{suffix}"
        alone = [estimates.get(q, **one) for q in ("rate", "gract")]
        of = [estimates.get(q, **set_of) for q in ("s", "over_fastest", "slowdown_worst")]
        count = labels.scenario(e.scenario) if parsed.mixed else str(parsed.n)
        name = " + ".join(labels.job(n) for n, _ in parsed.parts)
        name += f" ({parsed.variant})" if parsed.variant else ""
        table.rows.append(
            (
                *(name, labels.arm(e.arm), Number(alone[0], "bare"), Number(alone[1])),
                f"{count} {_how(e.method)}",
                *(Number(e, "span"), *map(Number, of)),
            )
        )
    return table


def _how(method: str) -> str:
    return "as plain processes" if method == "naive" else f"under {labels.method(method)}"


def ways(estimates: Estimates) -> Table:
    """Jobs that were written in several ways: each way alone, and its fastest set."""
    columns = ("job", "written", "alone, samples/s", "alone, over the fastest way alone")
    table = Table((*columns, "fastest set", "samples/s", "over the fastest way alone"))
    for name in estimates.workloads():
        alone = estimates.of("rate", scenario=f"1x_{name}", method="naive")
        if len(alone) < 2:
            continue
        for e in alone:
            rates = [r for r in estimates.of("rate", arm=e.arm) if _is_set_of(r, name)]
            top = max(rates, key=lambda r: r.value, default=None)
            numbers = [Number(e, "bare_span"), Number(_over(estimates, e))]
            text = f"{top.jobs} {_how(top.method)}" if top else ""
            numbers += [text, Number(top, "bare"), Number(_over(estimates, top) if top else None)]
            table.rows.append((labels.job(name), labels.arm(e.arm), *numbers))
    return table


def _over(estimates: Estimates, e: Estimate) -> Estimate | None:
    return estimates.get("over_fastest", scenario=e.scenario, arm=e.arm, method=e.method)


def _is_set_of(e: Estimate, name: str) -> bool:
    parsed = parse_scenario(e.scenario)
    alike = not parsed.mixed and parsed.parts[0][0] == name
    return alike and parsed.n > 1 and not parsed.variant and not e.window and e.method != TWIN


def over_plain(estimates: Estimates) -> Table:
    """MPS without limits against plain processes: a row for each job, a column for each count."""
    found = [
        e for e in estimates.of("rate_over_naive", method="mps") if e.jobs > 1 and not e.window
    ]
    found = [e for e in found if not parse_scenario(e.scenario).mixed]
    counts = sorted({e.jobs for e in found})
    table = Table(("job", "written", *(f"{n} jobs" for n in counts)))
    for (arm, family, variant), of in groupby(found, key=_family):
        by_count = {e.jobs: e for e in of}
        name = labels.job(family) + (f" ({variant})" if variant else "")
        cells = (Number(by_count.get(n), "span") for n in counts)
        table.rows.append((name, labels.arm(arm), *cells))
    return table


def leaving(estimates: Estimates) -> Table:
    """What the jobs that stay gain when one leaves."""
    table = Table(("set", "method", "speed after a job left, over before"))
    for e in estimates.of("reclaimed"):
        names = (labels.scenario(e.scenario), labels.method(e.method))
        table.rows.append((*names, Number(e, "span")))
    return table


def missing(estimates: Estimates) -> Iterator[tuple[str, str, str, str]]:
    """(status, methods, sets, reason) of what was planned without result, alike ones together."""
    found: dict[tuple[str, str, str], list[Estimate]] = {}
    for e in estimates.of("outcome"):
        if not e.value:
            found.setdefault((e.status, _first_sentence(e.note), e.method), []).append(e)
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
        parsed = parse_scenario(e.scenario)
        text = " + ".join(labels.job(name) for name, _ in parsed.parts)
        text += f" ({parsed.variant})" if parsed.variant else ""
        text += "" if e.arm == PAPER_ARM else f", {labels.arm(e.arm)}"
        counts.setdefault(text, {})["+".join(str(n) for _, n in parsed.parts)] = None
    return "; ".join(f"{', '.join(numbers)} × {text}" for text, numbers in counts.items())


def _first_sentence(note: str) -> str:
    return note.partition(". ")[0].partition(": OutOfMemoryError: ")[2] or note.partition(". ")[0]


def facts(estimates: Estimates) -> list[Estimate]:
    """What the study was measured on, with and from: hardware, versions, sources of data."""
    return [
        e for e in estimates.of("count") if e.name.partition("_")[0] in ("data", "software", "left")
    ]


def sure(e: Estimate, low: float, high: float) -> bool:
    """Whether the interval of one host lies inside bounds; a single replicate has none: no."""
    return e.low is not None and e.high is not None and low < e.low and e.high < high


def twins(estimates: Estimates) -> list[Estimate]:
    """A/A: plain processes under another name over plain processes, host by host."""
    found = [e for e in estimates.of("rate_over_naive", method=TWIN) if not e.window]
    return [on for e in found for on in estimates.on_hosts(e)]


def flagged(estimates: Estimates, flag: str) -> list[Estimate]:
    """Sets with a flag on their throughput gain or rate."""
    of = {e.id: e for name in ("rate", "stp") for e in estimates.of(name)}
    sets = {(e.scenario, e.arm, e.method): e for e in of.values() if flag in e.flags.split(";")}
    return list(sets.values())


def decided(judged: Judged, estimates: Estimates) -> tuple[Estimate | None, Estimate | None]:
    """The number that a claim's verdict rests on first, and the paper's number beside it."""
    cells = [cell for test in judged.tests for cell in test.cells if cell.ids]
    deciding = [cell for cell in cells if cell.verdict == judged.verdict] or cells
    if not deciding:
        return None, next((r for test in judged.tests for r in papers(test, estimates)), None)
    cell = next((cell for cell in deciding if cell.reported), deciding[0])
    return estimates[cell.ids[0]], estimates[cell.reported] if cell.reported else None


def papers(test: TestJudged, estimates: Estimates) -> list[Estimate]:
    """The paper's numbers of the cells of a test."""
    return [estimates[cell.reported] for cell in test.cells if cell.reported]


_OPTION = ("samples/s", "STP", "S", "over fastest", "slowest takes", "memory")


def _of_option(option: Option) -> tuple[Number, ...]:
    rest = (option.s, option.over_fastest, option.slowdown, option.memory)
    return Number(option.rate, "bare"), Number(option.stp, "span"), *map(Number, rest)


def same_reason(found: Iterable[Judged]) -> list[tuple[str, list[Judged]]]:
    """Claims whose rules were changed, those that were changed for one reason together."""
    grouped: dict[str, list[Judged]] = {}
    for each in found:
        if each.claim.changed:
            grouped.setdefault(each.claim.changed.why, []).append(each)
    return list(grouped.items())


def by_gain(advised: Iterable[Advice]) -> list[Advice]:
    """Jobs as in the paper first, and of these the highest gain."""

    def key(advice: Advice) -> tuple:
        gain = advice.knee.stp.value if advice.knee else 0.0
        return advice.arm != PAPER_ARM, advice.arm, -gain

    return sorted(advised, key=key)


def summary(advised: Iterable[Advice]) -> Table:
    """The knee of each job: what to do, on one line."""
    columns = ("job", "written", "run", *_OPTION, "measured on")
    table = Table(columns)
    for each in by_gain(advised):
        names = (labels.job(each.job), labels.arm(each.arm))
        if each.knee:
            numbers = (*_of_option(each.knee), Number(each.knee.stp, "how_many"))
            table.rows.append((*names, each.knee.label, *numbers))
    return table


def options(advice: Advice) -> Table:
    """The options that no other beats in throughput, slowdown and memory together."""
    table = Table(("run", "", *_OPTION))
    for option in advice.pareto:
        mark = ", ".join(["knee"] * (option == advice.knee) + ["best"] * (option == advice.best))
        table.rows.append((option.label, mark, *_of_option(option)))
    return table


def advised(found: Iterable[Advice]) -> Table:
    """Every measured option of every job, for CSV."""
    table = Table(("job", "written", "run", "jobs", "method", "pareto", "chosen", *_OPTION))
    for each in by_gain(found):
        for option in each.options:
            chosen = "knee" if option == each.knee else "best" if option == each.best else ""
            pareto = "yes" if option in each.pareto else ""
            names = (each.job, each.arm, option.label, str(option.n), option.method)
            table.rows.append((*names, pareto, chosen, *_of_option(option)))
    return table
