"""Figures of the appendix: memory, how well numbers repeat, what MPS gains on a faster host."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis import labels
from analysis.choose import place, value
from analysis.estimates.schema import Estimate, Replicate
from analysis.figures import choose
from analysis.figures.against_n import COUNTS
from analysis.figures.choose import Study, by_method, under
from analysis.figures.sheet import Sheet
from analysis.intervals import FEW


def memory(study: Study) -> Sheet:
    """GPU memory against the number of jobs, up to the card's."""
    sheet = Sheet(columns=1, height=3.0)
    found = study.fullest("memory")
    if not found:
        why = study.lacking(choose.NO_MEMORY)
        return choose.nothing(sheet, "GPU memory against the number of jobs", why)
    most = max((e for each in found.values() for e in each), key=value)
    card = study.t.get("capacity", **place(most))
    sheet.basis(most)
    of = f" of the card's {labels.number(card.value)}" if card else ""
    sheet.text("title", f"{under(most)} take {labels.number(most.value)}{of} GB")
    drawn = choose.strokes(e.method for each in found.values() for e in each)
    sheet.text("subtitle", f"{drawn}. All jobs and driver")
    panel = sheet.panel("memory", **COUNTS, ylabel="GPU memory (GB)", yscale="log")
    if card:
        sheet.line(panel, card, f"the card: {labels.number(card.value, 'GB')}")
    for number, (workload, numbers) in enumerate(found.items()):
        style = {"colour": choose.HUES[number], "marker": choose.SIGNS[number]}
        for way, each in by_method(numbers).items():
            end = labels.job(workload) if way == choose.main_way(numbers) else ""
            choose.path(sheet, panel, each, f"{workload}, {way}", end, **style)
    return choose.footers(study, sheet)


def repeatability(study: Study) -> Sheet:
    """Variation of throughput between blocks of one host: jobs alone, and their largest sets."""
    sheet = Sheet(columns=1, row_height=0.17)
    found = study.fullest("rate_cv")
    title = "How well throughput repeats on one host"
    if not found:
        why = study.lacking("no host has two replicates of a set of jobs alike")
        return choose.nothing(sheet, title, why)
    alone, together = (study.t.get("count", name=f"cv_{name}") for name in ("alone", "together"))
    sets = [e.jobs > 1 for e in study.t.of("rate_cv")]
    if alone and together and sets.count(True) >= FEW and sets.count(False) >= FEW:
        sheet.basis(alone, together)
        title = f"Repeated runs on one host differ by {100 * alone.value:.1f} % for jobs alone "
        title += f"and {100 * together.value:.1f} % for sets (medians)"
    sheet.text("title", title)
    said = "Coefficient of variation over blocks of a host: jobs alone, then the largest set of "
    sheet.text("subtitle", said + "each")
    own = choose.ROWS | {"xlabel": "coefficient of variation", "xformat": "percent"}
    panel, row = sheet.panel("cv", **own), 0.0
    for numbers in found.values():
        of_one = [e for e in numbers if e.jobs == 1 and e.method == "naive"]
        largest = [each[-1] for each in by_method([e for e in numbers if e.jobs > 1]).values()]
        for e in (e for e in [*of_one, *largest] if e.value):
            row += 1
            way = f", {labels.method(e.method)}" if e.jobs > 1 else " alone"
            sheet.tick(panel, row, labels.scenario(e.scenario) + way)
            choose.sign(sheet, panel, e, row)
        row += 0.5
    return choose.footers(study, sheet)


def against_host(study: Study) -> Sheet:
    """MPS over plain processes against the speed of one job alone, a sign per alternating cell.

    The job alone took turns with both sets: where it waits for its host, its speed tells that of
    the host at the time.
    """
    sheet = Sheet(columns=1, height=4.0)
    found = [
        (workload, e, cells)
        for workload, each in study.alike("rate_over_naive", arm=study.arm, method="mps").items()
        for e in each
        if e.jobs > 1 and (cells := _with_one_alone(study, workload, e))
    ]
    if not found:
        title = "MPS over plain processes, against the speed of one job alone"
        why = study.lacking("no two sets took turns with one job alone")
        return choose.nothing(sheet, title, why)
    # The set whose gain differs most between its slowest and its fastest job alone.
    _, e, cells = max(found, key=lambda each: _change(each[-1]))
    (slow, low), (fast, high) = cells[0], cells[-1]
    text = f"{under(e)} do {labels.number(low.value)} times the work of plain ones"
    if fast > slow:
        text += f" where one alone does {labels.number(slow)} samples/s, and "
        text += f"{labels.number(high.value)} times where it does {labels.number(fast)}"
    sheet.basis(e)
    sheet.text("title", text)
    present = {each.host for _, e, _ in found for each in study.t.on_hosts(e)}
    first, *others = [host for host in study.t.hosts() if host in present] or [""]
    said = f". Filled: host {first}; open: {', '.join(others)}" if others else ""
    sheet.text("subtitle", f"A sign is one cell, in which these sets took turns{said}")
    own = {"xlabel": "samples/s of one job alone in that cell", "xscale": "log", "yscale": "log"}
    own |= {"ylabel": "work under MPS over that of plain processes", "names": "right"}
    panel = sheet.panel("cells", **own)
    sheet.line(panel)
    jobs = list(dict.fromkeys(workload for workload, *_ in found))
    sizes = sorted({e.jobs for _, e, _ in found})
    for workload, e, cells in found:
        style = {"colour": choose.HUES[jobs.index(workload) % choose.MOST]}
        style["marker"] = choose.SIGNS[sizes.index(e.jobs) % choose.MOST]
        on_first = {r.cell for h in study.t.on_hosts(e) if h.host == first for r in h.replicates}
        for alone, r in cells:
            end = labels.scenario(e.scenario) if alone == cells[-1][0] else ""
            fill = "" if r.cell in on_first or not others else "open"
            one = replace(e, value=r.value, low=None, high=None, spread="", n=1, note=r.cell)
            sheet.point(panel, one, e.id, alone, end=end, fill=fill, **style)
    return choose.footers(study, sheet)


def _change(cells: list[tuple[float, Replicate]]) -> float:
    """How far a gain differs between the slowest and the fastest job alone."""
    return abs(math.log(cells[-1][1].value / cells[0][1].value))


def _with_one_alone(study: Study, workload: str, e: Estimate) -> list[tuple[float, Replicate]]:
    """Each cell of a gain in which one job alone had its turns too: that job's samples/s, and the
    gain; slowest first.
    """
    rate = study.t.get("rate", scenario=f"1x_{workload}", arm=e.arm, method="naive")
    alone = {r.cell: r.value for r in rate.replicates} if rate else {}
    return sorted((alone[r.cell], r) for r in e.replicates if r.cell in alone)
