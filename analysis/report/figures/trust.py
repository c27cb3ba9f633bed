"""The figure of how well numbers repeat."""

import numpy as np
import pandas as pd

from analysis.estimates import table
from analysis.report.figures import Drawing, figure, select, style


@figure(
    "By how much throughput differs between replicates on one host (coefficient of variation): "
    "jobs alone, and the largest set of each, with data on the GPU. The medians count all sets."
)
def repeatability(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job alone, and for its largest set by each method."""
    rows = select.copies(estimates, "rate_cv")
    rows = pd.concat(select.series(rows).values() or [rows.iloc[:0]])
    alone = (rows["jobs"] == 1) & (rows["method"] == "naive")
    most = rows.groupby(["workload", "implementation", "method"])["jobs"].transform("max")
    largest = (rows["jobs"] == most) & (rows["jobs"] > 1)
    shown = rows[alone | largest].reset_index(drop=True)
    if shown.empty:
        return None
    drawn, axes = style.rows(style.set_names(shown))
    single = shown["jobs"] == 1
    for own, colour in ((single, style.SOFT), (~single, style.HUES[0])):
        style.dots(axes, np.flatnonzero(own), shown[own], colour, clip_on=False)
    axes.set(xlabel="coefficient of variation", xlim=(0, None))
    style.percent(axes)
    title = "How well throughput repeats on one host"
    found = [table.get(estimates, "count", name=name) for name in ("cv_alone", "cv_together")]
    if all(found):
        one, sets = (f"{100 * e.value:.1f} %" for e in found)
        title = f"Throughput repeats within {one} alone, {sets} in sets (medians)"
    return Drawing(title, shown, drawn)
