"""The figure that holds a study's gains against the paper's."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis import labels
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import AT_GRACT
from analysis.report.figures import Drawing, figure, style
from paper import gract_lines
from workflow.collocation.study.names import parse_scenario


@figure(
    "Throughput gain (STP) of sets that the paper measured, too, against GRACT of one such job "
    "alone, which differs between hosts. Small marks: mean of one host and implementation each. "
    "Lines: least squares. Large marks: the lines extrapolated to the paper's GRACT, with "
    f"{CONFIDENCE_TEXT} intervals. Crosses: the paper's numbers. Figures beside them: how many "
    "jobs."
)
def gain_against_gract(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each job, a line for each set."""
    points, papers = gract_lines.points(estimates), gract_lines.papers(estimates)
    shown = table.select(estimates, "stp" + AT_GRACT)
    shown = shown.assign(workload=[parse_scenario(s).family for s in shown["scenario"]])
    if shown.empty:
        return None
    shown = shown.assign(gract=[papers[name].value for name in shown["workload"]])
    of = dict(list(points[points["quantity"] == "stp"].groupby(["scenario", "method"])))
    jobs = list(dict.fromkeys(shown["workload"]))
    drawn, panels = style.panels(1, len(jobs), 3.6)
    theirs, off = estimates[(estimates["source"] != table.MEASURED)], 0.0
    for e in shown.itertuples():
        axes, look = panels[jobs.index(e.workload)], style.look(e.method)
        own = of[e.scenario, e.method]
        axes.plot(own["gract"], own["value"], linestyle="", **look | {"markersize": 2})
        ends = np.geomspace(min(own["gract"].min(), e.gract), max(own["gract"].max(), e.gract))
        middle = gract_lines.line(own["gract"], own["value"], ends)[0]
        axes.plot(ends, middle, color=look["color"], linewidth=0.8, alpha=0.6)
        style.points(axes, [e.gract], shown.loc[[e.Index]], **look)
        right = 8 if e.method == "mps" else 16  # points: two methods may gain the same
        place = {"xytext": (right, -3), "textcoords": "offset points", "color": look["color"]}
        axes.annotate(f"{e.jobs}", (e.gract, e.value), **place)
        paper = theirs[(theirs["quantity"] == "stp") & (theirs["scenario"] == e.scenario)]
        paper = paper.loc[paper["method"] == e.method, "value"].iloc[0]
        axes.plot(e.gract, paper, "x", color=look["color"], markersize=7)
        left = place | {"xytext": (-right - 5, -3), "path_effects": style.halo()}
        axes.annotate(f"{e.jobs}", (e.gract, paper), **left)
        off = max(off, abs(e.value / paper - 1))
    for axes, name in zip(panels, jobs, strict=True):
        axes.set(title=labels.job(name), xlabel="GRACT of one job alone")
        style.ratios(axes, "x", "y", line=False)
        style.percent(axes)
        axes.margins(x=0.08)
    panels[0].set_ylabel("throughput gain (STP)")
    drawn_by = {m: style.look(m) | {"label": labels.method(m)} for m in shown["method"]}
    style.legend(drawn, [Line2D([], [], linestyle="", **look) for look in drawn_by.values()])
    title = f"Extrapolated to the paper's GRACT, gains differ by up to {100 * off:.0f} %"
    return Drawing(title, shown, drawn)
