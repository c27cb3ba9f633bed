"""Figures against the number of jobs: throughput and memory."""

import math

import pandas as pd
from matplotlib.lines import Line2D

from analysis import labels
from analysis.estimates import table
from analysis.estimates.table import place
from analysis.report.figures import Drawing, figure, select, style
from workflow.collocation.study.names import implementation_order


@figure(
    "Samples/s of all jobs together. Colour: how the job is written; solid: under MPS, "
    "dashed: separate processes, dotted: on CUDA streams. Grey line, if any: one job alone in "
    "the fastest way. Ways of writing may have been measured on different hosts. "
    + select.NOT_DRAWN
)
def rate_against_n(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each job, a line for each implementation and method."""
    rates = select.copies(estimates, "rate")
    rates = rates[rates["method"].isin(style.METHODS)]
    workloads = _most_measured(rates)
    if not workloads:
        return None
    columns = min(len(workloads), 3)
    picture, panels = style.panels(math.ceil(len(workloads) / columns), columns, 2.1)
    for axes in panels[len(workloads) :]:
        axes.set_visible(False)
    for axes, workload in zip(panels, workloads, strict=False):
        of_job = rates[rates["workload"] == workload]
        style.job_counts(axes, of_job["jobs"])
        axes.set_title(labels.job(workload))
        for implementation, rows in of_job.groupby("implementation"):
            colour = labels.implementation_colour(implementation)
            style.by_method(axes, rows, color=colour, marker="o")
        for fastest in table.select(estimates, "fastest_rate", scenario=f"1x_{workload}")["value"]:
            axes.axhline(fastest, color=style.PALE, linewidth=0.9, zorder=0)
        axes.set_ylim(0, 1.08 * of_job[["value", "high"]].max(axis=None))
        style.thousands(axes)
    panels[0].set_ylabel("samples/s, all jobs")
    plotted = rates[rates["workload"].isin(workloads)]
    handles = []
    for name in sorted(set(plotted["implementation"]), key=implementation_order):
        title, colour = labels.implementation(name), labels.implementation_colour(name)
        handles.append(Line2D([], [], color=colour, label=title))
    style.legend(picture, handles)
    return Drawing(_title(estimates), plotted, picture)


def _most_measured(rates: pd.DataFrame) -> list[str]:
    """Workloads with the most implementations, then the most sets."""
    jobs = select.sets(rates).groupby("workload")
    sizes = pd.DataFrame({"implementations": jobs["implementation"].nunique(), "sets": jobs.size()})
    sizes = sizes.sort_values(["implementations", "sets"], ascending=False)
    return list(sizes.index[: select.MOST])


def _title(estimates: pd.DataFrame) -> str:
    """What rewriting gains, and what sharing adds; or the most that sharing gains."""
    shared = select.sets(select.copies(estimates, "over_fastest"))
    rewritten = select.copies(estimates, "alone_over_paper")[[*select.JOB, "value"]]
    combined = shared.merge(rewritten, on=select.JOB, suffixes=("", "_rewritten"))
    if not combined.empty:
        best = combined.loc[(combined["value"] * combined["value_rewritten"]).idxmax()]
        rewriting, sharing = labels.number(best.value_rewritten), labels.number(best.value)
        job = labels.job(best.workload)
        return f"{job}: rewriting gains {rewriting} times, sharing then {sharing}"
    gains = select.sets(select.copies(estimates, "stp"))
    if gains.empty:
        return "Throughput against the number of jobs"
    best = select.best(gains)
    jobs = f"{best.jobs} {labels.method_phrase(best.method)}"
    return f"{labels.job(best.workload)}: {jobs} gain {select.gain(best)}"


@figure(
    "GPU memory of all jobs and the driver together; grey line: the card. Solid: under MPS, "
    "dashed: separate processes, dotted: on CUDA streams."
)
def memory(estimates: pd.DataFrame) -> Drawing | None:
    """A line for each job and method, up to the card's memory."""
    series = select.series(select.copies(estimates, "memory"))
    if not series:
        return None
    picture, axes = style.panel(3.0)
    plotted = pd.concat(series.values())
    style.job_counts(axes, plotted["jobs"])
    style.lines(axes, series)
    axes.set(ylabel="GPU memory (GB)", yscale="log")
    style.thousands(axes)
    most = select.best(plotted)
    title = f"{labels.scenario(most.scenario)}: {labels.number(most.value, 'GB')}"
    if capacity := table.get(estimates, "capacity", **place(most)):
        axes.axhline(capacity.value, color=style.PALE, linewidth=0.9, zorder=0)
        title += f" of the card's {labels.number(capacity.value)}"
    return Drawing(title, plotted, picture)
