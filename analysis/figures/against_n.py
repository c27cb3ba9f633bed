"""Figures against the number of jobs: throughput by way of writing, epoch time, activity."""

from __future__ import annotations

from analysis import labels
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, hollow, look, under
from analysis.figures.sheet import Sheet

COUNTS = {"xlabel": "jobs on the GPU", "xscale": "log", "xticks": "points", "names": "right"}
METRICS = {"gract": ("GRACT", "#222222", "o"), "smact": ("SMACT", "#2A9D8F", "s")}
METRICS |= {"drama": ("DRAMA", "#A1372D", "^")}
SIZES = {"cifar10": "small", "imagenet64": "medium", "imagenet": "large"}


def rate(study: Study) -> Sheet:
    """Samples/s of all jobs together, a line for each way of writing and method."""
    sheet = Sheet(columns=2, height=2.2)
    found = study.alike("rate")
    arms = {w: {e.arm for e in numbers} for w, numbers in found.items()}
    several = [w for w in found if len(arms[w]) > 1 and any(e.jobs > 1 for e in found[w])]
    chosen = sorted(several, key=lambda w: -len(arms[w]))[:3]
    if not chosen:
        chosen = list(study.fullest("rate", study.arm, 4))
    if not chosen:
        why = "no set of jobs alike was measured"
        return choose.nothing(sheet, "Throughput against the number of jobs", why)
    _rate_title(study, sheet, chosen[0])
    drawn = choose.strokes(e.method for w in chosen for e in found[w])
    sheet.text("subtitle", f"{drawn}; grey line: fastest measured way alone")
    for place, workload in enumerate(chosen):
        wide = "yes" if place == 0 and len(chosen) % 2 else ""
        panel = sheet.panel(
            workload,
            **COUNTS | {"title": labels.job(workload), "wide": wide, "format": "k", "zero": "yes"},
            ylabel="samples/s, all jobs",
        )
        fastest = study.t.of("fastest_rate", scenario=f"1x_{workload}")
        for e in fastest:
            sheet.line(panel, e, f"fastest alone: {labels.number(e.value)}")
        # A line per arm and method; the six with the most points.
        lines: dict[tuple[str, str], list[Estimate]] = {}
        for arm in sorted(arms[workload], key=lambda arm: (arm != study.arm, arm)):
            of_arm = [e for e in found[workload] if e.arm == arm]
            for way, numbers in by_method(of_arm).items():
                if max(e.jobs for e in numbers) > 1:
                    lines[arm, way] = numbers
        for (arm, way), numbers in list(lines.items())[: choose.MOST]:
            name = f"{labels.arm(arm)}, {labels.method(way)}"
            for e in numbers:
                style = look(e) | {"colour": labels.ARM_COLOURS.get(arm, labels.GREY)}
                sheet.point(panel, e, name, e.jobs, end=_end(e, numbers, name), **style)
    return choose.footers(study, sheet, arms={a for w in chosen for a in arms[w]})


def _rate_title(study: Study, sheet: Sheet, workload: str) -> None:
    """The most that the paper's jobs do together, over one job in its fastest way."""
    sets = [e for e in study.alike("over_fastest").get(workload, ()) if e.jobs > 1]
    fastest = study.t.of("fastest_rate", scenario=f"1x_{workload}")
    paper = max(
        (e for e in sets if e.arm == study.arm and e.method in choose.WAYS),
        key=_value,
        default=None,
    )
    if not paper or not fastest:
        sheet.text("title", "Throughput against the number of jobs, by how they are written")
        return
    best = max((e for e in sets if e.method in choose.WAYS), key=_value)
    other = fastest[0].arm != study.arm
    own = f" ({labels.arm(paper.arm)})" if other else ""
    alone = f"one such job ({labels.arm(fastest[0].arm)})" if other else "one such job"
    text = f"{under(paper)}{own} do {labels.number(paper.value)} times the work of {alone}"
    if best.id != paper.id:
        text += f"; {best.jobs} jobs ({labels.arm(best.arm)}) do {labels.number(best.value)} times"
        sheet.basis(best)
    sheet.basis(paper)
    sheet.text("title", text)


def epoch_time(study: Study) -> Sheet:
    """Epoch time of a job by method and count, reported values as open signs."""
    sheet = Sheet(columns=3, height=1.85)
    found = study.fullest("epoch_time", study.arm)
    neutral = "Epoch time of each job, by method and number of jobs"
    if not found:
        return choose.nothing(sheet, neutral, "no set of jobs alike was measured")
    _epoch_title(study, sheet, found, neutral)
    reported = False
    order = list(SIZES.values())
    for workload in sorted(found, key=lambda w: order.index(_size(w)) if _size(w) else 0):
        numbers, size = found[workload], _size(workload)
        title = f"{size}\n{labels.job(workload)}" if size else labels.job(workload)
        panel = sheet.panel(
            workload,
            **COUNTS | {"title": title, "format": "time", "zero": "yes"},
            ylabel="epoch time",
        )
        for way, each in by_method(numbers).items():
            name = labels.method(way)
            for e in each:
                sheet.point(panel, e, name, e.jobs, end=_end(e, each, name), **look(e))
        source, values = _reported(study, workload)
        for way, each in by_method(values).items():
            reported = True
            for e in each:
                end = _end(e, each, f"{labels.method(way)}, {source}")
                style = look(e) | {"line": ":", "fill": "reported"}
                sheet.point(panel, e, f"{way} {source}", e.jobs, end=end, **style)
    sheet.text(
        "subtitle",
        "Mean over the jobs of a set"
        + (
            "; pale open signs: reported by the paper's authors, A100 "
            "(SUIT25; LEC22: batch not stated)"
            if reported
            else ""
        ),
    )
    return choose.footers(study, sheet, arms={study.arm})


