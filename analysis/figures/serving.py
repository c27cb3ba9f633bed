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


@figure(
    "A language model that serves while another job trains. Across: the 99th percentile of the "
    f"time per token over that alone; the line is {BOUND} times. Up: training throughput over that "
    "alone."
)
def serving(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each server, by the method that it shares the GPU with training by."""
    return _against_throughput(
        estimates, "p99_tpot_ms", "p99 time per token of the server", "the server's p99"
    )


@figure(
    "A job that trains on from its last weights when triggered, while another job trains. Across: "
    "the 95th percentile of the delay from trigger to trained over that alone; the line is "
    f"{BOUND} times. Up: throughput of the other over that alone."
)
def retraining(estimates: pd.DataFrame) -> Drawing | None:
    """A point for each such job, which has no tokens, by its method."""
    servers = table.of(estimates, "p99_tpot_ms", job="*")["job"]
    others = estimates[~estimates["job"].isin({*servers} - {""})]
    delay = "p95 delay from trigger to trained"
    return _against_throughput(others, "p95_e2el_ms", delay, "the p95 delay")


def _against_throughput(
    estimates: pd.DataFrame, quantity: str, across: str, short: str
) -> Drawing | None:
    """That quantity of one job of a pair over its own alone, against the other's throughput."""
    found = []
    for e in table.of(estimates, quantity, job="*").itertuples():
        jobs = [name for name, _ in parse_scenario(e.scenario).parts]
        if len(jobs) != 2:
            continue
        [trained] = [name for name in jobs if name != e.job]
        where = {"scenario": e.scenario, "implementation": e.implementation, "method": e.method}
        at = where | {"scenario": scenario_id({e.job: 1}), "method": "naive"}
        alone = table.get(estimates, quantity, **at)
        slowed = table.get(estimates, "slowdown", **where, job=trained)
        if alone and slowed:
            x = {f"x{end}": getattr(e, of) / alone.value for end, of in ENDS.items()}
            y = {f"y{end}": 1 / getattr(slowed, of) for end, of in ENDS.items()}
            found.append(e._asdict() | x | y)
    if not found:
        return None
    rows = pd.DataFrame(found)
    drawn, axes = style.panel(2.6)
    for method, own in rows.groupby("method", sort=False):
        look = style.look(method)
        axes.plot(own["x"], own["y"], look["marker"], color=look["color"])
        axes.hlines(own["y"], own["x_low"], own["x_high"], color=look["color"], linewidth=0.8)
        axes.vlines(own["x"], own["y_low"], own["y_high"], color=look["color"], linewidth=0.8)
        for e in own.itertuples():
            said, how = f"{labels.job(e.job)}, {labels.method(method)}", "offset points"
            axes.annotate(said, (e.x, e.y), (4, 2), textcoords=how, fontsize=style.SMALL)
    axes.axvline(BOUND, color=style.PALE, linewidth=0.8, linestyle="--")
    axes.set_xlabel(f"{across}, over alone")
    axes.set_ylabel("training throughput, over alone")
    axes.set_ylim(bottom=0)
    best = 100 * rows.loc[rows["x"] <= BOUND, "y"].max()
    title = f"Training keeps {best:.0f} % within {BOUND} times {short} alone"
    if pd.isna(best):
        title = f"No set keeps {short} within {BOUND} times alone"
    return Drawing(title, rows, drawn)


ENDS = {"": "value", "_low": "low", "_high": "high"}
