"""Figures against the number of jobs: throughput by way of writing, epoch time, activity."""

from __future__ import annotations

from collections.abc import Iterator

from analysis import labels
from analysis.choose import value
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, under
from analysis.figures.sheet import Sheet
from workflow.collocation.spec.names import arm_order

COUNTS = {"xlabel": "jobs on the GPU", "xscale": "log", "xticks": "points", "names": "right"}
METRICS = {"gract": ("GRACT", "#222222", "o"), "smact": ("SMACT", "#2A9D8F", "s")}
METRICS |= {"drama": ("DRAMA", "#A1372D", "^")}
# The paper's sizes of jobs, by data set.
SIZES = {"cifar10": "small", "imagenet64": "medium", "imagenet": "large"}


def rate(study: Study) -> Sheet:
    """Samples/s of all jobs together, a line for each way of writing and method."""
    sheet = Sheet(columns=2, height=2.2)
    found = study.alike("rate")
    arms = {w: {e.arm for e in numbers} for w, numbers in found.items()}
    several = [w for w in found if len(arms[w]) > 1 and any(e.jobs > 1 for e in found[w])]
    sets = {w: sum(e.jobs > 1 for e in found[w]) for w in several}
    gains = {w: max(map(value, numbers)) for w, numbers in study.alike("over_fastest").items()}
    chosen = sorted(several, key=lambda w: (-len(arms[w]), -sets[w], -gains.get(w, 0)))
    chosen = chosen or list(study.fullest("rate", 4))
    if not chosen:
        return choose.nothing(sheet, "Throughput against the number of jobs", study.lacking())
    _rate_title(study, sheet, chosen[0])
    drawn = choose.strokes(e.method for w in chosen for e in found[w])
    which = "Jobs written in several ways. " * bool(several)
    sheet.text("subtitle", f"{which}{drawn}; grey line: the fastest way alone")
    for number, workload in enumerate(chosen):
        own = {"title": labels.job(workload), "format": "k", "zero": "yes"}
        own["wide"] = "yes" if number == 0 and len(chosen) % 2 else ""
        panel = sheet.panel(workload, **COUNTS, **own, ylabel="samples/s, all jobs")
        for e in study.t.of("fastest_rate", scenario=f"1x_{workload}"):
            sheet.line(panel, e, f"fastest alone: {labels.number(e.value)}")
        lines = [
            (arm, way, numbers)
            for arm in sorted(arms[workload], key=lambda arm: (arm != study.arm, arm_order(arm)))
            for way, numbers in _lines([e for e in found[workload] if e.arm == arm])
        ]
        for arm, way, numbers in lines[: choose.MOST]:
            one = numbers[-1].jobs == 1
            name = f"{labels.arm(arm)}, {'alone' if one else labels.method(way)}"
            style = {"colour": labels.ARM_COLOURS.get(arm, labels.GREY), "line": choose.DASHES[way]}
            choose.path(sheet, panel, numbers, name, name, **style)
    return choose.footers(study, sheet, {arm for w in chosen for arm in arms[w]})


def _lines(numbers: list[Estimate]) -> Iterator[tuple[str, list[Estimate]]]:
    """Of an arm: each method with sets, from one job alone (a plain one, if not under it) on; or
    without sets the job alone.
    """
    ways = by_method(numbers)
    alone = [e for e in ways.get("naive", ()) if e.jobs == 1]
    sets = {way: own for way, own in ways.items() if own[-1].jobs > 1}
    for way, own in sets.items():
        yield way, own if own[0].jobs == 1 else alone + own
    if alone and not sets:
        yield "naive", alone


def _rate_title(study: Study, sheet: Sheet, workload: str) -> None:
    """The most that the paper's jobs do together, over one job in its fastest way."""
    sets = [e for e in study.alike("over_fastest").get(workload, ()) if e.jobs > 1]
    sets = [e for e in sets if e.method in choose.WAYS]
    fastest = study.t.of("fastest_rate", scenario=f"1x_{workload}")
    if not sets or not fastest:
        sheet.text("title", "Throughput against the number of jobs, by how they are written")
        return
    best, alone = max(sets, key=value), fastest[0].arm
    first = max((e for e in sets if e.arm == study.arm), key=value, default=best)
    text = f"{under(first)} in {labels.arm(first.arm)} do {labels.number(first.value)} times the "
    same = alone == first.arm
    text += "work of one such job" if same else f"work of one job alone in {labels.arm(alone)}"
    if best.id != first.id:
        text += f"; {best.jobs} in {labels.arm(best.arm)} do {labels.number(best.value)} times"
    sheet.basis(best, first)
    sheet.text("title", text)


