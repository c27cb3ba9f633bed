"""The figure of throughput against the number of jobs."""

import math

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.report.figures import Drawing, figure, select, style


@figure(
    "Samples/s of all jobs together. Colour and mark: how the jobs share the GPU; black: one job "
    "alone. Kind of line: how the job is written, which may have been measured on different "
    "hosts. Grey line: one job alone as its fastest version. " + select.NOT_DRAWN
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
            style.by_method(axes, rows, implementation)
        for fastest in table.select(estimates, "fastest_rate", scenario=f"1x_{workload}")["value"]:
            axes.axhline(fastest, color=style.PALE, linewidth=0.9, zorder=0)
        axes.set_ylim(0, 1.08 * of_job[["value", "high"]].max(axis=None))
        style.thousands(axes)
    panels[0].set_ylabel("samples/s, all jobs")
    plotted = rates[rates["workload"].isin(workloads)]
    style.explain(picture, select.sets(plotted)["method"], plotted["implementation"])
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
