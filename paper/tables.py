"""The tables of the page on claims: verdicts, and the rules behind them."""

from collections.abc import Iterable

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.report.pages import spelling as as_
from analysis.report.pages.layout import Number
from paper.claims import Judged

VERDICTS = {
    "holds": ("holds", "hold"),
    "agrees": ("agrees at the paper's GRACT", "agree at the paper's GRACT"),
    "contradicted": ("is contradicted", "are contradicted"),
    "depends": ("depends on the host", "depend on the host"),
    "imprecise": ("cannot be decided with this precision",) * 2,
    "not_testable": ("is not testable here", "are not testable here"),
}


def verdicts(judged: Iterable[Judged], estimates: pd.DataFrame) -> pd.DataFrame:
    """A row for each claim: its verdict, the number it rests on first, the paper's, and why."""
    rows = []
    for each in judged:
        every = [cell for test in each.tests for cell in test.cells]
        testable = each.verdict != "not testable"
        first = each.deciding if testable else next((c for c in every if c.reported), None)
        ours, paper = table.get_by_id(estimates, first.ids[0]) if testable else None, ""
        ours = ours and table.ranged(ours, [*table.on_hosts(estimates, ours)["value"]])
        if theirs := first and table.get_by_id(estimates, first.reported):
            done = theirs.quantity == "outcome"
            paper = labels.status(theirs.status) if done else as_.num(theirs)
            paper += f", {theirs.source}"
        rows.append(
            {"claim": f"{each.claim.id}: {each.claim.text}"}
            | {"verdict": each.verdict}
            | {"ours": Number(ours, as_.span), "the paper": paper, "why": each.note}
        )
    return pd.DataFrame(rows)


def rules(judged: Iterable[Judged]) -> pd.DataFrame:
    """A row for each test of a claim, and for each need of it."""
    columns, rows = ["claim", "quantity", "must be", "verdict", "remark"], []
    for each in judged:
        claim = each.claim
        for number, test in enumerate(each.tests):
            remark = "" if number else claim.note
            rows.append([claim.id, test.test.quantity, test.test.rule, test.verdict, remark])
        for need in each.needs:
            on = ", ".join(host or "all hosts" for host in need.met or ())
            met = "not read" if need.met is None else f"met on {on or 'no host'}"
            quantity = f"needs {need.need.quantity}"
            rows.append([claim.id, quantity, need.need.rule, met, need.note])
    return pd.DataFrame(rows, columns=columns)


def verdict_counts(estimates: pd.DataFrame) -> str:
    """`Of 48 claims 9 hold, 5 are contradicted, …`: those of each verdict that there is."""
    found = {word: table.get(estimates, "count", name=f"claims_{word}") for word in VERDICTS}
    parts = [
        f"{as_.count(e)} {VERDICTS[w][int(e.value != 1)]}"
        for w, e in found.items()
        if as_.is_known(e) and e.value
    ]
    every = table.get(estimates, "count", name="claims")
    return f"Of {as_.count(every)} claims {', '.join(parts)}." if parts else ""
