"""Figures of a server, and of a job that is retrained, beside another that trains: latency against
training throughput.
"""

from __future__ import annotations

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.report.figures import Drawing, figure, style
from workflow.collocation.study.names import parse_scenario, scenario_id

BOUND = 1.2  # times a server's latency alone: what its users are taken to bear
ENOUGH = 0.95  # of the requests answered, alone and beside: below, latencies hide a queue


@figure(
    "A language model that serves while another job trains, which has the limit or the lower "
    f"priority. Dashed: {BOUND} times the time per token alone; dotted: training alone. Hollow: "
    f"less than {100 * ENOUGH:g} % of the requests were answered. †: training's losses differ from "
    "those alone."
)
def serving(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each server, by the method that it shares the GPU with training by."""
    return _against_training(estimates, "p99_tpot_ms", "p99 time per token", "p99")


@figure(
    "A job that trains on from its last weights when triggered, while another trains, which has "
    f"the limit or the lower priority. Dashed: {BOUND} times the delay alone; dotted: the other "
    f"alone. Hollow: less than {100 * ENOUGH:g} % of the triggers were trained for. †: losses "
    "differ from those alone."
)
def retraining(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each such job, which has no tokens, by its method."""
    servers = set(table.select(estimates, "request_goodput", job="*")["job"])
    others = estimates[~estimates["job"].isin(servers - {""})]
    return _against_training(others, "p95_e2el_ms", "p95 delay from trigger to trained", "p95")


def _against_training(
    estimates: pd.DataFrame, latency: str, across: str, short: str
) -> Drawing | None:
    """A latency of one job of a pair against the other's rate.

    The title names the set that keeps most training by the lower end of its interval, among those
    whose latency's upper end is within BOUND, and tells that lower end.
    """
    found = []
    for e in table.select(estimates, latency, job="*").itertuples():
        jobs = [name for name, _ in parse_scenario(e.scenario).parts]
        if len(jobs) != 2:
            continue
        [trained] = [name for name in jobs if name != e.job]
        where = {"implementation": e.implementation, "method": e.method}
        alone = where | {"method": "naive", "scenario": scenario_id({e.job: 1})}
        where |= {"scenario": e.scenario}
        rate = table.get(estimates, "job_rate", **where, job=trained)
        if rate is None:
            continue
        best = table.get(estimates, "rate", **alone | {"scenario": scenario_id({trained: 1})})
        least = table.get(estimates, latency, **alone)
        shares = [
            table.get(estimates, "answered_share", **at) for at in (alone, where | {"job": e.job})
        ]
        about = {"trained": trained, "y": rate.value, "y_low": rate.low, "y_high": rate.high}
        about |= {"bound": BOUND * least.value if least else None, "most": best and best.value}
        about["full"] = all(share.value >= ENOUGH for share in shares if share)
        found.append(e._asdict() | about)
    if not found:
        return None
    rows = pd.DataFrame(found).astype({"bound": float, "most": float})
    rows = rows.dropna(subset=["value", "y"]).sort_values("value")
    if rows.empty:
        return None
    usual, servers = rows["trained"].mode()[0], rows["job"].nunique() > 1
    written = rows["implementation"].mode()[0]
    drawn, axes = style.panel(3.6)
    for e in rows.itertuples():
        color = style.look(e.method)["color"]
        fill = color if e.full else "white"
        axes.hlines(e.y, e.low, e.high, color=color, linewidth=0.8)
        axes.vlines(e.value, e.y_low, e.y_high, color=color, linewidth=0.8)
        axes.plot(e.value, e.y, **style.look(e.method), markerfacecolor=fill, linestyle="")
        if servers:
            rate = labels.job(e.job).removeprefix("server, ").removesuffix(" requests/s")
            where = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
            axes.annotate(rate, (e.value, e.y), **where, color=color, size=style.SMALL)
    rates_apart = rows["job"].str.replace(r"\d+", "", regex=True)  # a server at several rates
    by = ["implementation", "method", "trained", rates_apart]
    for (how, method, trained, _), points in rows.groupby(by, sort=False):
        color = style.look(method)["color"]
        axes.plot(points["value"], points["y"], color=style.PALE, linewidth=0.8, zorder=1)
        said = labels.method(method) + f", {labels.job(trained)}" * (trained != usual)
        said += f", {labels.implementation(how)}" * (how != written)
        differ = any(flags.LOSSES_DIFFER in flags.split(told) for told in points["flags"])
        last = points.loc[points["value"].idxmax()]
        style.end(axes, last["value"], last["y"], said + " †" * differ, color)
    for bound in rows["bound"].dropna().unique():
        axes.axvline(bound, color=style.PALE, linewidth=0.8, linestyle="--")
    for most in rows["most"].dropna().unique():
        axes.axhline(most, color=style.PALE, linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"{across}, ms" + " (numbers: requests/s)" * servers)
    others = ", if no other is named" * (rows["trained"].nunique() > 1)
    axes.set_ylabel(f"{labels.job(usual)}{others}, samples/s")
    axes.set_xlim(0, 1.2 * rows[["value", "high", "bound"]].max(axis=None))
    axes.set_ylim(bottom=0)
    title = f"Training against {across}"
    # What was measured once, or on few hosts, has no interval, and decides nothing.
    decided = rows[~rows["spread"].isin([table.NONE, table.RANGE])]
    if rows["bound"].notna().any():
        known = "Undecided whether a method keeps"
        if len(decided) and (decided["low"] > decided["bound"]).all():
            known = "No method keeps"
        title = f"{known} {short} within {BOUND}× alone"
    within = decided[decided["full"] & (decided["high"] <= decided["bound"])]
    kept = (within["y_low"] / within["most"]).dropna()
    if len(kept):
        best = within.loc[kept.idxmax()]
        title = f"{labels.job(best['job'])}, {labels.method(best['method'])}: "
        title += f"training ≥{100 * kept.max():.0f} % within {BOUND}× {short}"
    return Drawing(title, rows, drawn)
