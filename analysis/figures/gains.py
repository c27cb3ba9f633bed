"""Figures of gains: against the slowdown, against the job alone, and what they are made of."""

from __future__ import annotations

from analysis import labels
from analysis.advice import advise
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, hollow, look, under
from analysis.figures.sheet import Sheet

HALF = 0.5  # GRACT alone below which a job leaves most of the GPU idle
GAIN = "throughput gain (STP)"


def _value(e: Estimate) -> float:
    return e.value


def against_slowdown(study: Study) -> Sheet:
    """STP against the slowdown of the slowest job, a path per workload over N."""
    sheet = Sheet(columns=1, height=4.0)
    found = study.fullest("stp", study.arm)
    slow = {e.id: e for each in study.alike("slowdown_worst", arm=study.arm).values() for e in each}
    neutral = "Throughput gain against what it costs the slowest job"
    if not found:
        return choose.nothing(sheet, neutral, "no set of jobs alike was measured")
    best = {w: max((e for e in each if e.jobs > 1), key=_value) for w, each in found.items()}
    most, least = max(best.values(), key=_value), min(best.values(), key=_value)
    text = f"{under(most)} do {labels.number(most.value)} times the work of one job at a time"
    if most.id != least.id:
        name = labels.job(least.scenario.partition("x_")[2])
        text += f"; {name} gains at most {labels.number(least.value)} times"
    sheet.basis(most, least)
    sheet.text("title", text)
    sets = [e for each in found.values() for e in each if e.jobs > 1]
    counts = ", ".join(str(n) for n in sorted({e.jobs for e in sets}))
    drawn = choose.strokes(e.method for e in sets)
    said = f"{drawn}; sets of {counts} jobs. Up is more work, right is slower jobs"
    sheet.text("subtitle", said)
    panel = sheet.panel(
        "gain",
        xlabel="slowdown of the slowest job",
        ylabel=GAIN,
        xscale="log",
        yscale="log",
        format="times",
        xformat="times",
        names="above",
    )
    sheet.mark(panel, 1)
    for place, (workload, numbers) in enumerate(found.items()):
        start = study.alone("stp", workload, study.arm)
        for way, each in by_method([e for e in numbers if e.jobs > 1]).items():
            path = ([start] if start else []) + each
            named = way == "mps" or "mps" not in by_method(numbers)
            for e in path:
                at = slow.get(e.id.replace("stp:", "slowdown_worst:", 1))
                if at is None:
                    continue
                sheet.point(
                    panel,
                    e,
                    f"{workload}, {way}",
                    at=at,
                    colour=choose.HUES[place],
                    marker=choose.SIGNS[place] if named else "",
                    line=choose.DASHES[way],
                    fill=hollow(e),
                    end=labels.scenario(e.scenario) if named and e is path[-1] else "",
                )
    return choose.footers(study, sheet, arms={study.arm})


