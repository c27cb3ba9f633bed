"""Figures of how far to trust numbers: how well they repeat, and what others reported."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import estimates as table
from analysis import labels
from analysis.figures import Drawing, figure, select, style

SOURCES = {"SUIT25": "full", "LEC22": "none"}  # the newer one first, with the fill of its marks


@figure(
    "Throughput gains (STP) that the paper's authors report of an A100, and those measured here. "
    "Filled: a talk of 2025 (SUIT25), open: a lecture of 2022 (LEC22). On the line both agree."
)
def reported_against_measured(estimates: pd.DataFrame) -> Drawing | None:
    """A mark for each set that both have, in the colour of its method."""
    ours = select.sets(select.copies(estimates, "stp"))
    theirs = pd.concat([select.copies(estimates, "stp", source=source) for source in SOURCES])
    theirs = theirs.drop_duplicates(select.PLACE)
    both = ours.merge(theirs[[*select.PLACE, "value", "source"]], on=select.PLACE,
                      suffixes=("", "_reported"))  # fmt: skip
    if both.empty:
        return None
    drawn, axes = style.panel(3.8)
    for (method, source), own in both.groupby(["method", "source_reported"]):
        look = style.look(method)
        style.points(axes, own["value_reported"], own, fillstyle=SOURCES[source], **look)
    for method in dict.fromkeys(both["method"]):
        axes.plot([], [], linestyle="", label=labels.method(method), **style.look(method))
    for e in select.largest(both, ["workload", "method"]).itertuples():
        text = f"{e.jobs} {labels.job(e.workload)}"
        style.end(axes, e.value_reported, e.value, text, labels.colour(e.method))
    axes.set(xlabel="reported throughput gain (STP)", ylabel="measured here")
    style.ratios(axes, "x", "y", line=False)
    axes.axline((1, 1), (2, 2), color=style.PALE, linewidth=0.9, zorder=0)
    axes.legend(loc="lower right")
    higher = int((both["low"].fillna(both["value"]) > both["value_reported"]).sum())
    lower = int((both["high"].fillna(both["value"]) < both["value_reported"]).sum())
    title = f"Of {len(both)} reported gains, {higher} are higher here, {lower} lower"
    return Drawing(title, both, drawn)


@figure(
    "By how much throughput differs between replicates on one machine (coefficient of variation): "
    "jobs alone, and the largest set of each."
)
def repeatability(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job alone, and for its largest set by each method."""
    rows = select.copies(estimates, "rate_cv")
    rows = pd.concat(select.series(rows).values() or [rows.iloc[:0]])
    alone = (rows["jobs"] == 1) & (rows["method"] == "naive")
    largest = rows["jobs"] == rows.groupby(["workload", "implementation", "method"])[
        "jobs"
    ].transform("max")
    shown = rows[alone | (largest & (rows["jobs"] > 1))].reset_index(drop=True)
    if shown.empty:
        return None
    drawn, axes = style.rows(style.set_names(shown))
    single = shown["jobs"] == 1
    for own, colour in ((single, style.SOFT), (~single, style.HUES[0])):
        style.dots(axes, np.flatnonzero(own), shown[own], colour)
    axes.set(xlabel="coefficient of variation", xlim=(0, None))
    style.percent(axes)
    title = "How well throughput repeats on one machine"
    found = [table.get(estimates, "count", name=name) for name in ("cv_alone", "cv_together")]
    if all(found):
        one, sets = (f"{100 * e.value:.1f} %" for e in found)
        title = f"Throughput repeats within {one} alone, {sets} in sets"
    return Drawing(title, shown, drawn)