def epoch_time(study: Study) -> Sheet:
    """Epoch time of a job by method and count, reported values as open signs."""
    sheet = Sheet(columns=3, height=1.85)
    found = study.fullest("epoch_time")
    title = "Epoch time of each job, by method and number of jobs"
    if not found:
        return choose.nothing(sheet, title, study.lacking())
    over = study.alike("rate_over_naive", arm=study.arm, method="mps")
    most = [max(over[w], key=lambda e: e.jobs) for w in found if over.get(w)]
    faster = [e for e in most if e.jobs > 1 and (e.low or e.value) > 1]
    if len(faster) == len(found):
        sheet.basis(*most)
        title = "With the most jobs at once, every job's epoch is shorter under MPS than as plain "
        title += f"processes: {choose.times(most)} as fast"
    sheet.text("title", title)
    reported = {workload: _reported(study, workload) for workload in found}
    said = "Mean over the jobs of a set"
    if any(numbers for _, numbers in reported.values()):
        said += "; pale open signs: reported by the paper's authors, A100 (SUIT25; LEC22: batch "
        said += "not stated)"
    sheet.text("subtitle", said)
    order = list(SIZES.values())
    for workload in sorted(found, key=lambda w: order.index(_size(w)) if _size(w) else 0):
        title = f"{_size(workload)}\n{labels.job(workload)}".strip()
        own = {"title": title, "format": "time", "zero": "yes", "ylabel": "epoch time"}
        panel = sheet.panel(workload, **COUNTS, **own)
        for way, numbers in by_method(found[workload]).items():
            name = labels.method(way)
            choose.path(sheet, panel, numbers, name, name)
        source, numbers = reported[workload]
        for way, each in by_method(numbers).items():
            name = f"{labels.method(way)}, {source}"
            choose.path(sheet, panel, each, name, name, line=":", fill="reported")
    return choose.footers(study, sheet)


def _size(workload: str) -> str:
    return next((size for data, size in SIZES.items() if data in workload.split("_")), "")


def _reported(study: Study, workload: str) -> tuple[str, list[Estimate]]:
    """Of the newest source that has the workload."""
    for source in ("SUIT25", "LEC22"):
        if numbers := study.alike("epoch_time", source=source).get(workload):
            return source, numbers
    return "", []


def activity(study: Study) -> Sheet:
    """GRACT, SMACT and DRAMA against the number of jobs, a panel per workload; power."""
    sheet = Sheet(columns=3, height=1.75)
    found = study.fullest("gract", 5)
    title = "GPU activity and power against the number of jobs"
    if not found:
        return choose.nothing(sheet, title, study.lacking(choose.NO_GPU))
    plain = {q: study.alike(q, arm=study.arm, method="naive") for q in ("gract", "smact")}
    busy, work = ([e for w in found for e in of.get(w, ()) if e.jobs > 1] for of in plain.values())
    if busy and work and (least := min(busy, key=value)).value >= 0.9:
        low, high = min(work, key=value), max(work, key=value)
        sheet.basis(least, low, high)
        title = f"From two plain jobs on, the GPU reads at least {100 * least.value:.0f} % busy "
        title += f"(GRACT), while {100 * low.value:.0f} % to {100 * high.value:.0f} % of its SMs "
        title += "have work (SMACT)"
    sheet.text("title", title)
    drawn = choose.strokes(e.method for each in found.values() for e in each)
    meant = "GRACT: an engine active, SMACT: SMs with a warp, DRAMA: memory moving data"
    sheet.text("subtitle", f"{drawn}; {meant}")
    for workload in found:
        own = {"title": labels.job(workload), "format": "percent", "ylim": "0,1.04"}
        panel = sheet.panel(workload, **COUNTS, **own, ylabel="share of the window")
        for quantity, (name, colour, marker) in METRICS.items():
            numbers = study.alike(quantity, arm=study.arm).get(workload, [])
            for way, each in by_method(numbers).items():
                end = name if way == choose.main_way(numbers) else ""
                series, style = f"{name}, {way}", {"colour": colour, "marker": marker}
                choose.path(sheet, panel, each, series, end, **style)
    power = {w: of for w, of in study.alike("power", arm=study.arm).items() if w in found}
    if power:
        own = {"title": "power, under MPS", "zero": "yes", "ylabel": "W"}
        panel = sheet.panel("power", **COUNTS, **own)
    for number, (workload, numbers) in enumerate(power.items()):
        style = {"colour": choose.HUES[number], "marker": choose.SIGNS[number], "line": "-"}
        each = by_method(numbers)[choose.main_way(numbers)]
        choose.path(sheet, panel, each, workload, labels.job(workload), **style)
    return choose.footers(study, sheet)
