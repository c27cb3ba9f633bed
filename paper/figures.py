"""The figure that holds a study's gains against the paper's."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis import labels
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import AT_GRACT
from analysis.report.figures import Drawing, figure, style
from paper.gract_lines import fit_line, host_points, reported_gract
from workflow.collocation.study.names import parse_scenario


@figure(
    "Throughput gain (STP) of sets that the paper measured, too, against GRACT of one such job "
    "alone, which differs between hosts. Small marks: mean of one host and implementation each. "
    "Lines: least squares. Large marks: the lines read at the paper's GRACT, with "
    f"{CONFIDENCE_TEXT} intervals. Crosses: the paper's numbers. Figures beside them: how many "
    "jobs."
)
def gain_against_gract(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each job, a line for each set of it that the paper measured."""
    gains = table.select(estimates, "stp" + AT_GRACT)
    if gains.empty:
        return None
    workloads = [parse_scenario(scenario).family for scenario in gains["scenario"]]
    paper_gract = reported_gract(estimates)
    gract = [paper_gract[workload].value for workload in workloads]
    gains = gains.assign(workload=workloads, gract=gract)
    points = host_points(estimates).query("quantity == 'stp'")
    points = dict(list(points.groupby(["scenario", "method"])))
    reported = estimates[(estimates["source"] != table.MEASURED) & (estimates["quantity"] == "stp")]
    jobs, largest_difference = list(dict.fromkeys(workloads)), 0.0
    drawn, panels = style.panels(1, len(jobs), 3.6)
    for gain in gains.itertuples():
        axes, look = panels[jobs.index(gain.workload)], style.look(gain.method)
        of_hosts = points[gain.scenario, gain.method]
        axes.plot(of_hosts["gract"], of_hosts["value"], linestyle="", **look | {"markersize": 2})
        lowest = min(of_hosts["gract"].min(), gain.gract)
        highest = max(of_hosts["gract"].max(), gain.gract)
        along = np.geomspace(lowest, highest)
        middle, _, _ = fit_line(of_hosts["gract"], of_hosts["value"], along)
        axes.plot(along, middle, color=look["color"], linewidth=0.8, alpha=0.6)
        style.points(axes, [gain.gract], gains.loc[[gain.Index]], **look)
        same_set = (reported["scenario"] == gain.scenario) & (reported["method"] == gain.method)
        paper_gain = reported.loc[same_set, "value"].iloc[0]
        axes.plot(gain.gract, paper_gain, "x", color=look["color"], markersize=7)
        right = 8 if gain.method == "mps" else 16  # points: two methods may gain the same
        text = {"textcoords": "offset points", "color": look["color"]}
        axes.annotate(f"{gain.jobs}", (gain.gract, gain.value), xytext=(right, -3), **text)
        text |= {"xytext": (-right - 5, -3), "path_effects": style.halo()}
        axes.annotate(f"{gain.jobs}", (gain.gract, paper_gain), **text)
        largest_difference = max(largest_difference, abs(gain.value / paper_gain - 1))
    for axes, workload in zip(panels, jobs, strict=True):
        axes.set(title=labels.job(workload), xlabel="GRACT of one job alone")
        style.ratios(axes, "x", "y", line=False)
        style.percent(axes)
        axes.margins(x=0.08)
    panels[0].set_ylabel("throughput gain (STP)")
    looks = {m: style.look(m) | {"label": labels.method(m)} for m in gains["method"]}
    style.legend(drawn, [Line2D([], [], linestyle="", **look) for look in looks.values()])
    percent = 100 * largest_difference
    title = f"At the paper's GRACT, gains differ by up to {percent:.0f} %"
    return Drawing(title, gains, drawn)
