"""Figures of the appendix: memory, how well numbers repeat, MIG layouts."""

from __future__ import annotations

from analysis import labels
from analysis.choose import place, value
from analysis.figures import choose
from analysis.figures.against_n import COUNTS
from analysis.figures.choose import Study, by_method, under
from analysis.figures.sheet import Sheet


def memory(study: Study) -> Sheet:
    """GPU memory against the number of jobs, up to the card's."""
    sheet = Sheet(columns=1, height=3.0)
    found = study.fullest("memory")
    if not found:
        return choose.nothing(sheet, "GPU memory against the number of jobs", choose.NO_MEMORY)
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
        return choose.nothing(sheet, title, "no host has two replicates of a set of jobs alike")
    alone, together = (study.t.get("count", name=f"cv_{name}") for name in ("alone", "together"))
    if alone and together:
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
