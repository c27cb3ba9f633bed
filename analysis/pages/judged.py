"""The tables of claims: verdicts, rules, and what was changed after data had been seen."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis import estimates as table
from analysis import labels
from analysis.claims import Judged
from analysis.estimates import Row
from analysis.pages import spelling as as_
from analysis.pages.spelling import known
from analysis.pages.tables import Number


def verdicts(judged: Iterable[Judged], estimates: pd.DataFrame) -> pd.DataFrame:
    """A row for each claim: its verdict, the number it rests on first, the paper's, and why."""
    rows = []
    for each in judged:
        ours, theirs = _decided(each, estimates)
        ours = None if each.verdict == "not testable" else ours
        rows.append(
            {"claim": f"{each.claim.id}: {each.claim.text}"}
            | {"verdict": each.verdict + ", post hoc" * each.post_hoc}
            | {"ours": Number(ours, as_.span), "the paper": _reported(theirs), "why": each.note}
        )
    return pd.DataFrame(rows)


def _decided(judged: Judged, estimates: pd.DataFrame) -> tuple[Row | None, Row | None]:
    """The number that a verdict rests on first, and the paper's number beside it."""
    every = [cell for test in judged.tests for cell in test.cells]
    cells = [cell for cell in every if cell.ids] or every
    deciding = [cell for cell in cells if cell.verdict == judged.verdict] or cells
    chosen = min(deciding, key=lambda cell: not cell.reported, default=None)
    if chosen is None:
        return None, None
    ours = table.at(estimates, chosen.ids[0]) if chosen.ids else None
    return ours, table.at(estimates, chosen.reported)


def _reported(e: Row | None) -> str:
    """`1.98, SUIT25`; of what a set did, its words."""
    if e is None:
        return ""
    number = labels.status(e.status) if e.quantity == "outcome" else as_.num(e)
    return f"{number}, {e.source}"


def rules(judged: Iterable[Judged]) -> pd.DataFrame:
    """A row for each test of a claim, and for each need of it."""
    rows = []
    for each in judged:
        first = {"claim": each.claim.id}
        for place, test in enumerate(each.tests):
            rows.append(
                first
                | {"quantity": test.test.quantity, "must be": test.test.rule}
                | {"verdict": test.verdict, "remark": "" if place else each.claim.note}
            )
        for need in each.needs:
            met = "not read" if need.met is None else f"met on {', '.join(need.met) or 'no host'}"
            rows.append(
                first
                | {"quantity": f"needs {need.need.quantity}", "must be": need.need.rule}
                | {"verdict": met, "remark": need.note}
            )
    return pd.DataFrame(rows)


def changed(judged: Iterable[Judged]) -> pd.DataFrame:
    """Claims whose rule was changed after data had been seen: both verdicts, and why."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in judged:
        if change := each.claim.changed:
            verdicts = f"{change.before} → {each.verdict}"
            alike.setdefault((change.why, verdicts), []).append(each.claim.id)
    return pd.DataFrame(
        [
            {"claims": ", ".join(ids), "old → new verdict": verdicts, "why": why}
            for (why, verdicts), ids in alike.items()
        ]
    )


def counted(estimates: pd.DataFrame) -> str:
    """`Of 48 claims 9 hold, 5 are contradicted, …`: those of each verdict that there is."""
    words = {
        "holds": "hold",
        "contradicted": "are contradicted",
        "depends_on_the_host": "depend on the host",
        "too_imprecise": "cannot be decided with this precision",
        "not_comparable": "are not comparable",
        "not_testable": "are not testable here",
    }
    found = {word: table.get(estimates, "count", name=f"claims_{word}") for word in words}
    parts = [f"{as_.count(e)} {words[w]}" for w, e in found.items() if known(e) and e.value]
    every = table.get(estimates, "count", name="claims")
    return f"Of {as_.count(every)} claims {', '.join(parts)}." if parts else ""
