"""The figure of a job that answers requests beside another that trains."""

from __future__ import annotations

import re

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
    "A language model that answers requests while another job trains, which has the limit or the "
    "lower priority. Numbers: requests/s. Dashed: "
    f"{BOUND} times the time per token alone; dotted: training alone. Hollow: the GPU was at its "
    f"power limit, at times or always. Grey: less than {100 * ENOUGH:g} % of the requests were "
    "answered. †: training's losses differ from those alone."
)
def serving(estimates: pd.DataFrame) -> Drawing | None:
    """A panel for each training job, a mark for each server and method of sharing the GPU."""
    latencies = table.select(estimates, "p99_tpot_ms", job="*").itertuples()
    points = [_point(estimates, row) for row in latencies]
    rows = pd.DataFrame(list(filter(None, points)))
    if rows.empty:
        return None
    rows = rows.astype({"bound": float, "most": float})
    rows = rows.dropna(subset=["value", "y"]).sort_values("value")
    if rows.empty:
        return None
    jobs = list(dict.fromkeys(zip(rows["trained"], rows["implementation"], strict=True)))
    picture, panels = style.panels(1, len(jobs), 2.8)
    left = 0.8 * rows[["value", "low", "bound"]].min(axis=None)
    right = 1.05 * rows[["value", "high", "bound"]].max(axis=None)
    top = 1.1 * rows[["y", "y_high", "most"]].max(axis=None)
    for axes, (trained, implementation) in zip(panels, jobs, strict=True):
        beside = (rows["trained"] == trained) & (rows["implementation"] == implementation)
        for row in rows[beside].itertuples():
            _draw_point(axes, row)
        for bound in rows["bound"][beside].dropna().unique():
            axes.axvline(bound, color=style.PALE, linewidth=0.8, linestyle="--", zorder=0)
        for most in rows["most"][beside].dropna().unique():
            axes.axhline(most, color=style.PALE, linewidth=0.8, linestyle=":", zorder=0)
        axes.set(title=labels.job(trained, implementation), xlim=(left, right), ylim=(0, top))
        axes.set_xlabel("p99 time per token, ms")
    panels[0].set_ylabel("training, samples/s")
    style.explain(picture, rows["method"])
    return Drawing(_title(rows), rows, picture)


def _point(estimates: pd.DataFrame, latency: Row) -> dict | None:
    """A latency, and of the other job of a pair the rate (`y`); None if that is not known.

    bound: on the latency. most: rate of the other job alone. full: whether requests were
    answered.
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


def _draw_point(axes: Axes, row: tuple) -> None:
    """Draw a mark, the bars of both numbers, and above it the server's requests/s."""
    look = style.look(row.method)
    if not row.full:
        look["color"] = style.PALE
    axes.hlines(row.y, row.low, row.high, color=look["color"], linewidth=0.8, zorder=1)
    axes.vlines(row.value, row.y_low, row.y_high, color=look["color"], linewidth=0.8, zorder=1)
    marked = flags.split(row.flags)
    fill = "white" if flags.POWER_CAPPED in marked else look["color"]
    axes.plot(row.value, row.y, linestyle="", markerfacecolor=fill, **look)
    name = re.search(r"\d+", labels.job(row.job)).group()
    if flags.LOSSES_DIFFER in marked:
        name += "†"
    above = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
    axes.annotate(name, (row.value, row.y), color=style.INK, size=style.SMALL, **above)


def _title(rows: pd.DataFrame) -> str:
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
            f"training ≥{100 * training.max():.0f} % within {BOUND}× p99"
        )
    if not rows["bound"].notna().any():
        return "Training against p99 time per token"
    none_within = len(decided) and (decided["low"] > decided["bound"]).all()
    verdict = "No method keeps" if none_within else "Undecided whether a method keeps"
    return f"{verdict} p99 within {BOUND}× alone"
