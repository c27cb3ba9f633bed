"""Figures of what sharing gains, what it costs, and where the gain comes from; and of mixes."""

import math

import numpy as np
import pandas as pd

from analysis import labels
from analysis.advice import predict
from analysis.estimates import table
from analysis.report.figures import Drawing, figure, select, style
from workflow.collocation.study.names import parse_scenario

# With more sets than MOST_NAMES, only the best of each job that gains more than MIN_NAMED is named.
MOST_NAMES, MIN_NAMED = 10, 1.5
GAP_GAIN = 1.05  # STP over S, from which filling gaps is worth its mention
LOW_SMACT = 0.5  # of a job alone: below, it leaves most SMs without work


@figure(
    "Throughput gain (work per hour relative to one job) of jobs under MPS, against SMACT of one "
    "such job alone: the share of SMs with work. Numbers in the marks: how many jobs. Lines: what "
    "the predictor says of as many jobs. Shaded: jobs that keep the GPU busy alone, for which the "
    "lines do not hold. Not drawn: jobs that read files, which meet on the CPU, not on the SMs."
)
def where_to_share(estimates: pd.DataFrame) -> Drawing | None:
    """A mark for several copies of a job under MPS, a predicted line for each number of jobs."""
    gains = select.with_alone(select.copies(estimates, "stp", method="mps"), estimates, "smact")
    gains = select.with_alone(gains[gains["jobs"] > 1], estimates, "gract")
    if gains.empty:
        return None
    picture, axes = style.panel(3.6)
    gains = gains.assign(busy=gains["gract"] >= predict.NO_GAPS_FROM)
    smact, fitted = np.linspace(0.01, 1, 200), predict.predictor_constants()["mps"][predict.GAPS]
    for n in sorted(set(gains["jobs"][~gains["busy"]])):
        predicted = predict.set_stp(n, n * smact, fitted)
        axes.plot(smact, predicted, color=style.look("mps")["color"], linewidth=0.8, alpha=0.6)
    for row in gains.sort_values("jobs").itertuples():
        style.counted(axes, row.smact, row, style.PALER if row.busy else "white")
    named = largest = select.largest(gains, select.JOB)
    if len(largest) > MOST_NAMES:
        named = largest.loc[largest.groupby("workload")["value"].idxmax()]
        named = named[named["value"] > MIN_NAMED]
    for row in named.itertuples():
        name = labels.job(row.workload, row.implementation)
        style.name_point(axes, row.smact, row.value, name, style.INK)
    axes.set(xlabel="SMACT of one job alone", ylabel="throughput gain (STP)", xlim=(0, 1.02))
    style.percent(axes)
    style.ratios(axes, "y")
    title = "What sharing gains, against the SMACT of one job"
    idle = largest[largest["smact"] < LOW_SMACT]
    if len(idle):
        gain = select.gain(select.best(idle))
        title = f"Below {100 * LOW_SMACT:.0f} % SMACT gains reach {gain}"
    return Drawing(title, gains, picture)


