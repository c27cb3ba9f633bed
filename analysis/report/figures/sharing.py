"""Figures of what sharing gains, what it costs, and where the gain comes from; and of mixes."""

import numpy as np
import pandas as pd

from analysis import labels
from analysis.advice import predict
from analysis.estimates import table
from analysis.report.figures import Drawing, figure, select, style
from workflow.collocation.study.names import parse_scenario

MOST_NAMES, NAMED = 10, 1.5  # where many: those that gain so much, of each job the best way
SOME = 1.05  # a gain that is worth its mention
LOW = 0.5  # SMACT of a job alone: below, it leaves most SMs without work


@figure(
    "Throughput gain (STP: work per hour relative to one job) of sets under MPS, against SMACT of "
    "one such job alone: the share of SMs with work. Lines: what the predictor says of "
    "jobs that leave the GPU idle at times."
)
def where_to_share(estimates: pd.DataFrame) -> Drawing | None:
    """A mark for each set under MPS, a colour and a predicted line for each number of jobs."""
    gains = select.with_alone(select.copies(estimates, "stp", method="mps"), estimates, "smact")
    gains = select.with_alone(gains[gains["jobs"] > 1], estimates, "gract")
    if gains.empty:
        return None
    drawn, axes = style.panel(3.6)
    counts = sorted(gains["jobs"].value_counts().index[: select.MOST])
    gains = gains[gains["jobs"].isin(counts)]
    activity, of = np.linspace(0.01, 1, 200), predict.predictor_constants()["mps"][predict.GAPS]
    for n, colour, sign in zip(counts, style.HUES, style.SIGNS, strict=False):
        own = gains[gains["jobs"] == n]
        style.points(axes, own["smact"], own, color=colour, marker=sign, label=f"{n} jobs")
        if own["gract"].min() < predict.NO_GAPS_FROM:
            line = predict.saturating_stp(n, n * activity, of["k"], of["p"])
            axes.plot(activity, line, color=colour, linewidth=0.8, alpha=0.6)
    named = largest = select.largest(gains, ["workload", "implementation"])
    if len(largest) > MOST_NAMES:
        named = largest.loc[largest.groupby("workload")["value"].idxmax()]
        named = named[named["value"] > NAMED]
    for e in named.itertuples():
        style.end(axes, e.smact, e.value, labels.job(e.workload, e.implementation), style.INK)
    axes.set(xlabel="SMACT of one job alone", ylabel="throughput gain (STP)", xlim=(0, 1.02))
    style.percent(axes)
    style.ratios(axes, "y")
    axes.legend(loc="upper right")
    title = "What sharing gains, against the SMACT of one job"
    if len(idle := largest[largest["smact"] < LOW]):
        title = f"Below {100 * LOW:.0f} % SMACT gains reach {select.gain(select.best(idle))}"
    return Drawing(title, gains, drawn)


@figure(
    "Throughput gain (STP) against the slowdown of the slowest job, both "
    "relative to one such job alone. Solid: under MPS, dashed: separate processes, dotted: on CUDA "
    "streams. " + select.DRAWN
)
def gain_against_slowdown(estimates: pd.DataFrame) -> Drawing | None:
    """A path for each job and method over the number of jobs."""
    gains = select.sets(select.copies(estimates, "stp"))
    found = select.series(select.beside(gains, estimates, "slowdown_worst"))
    if not found:
        return None
    drawn, axes = style.panel(3.8)
    style.lines(axes, found, x="value_beside")
    axes.plot(1, 1, "o", color=style.INK)
    style.end(axes, 1, 1, "one job alone", style.SOFT)
    axes.set(xlabel="slowdown of the slowest job", ylabel="throughput gain (STP)")
    style.ratios(axes, "x", "y")
    shown = pd.concat(found.values())
    by = shown.groupby(["workload", "implementation", "method"])
    lone = by.filter(lambda own: len(own) == 1)  # no line says its method; of a heap one name
    heaps = [lone["method"], lone["value"].round(1), lone["value_beside"].round()]
    for e in lone.groupby(heaps).head(1).itertuples():
        style.end(axes, e.value_beside, e.value, labels.method(e.method), style.SOFT)
    most = select.best(shown)
    slowdown = f", at a slowdown of {labels.number(most.value_beside)}"
    title = f"{labels.job(most.workload)}: {most.jobs} gain {select.gain(most, slowdown)}"
    return Drawing(title, shown, drawn)


