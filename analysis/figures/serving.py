"""Figures of a server, and of a job that is retrained, beside another that trains: latency against
training throughput.
"""

from __future__ import annotations

import pandas as pd

from analysis import estimates as table
from analysis import labels
from analysis.figures import Drawing, figure, style
from workflow.collocation.spec.names import parse_scenario, scenario_id

BOUND = 1.2  # times a server's latency alone: what its users are taken to bear
ENOUGH = 0.95  # of the requests answered, alone and beside: below, latencies hide a queue


@figure(
    "A language model that serves while another job trains. Across: the 99th percentile of the "
    f"time per token over that alone; the line is {BOUND} times. Up: training throughput over that "
    f"alone. Hollow: less than {100 * ENOUGH:g} % of the requests were answered."
)
def serving(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each server, by the method that it shares the GPU with training by."""
    across = "p99 time per token of the server"
    return _against_throughput(estimates, "tpot_over_alone", across, "p99")


@figure(
    "A job that trains on from its last weights when triggered, while another job trains. Across: "
    "the 95th percentile of the delay from trigger to trained over that alone; the line is "
    f"{BOUND} times. Up: throughput of the other over that alone. Hollow: less than "
    f"{100 * ENOUGH:g} % of the triggers were trained for."
)
def retraining(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each such job, which has no tokens, by its method."""
    servers = set(table.of(estimates, "request_goodput", job="*")["job"])
    others = estimates[~estimates["job"].isin(servers - {""})]
    delay = "p95 delay from trigger to trained"
    return _against_throughput(others, "e2el_over_alone", delay, "p95")


def _against_throughput(
    estimates: pd.DataFrame, quantity: str, across: str, short: str
) -> Drawing | None:
    """That quantity of one job of a pair, which is over alone, against the other's throughput.

    The title names the set that keeps most training by the lower end of its interval, among those
    within BOUND by the upper end of theirs, and tells that lower end.
    """
    found = []
    for e in table.of(estimates, quantity, job="*").itertuples():
        jobs = [name for name, _ in parse_scenario(e.scenario).parts]
        if len(jobs) != 2:
            continue
        [trained] = [name for name in jobs if name != e.job]
        where = {"scenario": e.scenario, "implementation": e.implementation, "method": e.method}
        at = where | {"scenario": scenario_id({e.job: 1}), "method": "naive"}
        slowed = table.get(estimates, "slowdown", **where, job=trained)
        places = where | {"job": e.job}, at
        shares = [table.get(estimates, "answered_share", **place) for place in places]
        if slowed:
            y = {f"y{end}": 1 / getattr(slowed, of) for end, of in ENDS.items()}
            full = all(share.value >= ENOUGH for share in shares if share)
            found.append(e._asdict() | y | {"full": full})
    if not found:
        return None
    rows = pd.DataFrame(found)
    drawn, axes = style.panel(2.6)
    for e in rows.itertuples():
        color = style.look(e.method)["color"]
        fill = color if e.full else "white"
        axes.hlines(e.y, e.low, e.high, color=color, linewidth=0.8)
        axes.vlines(e.value, e.y_low, e.y_high, color=color, linewidth=0.8)
        axes.plot(e.value, e.y, **style.look(e.method), markerfacecolor=fill, linestyle="")
        said, how = f"{labels.job(e.job)}, {labels.method(e.method)}", "offset points"
        axes.annotate(said, (e.value, e.y), (4, 2), textcoords=how, fontsize=style.SMALL)
    axes.axvline(BOUND, color=style.PALE, linewidth=0.8, linestyle="--")
    axes.set_xlabel(f"{across}, over alone")
    axes.set_ylabel("training throughput, over alone")
    axes.set_ylim(bottom=0)
    title = f"Training throughput against {across}"
    within = rows[rows["full"] & (rows["high"] <= BOUND) & rows["y_low"].notna()]
    if len(within):
        best = within.loc[within["y_low"].idxmax()]
        title = f"{labels.job(best['job'])}, {labels.method(best['method'])}: "
        title += f"training ≥{100 * best['y_low']:.0f} % within {BOUND}× {short}"
    return Drawing(title, rows, drawn)


ENDS = {"": "value", "_low": "high", "_high": "low"}  # of a slowdown, which training is 1 over