def _size(workload: str) -> str:
    return next((size for data, size in SIZES.items() if data in workload.split("_")), "")


def _reported(study: Study, workload: str) -> tuple[str, list[Estimate]]:
    """Of the newest source that has the workload."""
    for source in ("SUIT25", "LEC22"):
        if numbers := study.alike("epoch_time", source=source).get(workload):
            return source, numbers
    return "", []


def _epoch_title(
    study: Study, sheet: Sheet, found: dict[str, list[Estimate]], neutral: str
) -> None:
    """Says so where MPS is faster than plain processes at the most jobs, on each host."""
    over = study.alike("rate_over_naive", arm=study.arm, method="mps")
    most = [max(over[w], key=lambda e: e.jobs) for w in found if over.get(w)]
    most = [e for e in most if e.jobs > 1]
    if not most or len(most) < len(found):
        sheet.text("title", neutral)
        return
    sheet.basis(*most)
    if all((e.low if e.low is not None else e.value) > 1 for e in most):
        least, best = min(most, key=_value), max(most, key=_value)
        said = f"{choose.times(least, best)} as fast"
        counts = {e.jobs for e in most}
        of = f"{counts.pop()} jobs" if len(counts) == 1 else "the most jobs"
        neutral = (
            f"With {of} at once, every job's epoch is shorter under MPS than as plain processes: "
            f"{said}"
        )
    sheet.text("title", neutral)


def activity(study: Study) -> Sheet:
    """GRACT, SMACT and DRAMA against the number of jobs, a panel per workload; power."""
    sheet = Sheet(columns=3, height=1.75)
    found = study.fullest("gract", study.arm, 5)
    neutral = "GPU activity and power against the number of jobs"
    if not found:
        return choose.nothing(sheet, neutral, choose.NO_GPU)
    busy, work = (
        [
            e
            for w, each in study.alike(q, arm=study.arm, method="naive").items()
            for e in each
            if e.jobs > 1 and w in found
        ]
        for q in ("gract", "smact")
    )
    if busy and work and (least := min(busy, key=_value)).value >= 0.9:
        low, high = min(work, key=_value), max(work, key=_value)
        sheet.basis(least, low, high)
        neutral = (
            f"From two plain jobs on, the GPU reads at least {least.value:.0%} busy (GRACT), while "
            f"{low.value:.0%} to {high.value:.0%} of its SMs have work (SMACT)"
        )
    sheet.text("title", neutral.replace("%", " %"))
    sheet.text(
        "subtitle",
        f"{choose.strokes(e.method for each in found.values() for e in each)}; "
        "GRACT: an engine active, SMACT: SMs with a warp, DRAMA: memory moving data",
    )
    for workload in found:
        panel = sheet.panel(
            workload,
            **COUNTS | {"title": labels.job(workload), "format": "percent", "ylim": "0,1.04"},
            ylabel="share of the window",
        )
        for quantity, (name, colour, marker) in METRICS.items():
            numbers = study.alike(quantity, arm=study.arm).get(workload, [])
            for way, each in by_method(numbers).items():
                named = name if way == _main(numbers) else ""
                for e in each:
                    style = look(e) | {"colour": colour, "marker": marker}
                    sheet.point(
                        panel, e, f"{name}, {way}", e.jobs, end=_end(e, each, named), **style
                    )
    power = study.alike("power", arm=study.arm)
    if any(w in power for w in found):
        panel = sheet.panel(
            "power", **COUNTS | {"title": "power, under MPS", "zero": "yes"}, ylabel="W"
        )
        for place, workload in enumerate(w for w in found if w in power):
            each = by_method(power[workload])[_main(power[workload])]
            for e in each:
                style = {
                    "colour": choose.HUES[place],
                    "marker": choose.SIGNS[place],
                    "fill": hollow(e),
                }
                end = _end(e, each, labels.job(workload))
                sheet.point(panel, e, workload, e.jobs, end=end, line="-", **style)
    return choose.footers(study, sheet, arms={study.arm})


def _main(numbers: list[Estimate]) -> str:
    """MPS where it was measured."""
    ways = by_method(numbers)
    return "mps" if "mps" in ways else next(iter(ways))


def _end(e: Estimate, numbers: list[Estimate], name: str) -> str:
    """The name of a line, at its last point."""
    return name if e is numbers[-1] else ""


def _value(e: Estimate) -> float:
    return e.value
