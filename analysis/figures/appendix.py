"""Figures of the appendix: memory, how well numbers repeat, MIG layouts."""

from __future__ import annotations

import json

from analysis import labels
from analysis.figures import choose
from analysis.figures.against_n import COUNTS
from analysis.figures.choose import Study, by_method, hollow, look, under
from analysis.figures.sheet import Sheet


def memory(study: Study) -> Sheet:
    """GPU memory against the number of jobs, up to the card's."""
    sheet = Sheet(columns=1, height=3.0)
    found = study.fullest("memory", study.arm)
    if not found:
        return choose.nothing(sheet, "GPU memory against the number of jobs", choose.NO_GPU)
    most = max((e for each in found.values() for e in each), key=lambda e: e.value)
    sheet.basis(most)
    of = next(iter(study.t.of("capacity", scenario=most.scenario, arm=study.arm)), None)
    card = f" of the card's {labels.number(of.value)}" if of else ""
    sheet.text("title", f"{under(most)} take {labels.number(most.value)}{card} GB")
    sheet.text(
        "subtitle",
        f"{choose.strokes(e.method for each in found.values() for e in each)}. All jobs and driver",
    )
    panel = sheet.panel("memory", **COUNTS, ylabel="GPU memory (GB)", yscale="log")
    for capacity in study.t.of("capacity", arm=study.arm)[:1]:
        sheet.line(panel, capacity, f"the card: {labels.number(capacity.value, 'GB')}")
    for place, (workload, numbers) in enumerate(found.items()):
        ways = by_method(numbers)
        main = "mps" if "mps" in ways else next(iter(ways))
        for way, each in ways.items():
            for e in each:
                end = labels.job(workload) if way == main and e is each[-1] else ""
                sheet.point(
                    panel,
                    e,
                    f"{workload}, {way}",
                    e.jobs,
                    end=end,
                    colour=choose.HUES[place],
                    marker=choose.SIGNS[place],
                    line=choose.DASHES[way],
                    fill=hollow(e),
                )
    return choose.footers(study, sheet, arms={study.arm})


def repeatability(study: Study) -> Sheet:
    """Variation of throughput between blocks of one host: jobs alone, and their largest sets."""
    sheet = Sheet(columns=1, row_height=0.17)
    found = study.fullest("rate_cv", study.arm)
    neutral = "How well throughput repeats on one host"
    if not found:
        return choose.nothing(sheet, neutral, "no host has two replicates of a set of jobs alike")
    alone, together = (study.t.get("count", name=f"cv_{name}") for name in ("alone", "together"))
    if alone and together and together.value < alone.value:
        sheet.basis(alone, together)
        neutral = (
            f"Repeated runs on one host differ by {100 * alone.value:.1f} % for jobs alone and "
            f"{100 * together.value:.1f} % for sets (medians)"
        )
    sheet.text("title", neutral)
    sheet.text(
        "subtitle",
        "Coefficient of variation over blocks of a host: jobs alone, then the largest set of each",
    )
    panel = sheet.panel(
        "cv", xlabel="coefficient of variation", xscale="log", xformat="percent", rows="yes"
    )
    place = 0.0
    for numbers in found.values():
        of_one = [e for e in numbers if e.jobs == 1 and e.method == "naive"]
        largest = [each[-1] for each in by_method([e for e in numbers if e.jobs > 1]).values()]
        for e in [*of_one, *largest]:
            if e.value:
                place += 1
                way = f", {labels.method(e.method)}" if e.jobs > 1 else " alone"
                sheet.tick(panel, place, labels.scenario(e.scenario) + way)
                sheet.point(panel, e, labels.method(e.method), place, **look(e) | {"line": ""})
        place += 0.5
    return choose.footers(study, sheet, arms={study.arm})


def mig_layouts(study: Study) -> Sheet:
    """Where the instances of each planned layout lie among the card's memory slices."""
    sheet = Sheet(columns=1, row_height=0.24)
    path = study.folder / "mig_layouts.json" if study.folder else None
    plan = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}
    layouts: dict[str, dict] = {}
    for cell in plan.get("cells", ()):
        if cell.get("instances"):
            layouts.setdefault(cell["layout"], cell)
    if not layouts:
        return choose.nothing(
            sheet, "MIG layouts", "this study plans no cell with MIG on a known card"
        )
    card = plan["card"]
    sheet.text("title", f"MIG layouts that this study plans on {card['name']}")
    sheet.text(
        "subtitle", "Each bar: a GPU instance over the memory slices that it takes, with its SMs"
    )
    panel = sheet.panel(
        "layouts", xlabel="memory slices of the card", rows="yes", xlim=f"0,{card['memory_slices']}"
    )
    ordered = sorted(layouts.items(), key=lambda pair: (len(pair[1]["instances"]), pair[0]))
    for place, (name, cell) in enumerate(ordered, start=1):
        sheet.tick(panel, place, name)
        for number, part in enumerate(cell["instances"]):
            start, end = part["start"] + 0.08, part["start"] + part["size"] - 0.08
            look_of = {"colour": choose.HUES[number % 2], "line": "bar"}
            series = f"{name} {number}"
            sheet.segment(panel, series, place, start, **look_of)
            sheet.segment(panel, series, place, end, **look_of, label=f"{part['sm_count']} SMs")
    return choose.footers(study, sheet, arms={study.arm})
