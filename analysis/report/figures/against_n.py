"""Figures against the number of jobs: throughput and memory."""

import math

import pandas as pd
from matplotlib.lines import Line2D

from analysis import labels
from analysis.choose import place, way
from analysis.estimates import table
from analysis.report.figures import Drawing, figure, select, style
from workflow.collocation.study.names import implementation_order


@figure(
    "Samples/s of all jobs together. Colour: how the job is written; solid: under MPS, "
    "dashed: separate processes, dotted: on CUDA streams. Grey line, if any: one job alone in "
    "the fastest way. Ways of writing may have been measured on different hosts. " + select.DRAWN
)
def rate_against_n(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each job, a line for each way of writing it and each method."""
    rates = select.copies(estimates, "rate")
    rates = rates[rates["method"].isin(style.METHODS)]
    jobs = select.sets(rates).groupby("workload")
    sizes = pd.DataFrame({"implementations": jobs["implementation"].nunique(), "sets": jobs.size()})
    chosen = list(
        sizes.sort_values(["implementations", "sets"], ascending=False).index[: select.MOST]
    )
    if not chosen:
        return None
    columns = min(len(chosen), 3)
    drawn, panels = style.panels(math.ceil(len(chosen) / columns), columns, 2.1)
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    for axes, workload in zip(panels, chosen, strict=False):
        rows = rates[rates["workload"] == workload]
        style.counts(axes, rows["jobs"])
        axes.set_title(labels.job(workload))
        for implementation, own in rows.groupby("implementation"):
            style.by_method(axes, own, color=labels.written_colour(implementation), marker="o")
        for e in table.select(estimates, "fastest_rate", scenario=f"1x_{workload}").itertuples():
            axes.axhline(e.value, color=style.PALE, linewidth=0.9, zorder=0)
        axes.set_ylim(0, 1.08 * rows[["value", "high"]].max(axis=None))
        style.thousands(axes)
    panels[0].set_ylabel("samples/s, all jobs")
    data = rates[rates["workload"].isin(chosen)]
    written = sorted(set(data["implementation"]), key=implementation_order)
    names = {labels.implementation(each): labels.written_colour(each) for each in written}
    style.legend(drawn, [Line2D([], [], color=c, label=name) for name, c in names.items()])
    return Drawing(_title(estimates), data, drawn)


def _title(estimates: pd.DataFrame) -> str:
    """What rewriting gains, and what sharing adds; or the most that sharing gains."""
    shared = select.sets(select.copies(estimates, "over_fastest"))
    job = ["workload", "implementation"]
    rewritten = select.copies(estimates, "alone_over_paper")[[*job, "value"]]
    both = shared.merge(rewritten, on=job, suffixes=("", "_rewritten"))
    if not both.empty:
        best = both.loc[(both["value"] * both["value_rewritten"]).idxmax()]
        gain, then = labels.number(best.value_rewritten), labels.number(best.value)
        return f"{labels.job(best.workload)}: rewriting gains {gain} times, sharing then {then}"
    gains = select.sets(select.copies(estimates, "stp"))
    if gains.empty:
        return "Throughput against the number of jobs"
    best = select.best(gains)
    do = f"{best.jobs} {way(best.method)} gain {select.gain(best)}"
    return f"{labels.job(best.workload)}: {do}"


@figure(
    "GPU memory of all jobs and the driver together; grey line: the card. Solid: under MPS, "
    "dashed: separate processes, dotted: on CUDA streams."
)
def memory(estimates: pd.DataFrame) -> Drawing | None:
    """A line for each job and method, up to the card's memory."""
    found = select.series(select.copies(estimates, "memory"))
    if not found:
        return None
    drawn, axes = style.panel(3.0)
    shown = pd.concat(found.values())
    style.counts(axes, shown["jobs"])
    style.lines(axes, found)
    axes.set(ylabel="GPU memory (GB)", yscale="log")
    style.thousands(axes)
    most = select.best(shown)
    title = f"{labels.scenario(most.scenario)}: {labels.number(most.value, 'GB')}"
    if capacity := table.get(estimates, "capacity", **place(most)):
        axes.axhline(capacity.value, color=style.PALE, linewidth=0.9, zorder=0)
        title += f" of the card's {labels.number(capacity.value)}"
    return Drawing(title, shown, drawn)
