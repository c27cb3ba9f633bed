"""The rule `status`: do sets end out of memory where their jobs' memory says so, and only there?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.claims import verdicts
from analysis.claims.findings import Evidence, Finding, Reported
from analysis.claims.rules import Status
from analysis.claims.verdicts import Verdict
from analysis.quantities import Measurements, quantity, why_missing
from analysis.statistics import Estimate
from analysis.views import Key, alone, statuses

_RULE = "tells the end: out of memory above 1, completed below"
_ENDS = ("completed", "out_of_memory")


def check_fit(
    test: Status, sources: Sequence[str], evidence: Evidence
) -> tuple[list[Finding], list[str]]:
    """A finding per set that must not fit or did not end as it must, and what else was seen.

    That sets which fit complete is no evidence: without one that must not fit, nothing is tested.
    """
    measured = evidence.measured
    keys = test.cells() or [
        key
        for key in measured.cells()
        if key.n > 1 and not key.variant and key.method in test.methods
    ]
    found, notes, needs, close, missing, fitting = [], [], [], [], [], 0
    for key in keys:
        views = [view for view in measured.at(key) if view.status in _ENDS]
        need = _need(key, measured, test.part)
        if isinstance(need, str) or not views:
            lacking = need if isinstance(need, str) else ""
            missing.append(lacking or why_missing(measured, quantity("gain"), key))
            continue
        ended, fits = statuses(views), verdicts.fits(need, test.tolerance)
        told = ", ".join(f"{count}× {status.replace('_', ' ')}" for status, count in ended.items())
        if fits is None:
            notes.append(f"left out: {key.label} needs {need:.2f} of the memory, too close to tell")
            close.append(f"{key.label} needs {need:.2f} of it, too close to tell: {told}")
            continue
        verdict = verdicts.outcome(fits, ended)
        needs.append((need, told if verdict != Verdict.HOLDS else "which fits"))
        if fits and verdict == Verdict.HOLDS:
            fitting += 1
            continue
        found.append(
            Finding(
                where=key.label,
                what=_what(test),
                unit="",
                rule=_RULE,
                verdict=verdict,
                why=f"{key.label}: needs {need:.2f} of the memory; {told}",
                estimate=Estimate(need, None, None, len(views)),
                ended=told,
                reported=tuple(_reported(key, sources, evidence, fits)),
                views=tuple(views),
            )
        )
    if fitting:
        notes.append(f"{fitting} sets that fit completed")
    exceeds = any(finding.estimate.mean > 1 for finding in found)
    if not exceeds and Verdict.CONTRADICTED not in {finding.verdict for finding in found}:
        said = []
        if needs:
            most, end = max(needs)
            said.append(f"the most that was measured needs {most:.2f} of the memory, {end}")
        said += close
        why = "; ".join(said) or next(iter(missing), "the study has no such cell")
        found += [_untested(test, key, why, sources, evidence) for key in test.cells() or [None]]
    return found, notes


def _what(test: Status) -> str:
    if test.part is None:
        return "memory of its jobs alone over the card's"
    return f"memory of a job alone over {test.part:g} of the card's"


def _untested(
    test: Status, key: Key | None, why: str, sources: Sequence[str], evidence: Evidence
) -> Finding:
    reported = tuple(_reported(key, sources, evidence, False)) if key else ()
    where = key.label if key else "every set"
    return Finding(where, _what(test), "", _RULE, Verdict.NOT_TESTABLE, why, reported=reported)


def _need(key: Key, measured: Measurements, part: float | None) -> float | str:
    """What a set's jobs take alone, as a share of the memory there is; or why that is not known.

    With `part`: what its largest job takes of that share of the card.
    """
    memory, capacity = quantity("memory"), quantity("capacity")
    jobs = [alone(name) for name, _ in key.parts]
    sizes = [measured.mean(memory, job) for job in jobs]
    for job, size in zip(jobs, sizes, strict=True):
        if size is None:
            return why_missing(measured, memory, job)
    there = measured.mean(capacity, jobs[0])
    if there is None:
        return why_missing(measured, capacity, jobs[0])
    if part:
        return max(sizes) / (part * there)
    counts = (count for _, count in key.parts)
    return sum(count * size for count, size in zip(counts, sizes, strict=True)) / there


def _reported(
    key: Key, sources: Iterable[str], evidence: Evidence, fits: bool
) -> Iterable[Reported]:
    for source in sources:
        if views := evidence.paper[source].at(key):
            verdict = verdicts.outcome(fits, statuses(views))
            yield Reported(source, None, views[0].status, verdict)
