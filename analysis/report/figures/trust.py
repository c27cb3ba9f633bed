"""The figure of how well numbers repeat."""

import pandas as pd

from analysis.report.figures import Drawing, figure, select, style


@figure(
    "By how much throughput differs between replicates on one host (coefficient of variation): "
    "each job alone (black), and the most copies of it that were measured, with data on the GPU. "
    "Drawn: the jobs with the most measurements. The medians are of what is drawn."
)
def repeatability(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job alone, and for the most copies of it by each method."""
    rows = select.copies(estimates, "rate_cv")
    rows = pd.concat(select.series(rows).values() or [rows.iloc[:0]])
    is_alone = (rows["jobs"] == 1) & (rows["method"] == "naive")
    most = rows.groupby([*select.JOB, "method"])["jobs"].transform("max")
    is_largest = (rows["jobs"] == most) & (rows["jobs"] > 1)
    plotted = rows[is_alone | is_largest].reset_index(drop=True)
    if plotted.empty:
        return None
    picture, axes = style.named_rows(style.set_names(plotted))
    for y, row in enumerate(plotted.itertuples()):
        mark = {"color": style.INK} if row.jobs == 1 else style.look(row.method)
        style.dots(axes, [y], plotted.iloc[[y]], **mark, clip_on=False)
    axes.set(xlabel="coefficient of variation", xlim=(0, None))
    style.percent(axes)
    title = "How well throughput repeats on one host"
    is_single = plotted["jobs"] == 1
    if is_single.any() and not is_single.all():
        alone = f"{100 * plotted['value'][is_single].median():.1f} % alone"
        together = f"{100 * plotted['value'][~is_single].median():.1f} % together"
        title = f"Throughput repeats within {alone}, {together} (medians)"
    return Drawing(title, plotted, picture)