@figure(
    "Throughput of a set under MPS over that of the same set as separate processes. Large marks: "
    "all hosts; small marks: one host each. " + select.DRAWN
)
def mps_over_separate(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each set."""
    found = select.series(select.copies(estimates, "rate_over_naive", method="mps"))
    if not found:
        return None
    shown = select.sets(pd.concat(found.values()))
    rows = list(shown.itertuples())
    drawn, axes = style.rows(
        f"{labels.job(e.workload, e.implementation)}, {e.jobs} jobs" for e in rows
    )
    style.dots(axes, np.arange(len(shown)), shown, **style.look("mps"), zorder=3)
    for place, e in enumerate(rows):
        hosts = table.on_hosts(estimates, e)["value"] if e.hosts > 1 else []
        axes.plot(hosts, [place] * len(hosts), ".", color=style.PALE, markersize=4, zorder=2)
    axes.set_xlabel("samples/s under MPS over separate processes")
    style.ratios(axes, "x")
    gain = labels.range_of(shown["value"])
    return Drawing(f"MPS over separate processes: {gain} times the work", shown, drawn)


@figure(
    "The largest set of each job that leaves the GPU idle at times, without image files. Filled: "
    "S, what kernels side by side gain (without bars). Open: STP, the whole gain; what lies "
    "between comes from filling the idle time."
)
def gaps_and_overlap(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job and method."""
    overlap = select.sets(select.copies(estimates, "s"))
    both = select.beside(overlap, estimates, "stp")
    both = both[both["value_beside"] > SOME * both["value"]]
    if both.empty:
        return None
    shown = select.largest(both, ["workload", "implementation", "method"])
    shown = shown.sort_values("value", ascending=False, ignore_index=True)
    drawn, axes = style.rows(style.set_names(shown))
    for method, own in shown.groupby("method"):
        look = style.look(method)
        whole = own[["value_beside", "low_beside", "high_beside"]]
        whole = whole.rename(columns=lambda column: column.removesuffix("_beside"))
        style.dots(axes, own.index, whole, **look, markerfacecolor="white", zorder=2)
        style.dots(axes, own.index, own.assign(low=np.nan, high=np.nan), **look, zorder=3)
        axes.hlines(own.index, own["value"], own["value_beside"], color=look["color"], alpha=0.35)
    axes.set_xlabel("work per hour relative to one job")
    style.ratios(axes, "x")
    gaps = labels.number((shown["value_beside"] / shown["value"]).max())
    overlap = labels.number(shown["value"].max())
    title = f"Filling gaps gains up to {gaps} times, kernels side by side {overlap}"
    return Drawing(title, shown, drawn)


@figure(
    "Mixes of different jobs. Left: how many times as long each job takes as alone. Right: the "
    "throughput gain of the mix (STP), each job counted relative to itself alone."
)
def mixes(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job of a mix; beside it the gain of the mix."""
    gains = _mixed(table.select(estimates, "stp", window="", job=""))
    slow = _mixed(table.select(estimates, "slowdown", window=""))
    slow = slow[slow["scenario"].isin(gains["scenario"])]
    if gains.empty:
        return None
    names, at, starts = [], {}, []  # at: mix → job → its row
    for mix in dict.fromkeys(zip(gains["scenario"], gains["implementation"], strict=True)):
        starts.append(len(names))
        for job, count in parse_scenario(mix[0]).parts:
            at.setdefault(mix, {})[job] = len(names)
            name = labels.job(job, mix[1]) if len(at[mix]) == 1 else labels.job(job)
            names.append(f"{'' if len(at[mix]) == 1 else '+ '}{count} × {name}")
    drawn, (left, right) = style.panels(1, 2, 0.6 + 0.16 * len(names))
    for method in dict.fromkeys(gains["method"]):
        own = slow[slow["method"] == method]
        rows = [at[e.scenario, e.implementation][e.job] for e in own.itertuples()]
        style.dots(left, rows, own, **style.look(method), label=labels.method(method))
        own = gains[gains["method"] == method]
        rows = [at[e.scenario, e.implementation].values() for e in own.itertuples()]
        middle = [sum(each) / len(each) for each in rows]
        style.dots(right, middle, own, **style.look(method))
    style.rows_named(left, names)
    style.rows_named(right, [""] * len(names))
    left.set_xlabel("slowdown of each job")
    right.set_xlabel("throughput gain (STP) of the mix")
    for axes in (left, right):
        style.ratios(axes, "x")
        for place in starts[1:]:
            axes.axhline(place - 0.5, color=style.PALE, linewidth=0.4)
    style.legend(drawn, left.get_legend_handles_labels()[0])
    best = gains[gains["method"] == "mps"]
    title = "What mixes of different jobs gain, and what each job pays"
    if not best.empty:
        title = f"Under MPS, mixes gain {labels.range_of(best['value'])} times"
        title += " (one host)" if best["hosts"].max() == 1 else ""
    return Drawing(title, pd.concat([gains, slow]), drawn)


def _mixed(rows: pd.DataFrame) -> pd.DataFrame:
    """Of different jobs, without variants, by a method that is drawn."""
    parsed = rows["scenario"].map(parse_scenario)
    wanted = parsed.map(lambda each: each.mixed and not each.variant).astype(bool)
    return rows[wanted & rows["method"].isin(style.METHODS) & rows["value"].notna()]
