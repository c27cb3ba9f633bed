"""The figure of mixes: what each job pays, and what the set gains."""

import pandas as pd

from analysis import estimates as table
from analysis import labels
from analysis.figures import Drawing, figure, style
from workflow.collocation.spec.names import parse_scenario


@figure(
    "Mixes of different jobs. Left: how many times as long each job takes as alone. Right: the "
    "throughput gain of the mix (STP), each job counted relative to itself alone."
)
def mixes(estimates: pd.DataFrame) -> Drawing | None:
    """A row for each job of a mix; beside it the gain of the mix."""
    gains = _mixed(table.of(estimates, "stp", window="", job=""))
    slow = _mixed(table.of(estimates, "slowdown", window=""))
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
