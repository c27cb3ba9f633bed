"""A claim, what was measured and what the paper reports → a verdict, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from analysis import flags, reported
from analysis.claims import verdicts
from analysis.claims.comparisons import compare
from analysis.claims.findings import Evidence, Result
from analysis.claims.fitting import check_fit
from analysis.claims.rules import Claim, Need, Status
from analysis.claims.verdicts import Verdict
from analysis.quantities import Measurements, quantity, why_missing
from analysis.views import View, differences, flagged


def gather(views: Iterable[View], values: pd.DataFrame) -> Evidence:
    """The evidence of what was measured (views) and of the paper's values (reported.read)."""
    paper = reported.views(values)
    return Evidence(
        measured=Measurements(views),
        paper={source: Measurements(found) for source, found in paper.items()},
        work=reported.work(values),
    )


def judge(claim: Claim, evidence: Evidence) -> Result:
    """The verdict of a claim by every completed cell, and which of them are suspect."""
    result = _judged(claim, evidence)
    used = [view for finding in result.findings for view in finding.views]
    # A job alone cannot be faster than itself.
    companies = [view for view in used if not view.key.is_baseline]
    notes = [
        f"suspect: {flags.meaning(flag)} in {cells}"
        for flag, among in ((flags.THROTTLED, used), (flags.SUSPECT_BASELINE, companies))
        if (cells := flagged(among, flag))
    ]
    return replace(result, notes=(*result.notes, *notes))


def _judged(claim: Claim, evidence: Evidence) -> Result:
    """Can the claim be tested at all; do the cells compare; what do they say?"""
    findings, notes = [], []
    for test in claim.tests:
        look = check_fit if isinstance(test, Status) else compare
        found, said = look(test, claim.sources, evidence)
        findings += found
        notes += said
    verdict = verdicts.all_of(finding.verdict for finding in findings)
    deciding = next(finding for finding in findings if finding.verdict == verdict)
    why = deciding.why
    used = [view for finding in findings for view in finding.views]
    if used:
        for need in claim.needs:
            used += [view for view in evidence.measured.at(need.key()) if view.completed]
        unmet = [_unmet(need, evidence.measured) for need in claim.needs]
        if apart := [*differences(used), *filter(None, unmet)]:
            verdict, why = Verdict.NOT_COMPARABLE, "; ".join(apart)
    return Result(claim, verdict, why, tuple(findings), deciding, tuple(notes))


def _unmet(need: Need, measured: Measurements) -> str:
    """Why a need is not met; empty if it is."""
    what, key = quantity(need.of), need.key()
    value = measured.mean(what, key)
    if value is None:
        return f"needed to compare: {why_missing(measured, what, key)}"
    if need.admits(value):
        return ""
    unit = f" {what.unit}" if what.unit else ""
    return f"{what.name} of {key.label} is {value:.3g}{unit}, and must be {need.words}{unit}"
