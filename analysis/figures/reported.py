"""What the paper reports against what was measured here, on one square."""

from __future__ import annotations

from analysis import labels
from analysis.choose import place
from analysis.estimates.schema import Estimate
from analysis.figures import choose
from analysis.figures.choose import Study, by_method, look
from analysis.figures.sheet import Sheet

SOURCES = ("SUIT25", "LEC22")  # the newer one first


def sheet(study: Study) -> Sheet:
    """STP of sets that both have: reported across, measured up."""
    made = Sheet(columns=1, height=4.1)
    pairs: dict[tuple[str, str], list[tuple[Estimate, Estimate]]] = {}
    for source in SOURCES:
        for workload, numbers in study.alike("stp", arm=study.arm, source=source).items():
            for way, each in by_method([e for e in numbers if e.jobs > 1]).items():
                ours = [(theirs, study.t.get("stp", **place(theirs))) for theirs in each]
                both = [(theirs, own) for theirs, own in ours if own and own.value is not None]
                if both:
                    pairs.setdefault((workload, way), both)
    if not pairs:
        title = "Gains reported by the paper's authors against ours"
        why = study.lacking("no set was measured that they report")
        return choose.nothing(made, title, why)
    made.text("title", _title([pair for both in pairs.values() for pair in both]))
    said = "A line joins the sets of one job. Filled: SUIT25, open: LEC22 (batch size not stated), "
    made.text("subtitle", said + "both on an A100")
    own = {"xlabel": "reported throughput gain (STP)", "ylabel": "measured here"}
    own |= {"aspect": "square", "names": "right"}
    panel = made.panel("gain", **own, xscale="log", yscale="log")
    hues = dict(zip(dict.fromkeys(workload for workload, _ in pairs), choose.HUES, strict=False))
    for (workload, way), both in pairs.items():
        name = f"{labels.job(workload)}, {labels.method(way)}"
        for theirs, e in both:
            style = look(e) | {"colour": hues.get(workload, labels.GREY)}
            style |= {} if theirs.source == SOURCES[0] else {"fill": "open"}
            end = name if theirs is both[-1][0] else ""
            made.point(panel, e, name, at=theirs, end=end, **style)
    return choose.footers(study, made)


def _title(pairs: list[tuple[Estimate, Estimate]]) -> str:
    """How many measured gains lie above, below and around the reported ones."""
    above = sum((own.low or own.value) > theirs.value for theirs, own in pairs)
    below = sum((own.high or own.value) < theirs.value for theirs, own in pairs)
    within = len(pairs) - above - below
    return (
        f"Of {len(pairs)} throughput gains that the paper's authors report: {above or 'none'} "
        f"higher here on every host, {below or 'none'} lower, {within or 'none'} within our range"
    )
