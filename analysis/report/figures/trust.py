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
    is_alone = (rows["jobs"] == 1) & (rows["method"] == "naive")
    most = rows.groupby([*select.JOB, "method"])["jobs"].transform("max")
    is_largest = (rows["jobs"] == most) & (rows["jobs"] > 1)
    plotted = rows[is_alone | is_largest].reset_index(drop=True)
    if plotted.empty:
        return None
    picture, axes = style.named_rows(style.set_names(plotted))
    is_single = plotted["jobs"] == 1
    for chosen, colour in ((is_single, style.SOFT), (~is_single, style.SERIES_COLOURS[0])):
        style.dots(axes, np.flatnonzero(chosen), plotted[chosen], colour, clip_on=False)
    axes.set(xlabel="coefficient of variation", xlim=(0, None))
    style.percent(axes)
    title = "How well throughput repeats on one host"
    alone = table.get(estimates, "count", name="cv_alone")
    together = table.get(estimates, "count", name="cv_together")
    if alone and together:
        title = (
            f"Throughput repeats within {100 * alone.value:.1f} % alone, "
            f"{100 * together.value:.1f} % in sets (medians)"
        )
    return Drawing(title, plotted, picture)