def where_to_share(study: Study) -> Sheet:
    """Memory alone against GRACT alone: a point per job and arm, coloured by the advised method."""
    sheet = Sheet(columns=1, height=3.9)
    neutral = "Where to share: how busy a job keeps the GPU alone, and how much memory it takes"
    best = {(a.job, a.arm): a.shared.stp for a in advise(study.t) if a.shared}
    points = []
    for workload, each in study.alike("gract", method="naive").items():
        for e in (e for e in each if e.jobs == 1):
            if memory := study.alone("memory", workload, e.arm):
                points.append((workload, e, memory, best.get((workload, e.arm))))
    if not points:
        return choose.nothing(sheet, neutral, choose.NO_GPU)
    idle = [b for _, e, _, b in points if b and e.value < HALF]
    busy = [b for _, e, _, b in points if b and e.value >= HALF]
    if len(idle) > 1 and min(map(_value, idle)) >= 1.5:
        low, high = min(idle, key=_value), max(idle, key=_value)
        neutral = (
            "Jobs that keep the GPU busy less than half of the time do "
            f"{choose.times(low, high)} the work by sharing"
        )
        sheet.basis(low, high)
        if busy:
            low, high = min(busy, key=_value), max(busy, key=_value)
            neutral += f"; busier ones {choose.times(low, high)}"
            sheet.basis(low, high)
    sheet.text("title", neutral)
    sheet.text(
        "subtitle",
        "Each job: its best set (least slowdown within a tenth of the most gain), and its gain; "
        "grey: no set of its own was measured",
    )
    panel = sheet.panel(
        "jobs",
        xlabel="GRACT of one job alone",
        ylabel="GPU memory of one job alone (GB)",
        yscale="log",
        xformat="percent",
        xlim="0,1.04",
        names="column",
    )
    for workload, e, memory, b in points:
        text = labels.job(workload) + ("" if e.arm == study.arm else f", {labels.arm(e.arm)}")
        style = {"colour": labels.GREY, "marker": "o", "fill": "open"}
        if b:
            text += f": {b.jobs} {labels.method(b.method)}, {labels.number(b.value)}×"
            style = look(b) | {"line": "", "fill": hollow(e)}
            sheet.basis(b)
        sheet.point(panel, memory, f"{workload} {e.arm}", at=e, end=text, **style)
    return choose.footers(study, sheet)


def gaps_and_overlap(study: Study) -> Sheet:
    """S and STP of the largest set of each job: what overlap wins, and what filling gaps adds."""
    sheet = Sheet(columns=1, row_height=0.17)
    neutral = "Throughput gain (STP), and what of it overlap on the GPU wins (S)"
    shown = []
    found = study.fullest("s", study.arm)
    for workload in sorted(found, key=lambda w: -max(e.value for e in found[w])):
        numbers = found[workload]
        for way, each in by_method([e for e in numbers if e.jobs > 1]).items():
            s = each[-1]
            gain = study.t.get("stp", scenario=s.scenario, arm=s.arm, method=way)
            if gain:
                shown.append((workload, s, gain))
    if not shown:
        return choose.nothing(sheet, neutral, f"{choose.NO_GPU}, so there is no S")
    _gaps_title(study, sheet, shown, neutral)
    sheet.text(
        "subtitle",
        "Filled: S, what overlap on the GPU wins. Open: STP, with the host's gaps filled besides",
    )
    panel = sheet.panel(
        "sets", xlabel="work over one job at a time", xscale="log", xformat="times", rows="yes"
    )
    sheet.mark(panel, 1)
    place, before = 0.0, ""
    for workload, s, gain in shown:
        place += 1.5 if before and workload != before else 1.0
        before = workload
        one = " (one replicate)" if s.n == 1 else ""
        sheet.tick(panel, place, f"{labels.job(workload)}, {s.jobs} {labels.method(s.method)}{one}")
        style = look(s) | {"line": "-"}
        sheet.point(panel, s, s.id, place, **style | {"fill": ""})
        sheet.point(panel, gain, s.id, place, **style | {"fill": "open"})
    return choose.footers(study, sheet, arms={study.arm})


def _gaps_title(study: Study, sheet: Sheet, shown: list, neutral: str) -> None:
    """What overlap and what gaps win at most; that plain processes win none by overlap, if so."""
    most = max((s for _, s, _ in shown), key=_value)
    gaps = [
        study.t.get("gaps", scenario=s.scenario, arm=s.arm, method=s.method) for _, s, _ in shown
    ]
    gap = max((e for e in gaps if e), key=_value, default=None)
    if gap is None or most.value <= 1 or gap.value <= most.value:
        sheet.text("title", neutral)
        return
    text = (
        f"Filling the host's gaps gains up to {labels.number(gap.value)} times, "
        f"overlapping kernels up to {labels.number(most.value)} times"
    )
    sheet.basis(gap, most)
    plain = [s for _, s, _ in shown if s.method == "naive"]
    if plain and all((s.high if s.high is not None else s.value) < 1 for s in plain):
        text += ", and only under MPS" if most.method == "mps" else ""
        sheet.basis(*plain)
    sheet.text("title", text)
