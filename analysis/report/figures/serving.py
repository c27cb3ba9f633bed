"""Figures of a job that answers requests or triggers beside another that trains."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis import labels
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.estimates.table import Row, place
from analysis.report.figures import Drawing, figure, style
from workflow.collocation.study.names import parse_scenario, scenario_id

BOUND = 1.2  # times a server's latency alone: what its users are assumed to accept
ENOUGH = 0.95  # of the requests answered, alone and beside: below, latencies hide a queue


@figure(
    "A language model that serves while another job trains, which has the limit or the lower "
    f"priority. Dashed: {BOUND} times the time per token alone; dotted: training alone. Hollow: "
    f"less than {100 * ENOUGH:g} % of the requests were answered. †: training's losses differ from "
    "those alone."
)
def serving(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each server and each method by which it shares the GPU with training."""
    return _against_training(estimates, "p99_tpot_ms", "p99 time per token", "p99")


@figure(
    "A job that trains on from its last weights when triggered, while another trains, which has "
    f"the limit or the lower priority. Dashed: {BOUND} times the delay alone; dotted: the other "
    f"alone. Hollow: less than {100 * ENOUGH:g} % of the triggers were trained for. †: losses "
    "differ from those alone."
)
def retraining(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each job that answers triggers, which have no tokens, and each method."""
    servers = set(table.select(estimates, "request_goodput", job="*")["job"])
    without_servers = estimates[~estimates["job"].isin(servers - {""})]
    return _against_training(
        without_servers, "p95_e2el_ms", "p95 delay from trigger to trained", "p95"
    )


def _against_training(
    estimates: pd.DataFrame, latency: str, latency_title: str, percentile: str
) -> Drawing | None:
    """A latency (quantity, ms) of one job of a pair, against the training rate of the other."""
    latencies = table.select(estimates, latency, job="*").itertuples()
    points = [_point(estimates, row) for row in latencies]
    rows = pd.DataFrame(list(filter(None, points)))
    if rows.empty:
        return None
    rows = rows.astype({"bound": float, "most": float})
    rows = rows.dropna(subset=["value", "y"]).sort_values("value")
    if rows.empty:
        return None
    several_servers, usual_job = rows["job"].nunique() > 1, rows["trained"].mode()[0]
    picture, axes = style.panel(3.6)
    for row in rows.itertuples():
        _draw_point(axes, row, with_rate=several_servers)
    _draw_paths(axes, rows)
    for bound in rows["bound"].dropna().unique():
        axes.axvline(bound, color=style.PALE, linewidth=0.8, linestyle="--")
    for most in rows["most"].dropna().unique():
        axes.axhline(most, color=style.PALE, linewidth=0.8, linestyle=":")
    remark = " (numbers: requests/s)" if several_servers else ""
    axes.set_xlabel(f"{latency_title}, ms{remark}")
    remark = ", if no other is named" if rows["trained"].nunique() > 1 else ""
    axes.set_ylabel(f"{labels.job(usual_job)}{remark}, samples/s")
    axes.set_xlim(0, 1.2 * rows[["value", "high", "bound"]].max(axis=None))
    axes.set_ylim(bottom=0)
    return Drawing(_title(rows, latency_title, percentile), rows, picture)


def _point(estimates: pd.DataFrame, latency: Row) -> dict | None:
    """A latency, and of the other job of a pair the rate (`y`); None if that is not known.

    bound: on the latency. most: rate of the other job alone. full: whether requests were answered.
    """
    jobs = [name for name, _ in parse_scenario(latency.scenario).parts]
    if len(jobs) != 2:
        return None
    [trained] = [name for name in jobs if name != latency.job]
    rate = table.get(estimates, "job_rate", **place(latency), job=trained)
    if rate is None:
        return None
    server_alone = place(latency) | {"method": "naive", "scenario": scenario_id({latency.job: 1})}
    trained_alone = server_alone | {"scenario": scenario_id({trained: 1})}
    latency_alone = table.get(estimates, latency.quantity, **server_alone)
    rate_alone = table.get(estimates, "rate", **trained_alone)
    answered = [
        table.get(estimates, "answered_share", **server_alone),
        table.get(estimates, "answered_share", **place(latency), job=latency.job),
    ]
    return latency._asdict() | {
        "trained": trained,
        "y": rate.value,
        "y_low": rate.low,
        "y_high": rate.high,
        "bound": BOUND * latency_alone.value if latency_alone else None,
        "most": rate_alone.value if rate_alone else None,
        "full": all(share.value >= ENOUGH for share in answered if share),
    }


def _draw_point(axes: Axes, row: tuple, with_rate: bool) -> None:
    """Draw a point with the bars of both numbers; with_rate: and the server's requests/s."""
    look = style.look(row.method)
    colour = look["color"]
    axes.hlines(row.y, row.low, row.high, color=colour, linewidth=0.8)
    axes.vlines(row.value, row.y_low, row.y_high, color=colour, linewidth=0.8)
    fill = colour if row.full else "white"
    axes.plot(row.value, row.y, **look, markerfacecolor=fill, linestyle="")
    if with_rate:
        rate = labels.job(row.job).removeprefix("server, ").removesuffix(" requests/s")
        above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
        axes.annotate(rate, (row.value, row.y), **above, color=colour, size=style.SMALL)


def _draw_paths(axes: Axes, rows: pd.DataFrame) -> None:
    """Join the points of a server at several request rates, and name each path at its end."""
    usual_job, usual_implementation = rows["trained"].mode()[0], rows["implementation"].mode()[0]
    server = rows["job"].str.replace(r"\d+", "", regex=True)
    paths = rows.groupby(["implementation", "method", "trained", server], sort=False)
    for (implementation, method, trained, _), points in paths:
        axes.plot(points["value"], points["y"], color=style.PALE, linewidth=0.8, zorder=1)
        name = labels.method(method)
        if trained != usual_job:
            name += f", {labels.job(trained)}"
        if implementation != usual_implementation:
            name += f", {labels.implementation(implementation)}"
        if any(flags.LOSSES_DIFFER in flags.split(flagged) for flagged in points["flags"]):
            name += " †"
        end = points.loc[points["value"].idxmax()]
        style.name_point(axes, end["value"], end["y"], name, style.look(method)["color"])


def _title(rows: pd.DataFrame, latency_title: str, percentile: str) -> str:
    """Name the set that keeps most training while the latency is within its bound.

    The upper end of the latency's interval must be within the bound, and the lower end of the
    training rate counts. What was measured once, or on few hosts, has no interval and decides
    nothing.
    """
    decided = rows[~rows["spread"].isin([table.NONE, table.RANGE])]
    within = decided[decided["full"] & (decided["high"] <= decided["bound"])]
    training = (within["y_low"] / within["most"]).dropna()
    if len(training):
        best = within.loc[training.idxmax()]
        return (
            f"{labels.job(best['job'])}, {labels.method(best['method'])}: "
            f"training ≥{100 * training.max():.0f} % within {BOUND}× {percentile}"
        )
    if not rows["bound"].notna().any():
        return f"Training against {latency_title}"
    none_within = len(decided) and (decided["low"] > decided["bound"]).all()
    verdict = "No method keeps" if none_within else "Undecided whether a method keeps"
    return f"{verdict} {percentile} within {BOUND}× alone"
