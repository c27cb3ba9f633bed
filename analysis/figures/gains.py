"""Figures of gains: against the slowdown, against the job alone, and what they are made of."""

from __future__ import annotations

from analysis import labels
from analysis.advice import advise
from analysis.choose import place, value
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, look, under
from analysis.figures.sheet import Sheet

FULL = 0.9  # GRACT of a set that fills the GPU: STP / S is then what filling gaps wins
HALF = 0.5  # SMACT alone below which a job leaves most of the SMs without work
NAMED = 16  # points that can be named


def against_slowdown(study: Study) -> Sheet:
    """STP against the slowdown of the slowest job, a path per workload over N."""
    sheet = Sheet(columns=1, height=4.0)
    found = {w: [e for e in of if e.jobs > 1] for w, of in study.fullest("stp").items()}
    if not found:
        title = "Throughput gain against what it costs the slowest job"
        return choose.nothing(sheet, title, study.lacking())
    # Of any method: those that are not drawn count, too.
    alike = study.alike("stp", arm=study.arm)
    best = [max((e for e in alike[w] if e.jobs > 1), key=value) for w in found]
    most, least = max(best, key=value), min(best, key=value)
    text = f"{under(most)} do {labels.number(most.value)} times the work of one job at a time"
    if most.id != least.id:
        name = labels.job(least.scenario.partition("x_")[2])
        text += f"; {name} gains at most {labels.number(least.value)} times"
    sheet.basis(most, least)
    sheet.text("title", text)
    sets = [e for each in found.values() for e in each]
    counts = ", ".join(str(n) for n in sorted({e.jobs for e in sets}))
    drawn = choose.strokes(e.method for e in sets)
    said = f"{drawn}. From one job alone to sets of {counts}; up is more work, right is slower jobs"
    sheet.text("subtitle", said)
    own = {"xlabel": "slowdown of the slowest job", "ylabel": "throughput gain (STP)"}
    panel = sheet.panel("gain", **own, xscale="log", yscale="log", names="above")
    sheet.line(panel)
    # One job alone gains nothing and is slowed by nobody, by definition: paths start there.
    start = {"x": 1, "value": 1, "colour": labels.INK}
    sheet.point(panel, None, "alone", **start, marker="o")
    for number, (workload, numbers) in enumerate(found.items()):
        style = {"colour": choose.HUES[number]}
        for way, each in by_method(numbers).items():
            named = way == choose.main_way(numbers)
            style |= {"marker": choose.SIGNS[number] if named else "", "line": choose.DASHES[way]}
            series = f"{workload}, {way}"
            sheet.point(panel, None, series, **start | style | {"marker": ""})
            for e in each:
                end = labels.scenario(e.scenario) if named and e is each[-1] else ""
                if slow := study.t.get("slowdown_worst", **place(e)):
                    sheet.point(panel, e, series, at=slow, end=end, **look(e) | style)
    return choose.footers(study, sheet)


