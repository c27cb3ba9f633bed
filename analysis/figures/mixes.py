"""The figure of mixes: what each job pays, what the set gains, what a departure gives back."""

from __future__ import annotations

from analysis import labels
from analysis.estimates.schema import RANGE, Estimate
from analysis.figures import choose
from analysis.figures.choose import Study
from analysis.figures.sheet import Sheet
from workflow.collocation.spec.names import parse_scenario

METHODS = (*choose.WAYS, "mps_equal")


def sheet(study: Study) -> Sheet:
    """A row per job of a mix: its slowdown; beside it the mix's STP; below, after one left."""
    made = Sheet(columns=2, row_height=0.17)
    found = {
        quantity: [
            e
            for e in study.t.of(quantity, arm=study.arm, window="")
            if parse_scenario(e.scenario).mixed
            and not parse_scenario(e.scenario).variant
            and e.method in choose.WAYS
        ]
        for quantity in ("stp", "slowdown")
    }
    gains = found["stp"]
    left = [e for e in study.t.of("reclaimed", arm=study.arm) if e.method in METHODS]
    title = "Mixes: slowdown of each job and throughput gain of the set"
    if not gains and not left:
        arm = labels.arm(study.arm)
        return choose.nothing(made, title, f"no mix of different jobs was measured in {arm}")
    if best := [e for e in gains if e.method == "mps"]:
        made.basis(*best)
        title = f"Under MPS, mixes gain {choose.times(best)}"
        if any(e.value > e.jobs for e in best):  # jobs alone ran slow, so the most says nothing
            least = min(best, key=lambda e: e.value)
            title = f"Under MPS, mixes gain {labels.number(least.value)} times or more"
        flat = [e for e in left if e.spread == RANGE and e.low <= 1 <= e.high]
        if left and len(flat) == len(left):
            title += "; a departure changes the others' speed by less than the machines differ"
            made.basis(*flat)
    made.text("title", title)
    drawn = dict.fromkeys(e.method for e in gains)
    signs = {"naive": "circles: plain processes", "mps": "squares: MPS", "mig": "triangles: MIG"}
    made.text("subtitle", f"Over each job alone; {'; '.join(signs[method] for method in drawn)}")
    if gains:
        _mixes(made, gains, found["slowdown"])
    if left:
        _departures(made, left)
    return choose.footers(study, made)


def _mixes(made: Sheet, gains: list[Estimate], slowdowns: list[Estimate]) -> None:
    slow = made.panel("slowdown", **choose.ROWS, title="slowdown of each job")
    gain = made.panel("gain", xscale="log", rows="share", title="gain of the mix (STP)")
    made.line(slow)
    made.line(gain)
    row = 0.0
    for scenario in dict.fromkeys(e.scenario for e in gains):
        parts, first = parse_scenario(scenario).parts, row + 1
        for number, (job, count) in enumerate(parts):
            row += 1
            made.tick(slow, row, f"{'+ ' if number else ''}{count} × {labels.job(job)}")
            for e in slowdowns:
                if (e.scenario, e.job) == (scenario, job):
                    choose.sign(made, slow, e, row)
        for e in gains:
            if e.scenario == scenario:
                choose.sign(made, gain, e, (first + row) / 2)
        row += 0.6


def _departures(made: Sheet, left: list[Estimate]) -> None:
    mixes = {e.scenario: labels.scenario(e.scenario.split("--")[0]) for e in left}
    title = "others leave" if len(mixes) > 1 else f"others leave: {mixes[left[0].scenario]}"
    own = {"title": title, "rows": "yes", "wide": "yes"}
    xlabel = "speed of those that stay, over their speed before"
    panel = made.panel("departure", **own, xlabel=xlabel)
    made.line(panel)
    for row, e in enumerate(left, start=1):
        mix = f"{mixes[e.scenario]}, " if len(mixes) > 1 else ""
        made.tick(panel, row, f"{mix}{labels.method(e.method)}")
        choose.sign(made, panel, e, row)
