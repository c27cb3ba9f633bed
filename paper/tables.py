"""The tables of the page on claims: verdicts, and the rules behind them."""

from collections.abc import Iterable

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.report.pages import spelling
from analysis.report.pages.layout import Number
from paper.verdicts import ClaimVerdict, Verdict

# Verdict, as the names of estimates end → what one claim does, and what several do.
_VERBS = {
    "holds": ("holds", "hold"),
    "agrees": ("agrees at the paper's GRACT", "agree at the paper's GRACT"),
    "contradicted": ("is contradicted", "are contradicted"),
    "depends": ("depends on the host", "depend on the host"),
    "imprecise": ("cannot be decided with this precision",) * 2,
    "not_testable": ("is not testable here", "are not testable here"),
}


def verdict_table(judgements: Iterable[ClaimVerdict], estimates: pd.DataFrame) -> pd.DataFrame:
    """A row for each claim: its verdict, the number it rests on first, the paper's, and why."""
    rows = []
    for judgement in judgements:
        rows.append(
            {
                "claim": f"{judgement.claim.id}: {judgement.claim.text}",
                "verdict": judgement.verdict,
                "ours": Number(decisive_number(judgement, estimates), spelling.span),
                "the paper": _reported(judgement, estimates),
                "why": judgement.reason,
            }
        )
    return pd.DataFrame(rows)


def decisive_number(judgement: ClaimVerdict, estimates: pd.DataFrame) -> table.Row | None:
    """The number that a verdict rests on, with the range of its hosts; None if not testable."""
    if judgement.verdict == Verdict.NOT_TESTABLE:
        return None
    number = table.get_by_id(estimates, judgement.deciding.estimate_ids[0])
    return table.ranged(number, [*table.on_hosts(estimates, number)["value"]])


def _reported(judgement: ClaimVerdict, estimates: pd.DataFrame) -> str:
    """The paper's number beside ours, with its source: `1.98, SUIT25`."""
    evidence = judgement.deciding
    if judgement.verdict == Verdict.NOT_TESTABLE:
        sets = [evidence for test in judgement.tests for evidence in test.sets]
        evidence = next((one_set for one_set in sets if one_set.reported_id), None)
    number = table.get_by_id(estimates, evidence.reported_id) if evidence else None
    if number is None:
        return ""
    is_outcome = number.quantity == "outcome"
    text = labels.status(number.status) if is_outcome else spelling.num(number)
    return f"{text}, {number.source}"


def rule_table(judgements: Iterable[ClaimVerdict]) -> pd.DataFrame:
    """A row for each test of a claim, and for each of its needs."""
    columns, rows = ["claim", "quantity", "must be", "verdict", "remark"], []
    for judgement in judgements:
        name, remark = judgement.claim.id, judgement.claim.note
        for test in judgement.tests:
            rows.append([name, test.test.quantity, test.test.rule, test.verdict, remark])
            remark = ""  # once for each claim
        for reading in judgement.needs:
            need, met = reading.need, "not read"
            if reading.hosts is not None:
                hosts = ", ".join(host or "all hosts" for host in reading.hosts)
                met = f"met on {hosts or 'no host'}"
            rows.append([name, f"needs {need.quantity}", need.rule, met, reading.note])
    return pd.DataFrame(rows, columns=columns)


def verdict_counts(estimates: pd.DataFrame) -> str:
    """`Of 48 claims 9 hold, 5 are contradicted, …`: those of each verdict that there is."""
    parts = []
    for verdict, (singular, plural) in _VERBS.items():
        number = table.get(estimates, "count", name=f"claims_{verdict}")
        if spelling.is_known(number) and number.value:
            parts.append(f"{spelling.count(number)} {singular if number.value == 1 else plural}")
    total = table.get(estimates, "count", name="claims")
    return f"Of {spelling.count(total)} claims {', '.join(parts)}." if parts else ""