def where_to_share(study: Study) -> Sheet:
    """Memory alone against SMACT alone: a point per job and arm, in its best set's colour.

    Of many, only those that were measured in a set.
    """
    sheet = Sheet(columns=1, height=3.9)
    title = "Where to share: how many SMs a job alone keeps at work, and how much memory it takes"
    best = {(a.job, a.arm): study.t[a.shared.stp.id] for a in advise(study.t) if a.shared}
    alone = [
        (workload, e, study.t.get("memory", **place(e)), best.get((workload, e.arm)))
        for workload, each in study.alike("smact", method="naive").items()
        for e in each
        if e.jobs == 1
    ]
    points = [point for point in alone if point[2]]
    if not points:
        return choose.nothing(sheet, title, choose.NO_MEMORY)
    if len(points) > NAMED and best:
        points = [point for point in points if point[-1]]
    idle = [b for _, e, _, b in points if b and e.value < HALF]
    busy = [b for _, e, _, b in points if b and e.value >= HALF]
    if min(len(idle), len(busy)) > 1:
        title = "Where one job keeps less than half of the SMs at work, its best set "
        title += f"({_sizes(idle)}) does {choose.times(idle)} its work; "
        title += f"where it keeps more ({_sizes(busy)}), {choose.times(busy)}"
        sheet.basis(*idle, *busy)
    sheet.text("title", title)
    said = "Best set: least slowdown within a tenth of the most work; sizes differ"
    grey = "" if all(point[-1] for point in points) else ". Grey: no set of its own was measured"
    sheet.text("subtitle", said + grey)
    own = {
        "xlabel": "SMACT of one job alone: share of the SMs with work",
        "xformat": "percent",
        "xlim": "0,1.04",
    }
    own |= {"ylabel": "GPU memory of one job alone (GB)", "yscale": "log", "names": "right"}
    panel = sheet.panel("jobs", **own)
    for workload, e, memory, b in points:
        text = labels.job(workload) + ("" if e.arm == study.arm else f", {labels.arm(e.arm)}")
        style = {"colour": labels.GREY, "marker": "o", "fill": "open"}
        if b:
            text += f": {b.jobs} {labels.method(b.method)}, {labels.number(b.value)}×"
            style = look(b) | {"line": "", "fill": look(e)["fill"]}
            sheet.basis(b)
        sheet.point(panel, memory, f"{workload} {e.arm}", at=e, end=text, **style)
    choose.footers(study, sheet, study.t.arms())
    if hidden := [
        f"{labels.job(w)}, {labels.arm(e.arm)}" for w, e, memory, _ in alone if not memory
    ]:
        sheet.text("footer", f"Not drawn, for their memory is not known: {'; '.join(hidden)}.")
    return sheet


def _sizes(sets: list[Estimate]) -> str:
    """`2 to 12 jobs`."""
    counts = dict.fromkeys(str(pick(e.jobs for e in sets)) for pick in (min, max))
    return f"{' to '.join(counts)} jobs"


def gaps_and_overlap(study: Study) -> Sheet:
    """S and STP of the largest set of each job: what overlap wins, and what filling gaps adds."""
    sheet = Sheet(columns=1, row_height=0.17)
    title = "Throughput gain (STP), and what of it overlap on the GPU wins (S)"
    found = study.fullest("s", share=0)
    shown = {
        workload: [
            (each[-1], gain)
            for each in by_method([e for e in found[workload] if e.jobs > 1]).values()
            if (gain := study.t.get("stp", **place(each[-1])))
        ]
        for workload in sorted(found, key=lambda w: -max(map(value, found[w])))
    }
    sets = [s for each in shown.values() for s, _ in each]
    if not sets:
        why = study.lacking(f"{choose.NO_GPU}, so there is no S")
        return choose.nothing(sheet, title, why)
    most = max(sets, key=value)
    busy = ((s, study.t.get("gract", **place(s))) for s in sets)
    full = [s for s, gract in busy if gract and gract.value >= FULL]
    gaps = filter(None, (study.t.get("gaps", **place(s)) for s in full))
    gap = max(gaps, key=value, default=None)
    if gap and gap.value > most.value > 1:
        title = f"In {labels.arm(study.arm)}, filling the host's gaps gains up to "
        title += f"{labels.number(gap.value)} times, "
        title += f"overlapping kernels up to {labels.number(most.value)} times"
        sheet.basis(gap, most)
        others = [s for s in sets if s.method != "mps"]
        if most.method == "mps" and others and all((s.high or s.value) < 1 for s in others):
            title += ", and only under MPS"
            sheet.basis(*others)
    sheet.text("title", title)
    said = "Filled: S, what overlap on the GPU wins. Open: STP, with the host's gaps filled besides"
    sheet.text("subtitle", said)
    panel = sheet.panel("sets", **choose.ROWS, xlabel="work over one job at a time")
    sheet.line(panel)
    row = 0.0
    for workload, each in shown.items():
        for s, gain in each:
            row += 1
            one = " (one replicate)" if s.n == 1 else ""
            name = f"{labels.job(workload)}, {s.jobs} {labels.method(s.method)}{one}"
            sheet.tick(panel, row, name)
            style = look(s) | {"line": "-"}
            sheet.point(panel, s, s.id, row, **style | {"fill": ""})
            sheet.point(panel, gain, s.id, row, **style | {"fill": "open"})
        row += 0.5
    return choose.footers(study, sheet)