@figure(
    "Throughput gain (work per hour relative to one job) against the slowdown of the slowest job. "
    "Colour and mark: how the jobs share the GPU; numbers in the marks: how many jobs; black: "
    "one alone; kind of line: how the job is written. " + select.NOT_DRAWN
)
def gain_against_slowdown(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each job, a path for each way of writing it and method over the jobs' number."""
    gains = select.sets(select.copies(estimates, "stp"))
    series = select.series(select.beside(gains, estimates, "slowdown_worst"))
    if not series:
        return None
    plotted = pd.concat(series.values())
    workloads = list(dict.fromkeys(plotted["workload"]))
    columns = min(len(workloads), 3)
    height = 3.2 if columns < 3 else 2.6
    picture, panels = style.panels(math.ceil(len(workloads) / columns), columns, height)
    for axes in panels[len(workloads) :]:
        axes.set_visible(False)
    for axes, workload in zip(panels, workloads, strict=False):
        of_job = plotted[plotted["workload"] == workload]
        for (implementation, method), path in of_job.groupby(["implementation", "method"]):
            line = {"linestyle": labels.line_style(implementation), "zorder": 2}
            colour = style.look(method)["color"]
            axes.plot(path["value_beside"], path["value"], color=colour, linewidth=1, **line)
        for row in of_job.sort_values("jobs").itertuples():
            style.counted(axes, row.value_beside, row)
        axes.plot(1, 1, "o", color=style.INK)
        axes.set(title=labels.job(workload), xlabel="slowdown of the slowest job")
        style.ratios(axes, "x", "y")
    panels[0].set_ylabel("throughput gain (STP)")
    style.explain(picture, plotted["method"], plotted["implementation"])
    most = select.best(plotted)
    slowdown = f", at a slowdown of {labels.number(most.value_beside)}"
    title = f"{labels.job(most.workload)}: {most.jobs} gain {select.gain(most, slowdown)}"
    return Drawing(title, plotted, picture)


@figure(
    "Throughput of jobs under MPS over that of the same jobs as separate processes. Large marks: "
    "all hosts; small marks: one host each. " + select.NOT_DRAWN
)
def mps_over_separate(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each set."""
    series = select.series(select.copies(estimates, "rate_over_naive", method="mps"))
    if not series:
        return None
    plotted = select.sets(pd.concat(series.values()))
    names = []
    for ratio in plotted.itertuples():
        names.append(f"{ratio.jobs} × {labels.job(ratio.workload, ratio.implementation)}")
    picture, axes = style.named_rows(names)
    style.dots(axes, np.arange(len(plotted)), plotted, **style.look("mps"), zorder=3)
    for y, ratio in enumerate(plotted.itertuples()):
        hosts = table.on_hosts(estimates, ratio)["value"] if ratio.hosts > 1 else []
        axes.plot(hosts, [y] * len(hosts), ".", color=style.PALE, markersize=4, zorder=2)
    axes.set_xlabel("samples/s under MPS over separate processes")
    style.ratios(axes, "x")
    gain = labels.range_of(plotted["value"])
    return Drawing(f"MPS over separate processes: {gain} times the work", plotted, picture)


@figure(
    "The most copies measured of each job that leaves the GPU idle at times, without image files. "
    "Open: the whole gain (STP). Filled: what kernels that run at the same time gain, without "
    "bars; the rest comes from filling idle time."
)
def gaps_and_overlap(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job and method."""
    gains = select.beside(select.sets(select.copies(estimates, "s")), estimates, "stp")
    gains = gains[gains["value_beside"] > GAP_GAIN * gains["value"]]
    if gains.empty:
        return None
    plotted = select.largest(gains, [*select.JOB, "method"])
    plotted = plotted.sort_values("value", ascending=False, ignore_index=True)
    picture, axes = style.named_rows(style.set_names(plotted))
    for method, rows in plotted.groupby("method"):
        look = style.look(method)
        stp = rows[["value_beside", "low_beside", "high_beside"]]
        stp = stp.rename(columns=lambda column: column.removesuffix("_beside"))
        style.dots(axes, rows.index, stp, **look, markerfacecolor="white", zorder=2)
        style.dots(axes, rows.index, rows.assign(low=np.nan, high=np.nan), **look, zorder=3)
        ends = rows["value"], rows["value_beside"]
        axes.hlines(rows.index, *ends, color=look["color"], alpha=0.35)
    axes.set_xlabel("work per hour relative to one job")
    style.ratios(axes, "x")
    gaps = labels.number((plotted["value_beside"] / plotted["value"]).max())
    overlap = labels.number(plotted["value"].max())
    title = f"Filling gaps gains up to {gaps} times, concurrent kernels {overlap}"
    return Drawing(title, plotted, picture)


@figure(
    "Mixes of different jobs. Left: how many times as long each job takes as alone. Right: the "
    "throughput gain of the mix (STP), each job counted relative to itself alone."
)
def mixes(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job of a mix; beside it the gain of the mix."""
    gains = _of_mixes(table.select(estimates, "stp", window="", job=""))
    slowdowns = _of_mixes(table.select(estimates, "slowdown", window=""))
    slowdowns = slowdowns[slowdowns["scenario"].isin(gains["scenario"])]
    if gains.empty:
        return None
    names: list[str] = []
    y: dict[tuple[str, str], dict[str, int]] = {}  # (scenario, implementation) → job → row
    for scenario, implementation in zip(gains["scenario"], gains["implementation"], strict=True):
        if (scenario, implementation) in y:
            continue
        rows_of_jobs = y.setdefault((scenario, implementation), {})
        for job, count in parse_scenario(scenario).parts:
            if rows_of_jobs:
                names.append(f"+ {count} × {labels.job(job)}")
            else:
                names.append(f"{count} × {labels.job(job, implementation)}")
            rows_of_jobs[job] = len(names) - 1
    picture, (slowdown_axes, gain_axes) = style.panels(1, 2, 0.6 + 0.16 * len(names))
    for method in dict.fromkeys(gains["method"]):
        rows = slowdowns[slowdowns["method"] == method]
        at = [y[row.scenario, row.implementation][row.job] for row in rows.itertuples()]
        style.dots(slowdown_axes, at, rows, **style.look(method), label=labels.method(method))
        rows = gains[gains["method"] == method]
        at = [np.mean([*y[row.scenario, row.implementation].values()]) for row in rows.itertuples()]
        style.dots(gain_axes, at, rows, **style.look(method))
    style.name_rows(slowdown_axes, names)
    style.name_rows(gain_axes, [""] * len(names))
    slowdown_axes.set_xlabel("slowdown of each job")
    gain_axes.set_xlabel("throughput gain (STP) of the mix")
    for axes in (slowdown_axes, gain_axes):
        style.ratios(axes, "x")
        for rows_of_jobs in [*y.values()][1:]:  # a line above each mix but the first
            axes.axhline(min(rows_of_jobs.values()) - 0.5, color=style.PALE, linewidth=0.4)
    style.legend(picture, slowdown_axes.get_legend_handles_labels()[0])
    under_mps = gains[gains["method"] == "mps"]
    title = "What mixes of different jobs gain, and what each job pays"
    if not under_mps.empty:
        title = f"Under MPS, mixes gain {labels.range_of(under_mps['value'])} times"
        if under_mps["hosts"].max() == 1:
            title += " (one host)"
    return Drawing(title, pd.concat([gains, slowdowns]), picture)


def _of_mixes(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of different jobs, without variants, by a method that is drawn."""
    rows = rows[rows["method"].isin(style.METHODS)]
    return select.of_scenarios(rows, lambda scenario: scenario.mixed and not scenario.variant)
