"""The figure of mixes: what each job pays, what the set gains, what a departure gives back."""

from __future__ import annotations

from analysis import labels
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, look
from analysis.figures.sheet import Sheet
from analysis.names import parse_scenario

METHODS = (*choose.WAYS, "mps_equal")


def sheet(study: Study) -> Sheet:
    """A row per job of a mix: its slowdown; beside it the mix's STP; below, after one left."""
    made = Sheet(columns=2, row_height=0.17)
    t = study.t
    gains = [
        e
        for e in t.of("stp", arm=study.arm, window="")
        if parse_scenario(e.scenario).mixed
        and not parse_scenario(e.scenario).variant
        and e.method in choose.WAYS
    ]
    left = t.of("reclaimed", arm=study.arm)
    neutral = "Mixes: slowdown of each job and throughput gain of the set"
    if not gains and not left:
        return choose.nothing(made, neutral, "no mix of different jobs was measured")
    _title(study, made, gains, left, neutral)
    signs = "Circles: plain processes; squares: MPS" + (
        "; triangles: MIG" if any(e.method == "mig" for e in gains) else ""
    )
    made.text("subtitle", f"{signs}. Over each job alone")
    if gains:
        _mixes(study, made, gains)
    if left:
        _departures(made, left)
    return choose.footers(study, made, mixed=True, arms={study.arm})


def _mixes(study: Study, made: Sheet, gains: list[Estimate]) -> None:
    slow = made.panel(
        "slowdown", title="slowdown of each job", xscale="log", xformat="times", rows="yes"
    )
    gain = made.panel(
        "gain", title="gain of the mix (STP)", xscale="log", xformat="times", rows="share"
    )
    made.mark(slow, 1)
    made.mark(gain, 1)
    place = 0.0
    for scenario in dict.fromkeys(e.scenario for e in gains):
        parts, first = parse_scenario(scenario).parts, place + 1
        for number, (job, count) in enumerate(parts):
            place += 1
            made.tick(slow, place, f"{'+ ' if number else ''}{count} × {labels.job(job)}")
            for e in study.t.of("slowdown", scenario=scenario, arm=study.arm, window="", job=job):
                if e.method in choose.WAYS:
                    made.point(slow, e, labels.method(e.method), place, **look(e) | {"line": ""})
        for e in (e for e in gains if e.scenario == scenario):
            made.point(
                gain, e, labels.method(e.method), (first + place) / 2, **look(e) | {"line": ""}
            )
        place += 0.6


def _departures(made: Sheet, left: list[Estimate]) -> None:
    mixes = {e.scenario: labels.scenario(e.scenario.split("--")[0]) for e in left}
    one = len(mixes) == 1
    title = f"one leaves: {', '.join(mixes.values())}" if one else "one leaves"
    panel = made.panel(
        "departure",
        title=title,
        xlabel="speed of those that stay, over their speed before",
        xscale="log",
        xformat="times",
        rows="yes",
        wide="yes",
    )
    made.mark(panel, 1)
    for place, e in enumerate((e for e in left if e.method in METHODS), start=1):
        mix = "" if one else f"{mixes[e.scenario]}, "
        made.tick(panel, place, f"{mix}{labels.method(e.method)}")
        made.point(panel, e, labels.method(e.method), place, **look(e) | {"line": ""})


def _title(
    study: Study, made: Sheet, gains: list[Estimate], left: list[Estimate], neutral: str
) -> None:
    """Where MPS is at or above plain processes for each mix, that; the least and the most gain."""
    best = [e for e in gains if e.method == "mps"] or gains
    if not best:
        made.text("title", neutral)
        return
    low, high = min(best, key=lambda e: e.value), max(best, key=lambda e: e.value)
    made.basis(low, high)
    under = "Under MPS, mixes" if low.method == "mps" else "Mixes"
    text = f"{under} gain {choose.times(low, high)}"
    slow = [
        e
        for e in study.t.of("slowdown", arm=study.arm, window="", method=low.method)
        if e.scenario in {e.scenario for e in best}
    ]
    if slow:
        worst = max(slow, key=lambda e: e.value)
        made.basis(worst)
        text += f"; the slowest job takes {labels.number(worst.value)} times as long"
    flat = [e for e in left if e.low is not None and e.low <= 1 <= e.high]
    if left and len(flat) == len(left):
        text += "; a departure gives the others no clear gain"
        made.basis(*flat)
    made.text("title", text)
