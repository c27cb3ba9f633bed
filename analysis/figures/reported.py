"""What the paper reports against what was measured here, on one square."""

from __future__ import annotations

from analysis import labels
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, hollow
from analysis.figures.sheet import Sheet

SOURCES = ("SUIT25", "LEC22")  # the newer one first


def sheet(study: Study) -> Sheet:
    """STP of sets that both have: reported across, measured up."""
    made = Sheet(columns=1, height=4.1)
    ours = study.alike("stp", arm=study.arm)
    pairs: dict[tuple[str, str, str], list[tuple[Estimate, Estimate]]] = {}
    for workload in ours:
        for source in SOURCES:
            theirs = study.alike("stp", arm=study.arm, source=source).get(workload, [])
            for way, numbers in by_method([e for e in theirs if e.jobs > 1]).items():
                both = [
                    (e, study.t.get("stp", scenario=e.scenario, arm=e.arm, method=way))
                    for e in numbers
                ]
                both = [(e, own) for e, own in both if own is not None and own.value is not None]
                if both and not any((workload, way, s) in pairs for s in SOURCES):
                    pairs[workload, way, source] = both
    if not pairs:
        return choose.nothing(
            made,
            "Gains reported by the paper's authors against ours",
            "no set was measured that they report",
        )
    _title(made, [pair for both in pairs.values() for pair in both])
    made.text(
        "subtitle",
        "A line joins the sets of one job. Filled: SUIT25, open: LEC22 (batch size not stated), "
        "both on an A100",
    )
    panel = made.panel(
        "gain",
        xlabel="reported throughput gain (STP)",
        ylabel="measured here",
        xscale="log",
        yscale="log",
        format="times",
        xformat="times",
        aspect="square",
        names="right",
    )
    hues = dict(zip(dict.fromkeys(w for w, _, _ in pairs), choose.HUES, strict=False))
    for (workload, way, source), both in pairs.items():
        name = f"{labels.job(workload)}, {labels.method(way)}"
        for theirs, own in both:
            made.point(
                panel,
                own,
                name,
                at=theirs,
                colour=hues.get(workload, labels.GREY),
                marker=labels.marker(way),
                line=choose.DASHES[way],
                fill="" if source == SOURCES[0] and not hollow(own) else "open",
                end=name if theirs is both[-1][0] else "",
            )
    return choose.footers(study, made, arms={study.arm})


def _title(made: Sheet, pairs: list[tuple[Estimate, Estimate]]) -> None:
    """How many measured gains lie above, below and around the reported ones."""

    def least(e):
        return e.value if e.low is None else e.low

    def most(e):
        return e.value if e.high is None else e.high

    above = sum(least(own) > theirs.value for theirs, own in pairs)
    below = sum(most(own) < theirs.value for theirs, own in pairs)
    within = len(pairs) - above - below
    made.text(
        "title",
        f"Of {len(pairs)} throughput gains that the paper's authors report: {above or 'none'} "
        f"higher here on every host, {below or 'none'} lower, {within or 'none'} within our range",
    )
