"""Verdicts as a page for people, a table and JSON. Every number comes from a finding."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd
from tabulate import tabulate

from analysis import flags
from analysis.claims.findings import Finding, Reported, Result
from analysis.claims.rules import Need
from analysis.claims.verdicts import MEANING, Verdict
from analysis.quantities import quantity
from analysis.views import View
from analysis.words import number_of

_NONE = "-"


@dataclass(frozen=True)
class Head:
    """What the verdicts are of, and by which rules."""

    study: str
    hardware: tuple[str, ...]
    arm: str
    replicates: int
    sources: tuple[str, ...]  # such as `cifar10: real`
    rules: str  # the file of the claims
    commit: str  # of its last change
    sha256: str
    reported: str


def csv_table(results: Sequence[Result], head: Head) -> pd.DataFrame:
    """A row per finding: claim and its verdict, the number with its interval, reported value."""
    rows = []
    for result in results:
        for finding in result.findings:
            estimate, told = finding.estimate, finding.reported[:1]
            rows.append(
                {
                    "claim": result.claim.id,
                    "claim_verdict": str(result.verdict),
                    "claim_why": result.why,
                    "where": finding.where,
                    "what": finding.what,
                    "unit": finding.unit,
                    "rule": finding.rule,
                    "verdict": str(finding.verdict),
                    "mean": estimate.mean if estimate else None,
                    "low": estimate.low if estimate else None,
                    "high": estimate.high if estimate else None,
                    "replicates": estimate.replicates if estimate else 0,
                    "reported": told[0].value if told else None,
                    "reported_status": told[0].status if told else None,
                    "reported_source": told[0].source if told else None,
                    "reported_verdict": str(told[0].verdict) if told else None,
                    "why": finding.why,
                    "flags": finding.flags,
                    "cells": " ".join(sorted({view.cell for view in finding.views})),
                    "rules_commit": head.commit,
                }
            )
    return pd.DataFrame(rows)


def as_json(results: Sequence[Result], head: Head) -> dict:
    """All that is known of every claim, JSON types only."""
    return {
        **asdict(head),
        "claims": [
            {
                "id": result.claim.id,
                "text": result.claim.text,
                "sources": result.claim.sources,
                "arm": result.claim.arm,
                "verdict": str(result.verdict),
                "why": result.why,
                "note": result.claim.note,
                "notes": list(result.notes),
                "findings": [_finding_json(finding) for finding in result.findings],
            }
            for result in results
        ],
    }


def _finding_json(finding: Finding) -> dict:
    return {
        **{key: getattr(finding, key) for key in ("where", "what", "unit", "rule", "why")},
        "verdict": str(finding.verdict),
        "estimate": asdict(finding.estimate) if finding.estimate else None,
        "reported": [asdict(told) | {"verdict": str(told.verdict)} for told in finding.reported],
        "cells": sorted({view.cell for view in finding.views}),
        "flags": flags.split(finding.flags),
    }


def markdown(results: Sequence[Result], head: Head) -> str:
    """The page: what was judged, a short table, what the verdicts mean, a paragraph per claim."""
    verdicts = Counter(result.verdict for result in results)
    counted = [f"{verdicts[v]} {v}" for v in reversed(Verdict) if verdicts[v]]
    hardware = ", ".join(head.hardware) or "nothing measured"
    blocks = number_of(head.replicates, "replicate")
    data = ", ".join(head.sources) or "none"
    lines = [
        "# Claims of the paper, held against what was measured",
        f"{len(results)} claims: {', '.join(counted)}.",
        f"Study {head.study}, {hardware}, arm `{head.arm}`, {blocks}; data: {data}. "
        f"Rules: `{head.rules}`, commit {head.commit} (SHA-256 {head.sha256[:16]}). "
        f"Reported values: `{head.reported}`.",
        _overview(results),
        "Measured: the number that decides, with its 95 % interval; a claim may rest on more. "
        "Its width is pooled over a workload's cells, so that a share's may reach beyond 1. "
        "Reported: the same of the paper, from the first source that has it." + _legend(results),
        "\n".join(f"- **{v}**: {MEANING[v]}." for v in reversed(Verdict) if verdicts[v]),
        *(_paragraph(result) for result in results),
    ]
    return "\n\n".join(lines) + "\n"


def _legend(results: Sequence[Result]) -> str:
    """What the marks behind numbers mean; empty where there are none."""
    found = flags.legend(finding.flags for result in results for finding in result.findings)
    return f" Marks, if any of a number's cells has them: {'; '.join(found)}." if found else ""


def _overview(results: Sequence[Result]) -> str:
    rows = [
        {
            "claim": result.claim.id,
            "what is claimed": result.claim.text,
            "verdict": f"**{result.verdict}**",
            "measured": _measured(result.deciding),
            "reported": _told(result.deciding.reported[0]) if result.deciding.reported else _NONE,
        }
        for result in results
    ]
    return _table(rows)


def _paragraph(result: Result) -> str:
    claim = result.claim
    parts = [f"## {claim.id}: {result.verdict}", claim.text]
    rules = dict.fromkeys(f"{finding.what} {finding.rule}" for finding in result.findings)
    needs = "; ".join(_need(need) for need in claim.needs)
    said = [f"*Holds if:* {'; and '.join(rules)}."]
    said += [f"*Comparable if:* {needs}."] * bool(needs)
    said += [f"*Why:* {result.why}."]
    parts.append(" ".join(said))
    rows = [
        {
            "where": finding.where,
            "what": finding.what,
            "measured": _measured(finding),
            "replicates": finding.estimate.replicates if finding.estimate else _NONE,
            "reported": "; ".join(_told(told, True) for told in finding.reported) or _NONE,
            "verdict": str(finding.verdict),
        }
        for finding in result.findings
        if finding.estimate or finding.reported
    ]
    if rows:
        parts.append(_table(rows))
    notes = [f"{note}." for note in result.notes]
    cells = _cells([view for finding in result.findings for view in finding.views])
    notes += [f"*Cells:* {cells}."] * bool(cells)
    notes += [f"*Note:* {claim.note.rstrip('.')}."] * bool(claim.note)
    if notes:
        parts.append(" ".join(note[0].upper() + note[1:] for note in notes))
    return "\n\n".join(parts)


def _need(need: Need) -> str:
    what = quantity(need.of)
    return f"{what.name} of {need.key().label} is {need.words} {what.unit}".rstrip()


def _measured(finding: Finding) -> str:
    """`1.974 [1.951, 1.997] ~`, with the unit, how its cells ended where that is looked at, and the
    marks of its cells.
    """
    estimate = finding.estimate
    if estimate is None:
        return _NONE
    text = _number(estimate.mean)
    if estimate.low is not None:
        text += f" [{_number(estimate.low)}, {_number(estimate.high)}]"
    told = "; ".join(filter(None, (f"{text} {finding.unit}".rstrip(), finding.ended)))
    return f"{told} {flags.marks(finding.flags)}".rstrip()


def _told(reported: Reported, source: bool = False) -> str:
    """A source's value, with its name; and what our rule says of it, where it does not hold."""
    text = reported.status.replace("_", " ")
    if reported.value is not None:
        text = _number(reported.value)
    if not source:
        return text
    holds = reported.verdict == Verdict.HOLDS
    said = "" if holds else f": by this rule {reported.verdict}"
    return f"{text} ({reported.source}{said})"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _cells(views: Sequence[View]) -> str:
    """`2x_a/faithful/mps r1-r5, …`."""
    replicates = defaultdict(set)
    for view in views:
        replicates[view.cell.rpartition("/")[0]].add(view.block)
    return ", ".join(f"{name} {_ranges(found)}" for name, found in sorted(replicates.items()))


def _ranges(blocks: set[int]) -> str:
    """`r1-r3,r5` for {1, 2, 3, 5}."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return ",".join(f"r{r[0]}" if len(r) == 1 else f"r{r[0]}-r{r[-1]}" for r in runs)


def _table(rows: list[dict]) -> str:
    # Numbers are words already: tabulate must not read and align them again.
    return tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
