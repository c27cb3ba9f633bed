"""The rules that look at one number of a set of jobs: what that number is, and its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from analysis.claims import verdicts
from analysis.claims.findings import Evidence, Finding, Reported
from analysis.claims.rules import Additive, Equal, Greater, Less, Order, Saturates
from analysis.claims.verdicts import Above, Below, Verdict, Within
from analysis.quantities import Measurements, Quantity, quantity, why_missing
from analysis.views import Key, alone


@dataclass(frozen=True)
class Comparison:
    """A number of a set of jobs, over that of another or over its jobs alone, and its bounds."""

    what: Quantity
    key: Key
    bounds: Above | Below | Within
    over: Key | None = None
    parts: bool = False

    @property
    def references(self) -> list[Key]:
        """What the number is divided by."""
        if self.parts:
            return [alone(name) for name, _ in self.key.parts]
        return [self.over] if self.over else []

    @property
    def refers_to(self) -> list[Key]:
        """All that it is held against: its references and, of a relative number, its jobs alone."""
        jobs = [alone(name) for name, _ in self.key.parts] if self.what.relative else []
        return list(dict.fromkeys([*self.references, *jobs]))

    @property
    def where(self) -> str:
        """For people: `7× a, mps over naive`."""
        if self.parts:
            return f"{self.key.label} over its jobs alone"
        if self.over is None:
            return self.key.label
        same_set = self.over.parts == self.key.parts
        return f"{self.key.label} over {self.over.method if same_set else self.over.label}"

    def missing(self, measured: Measurements) -> str:
        """Why it cannot be made, in words; empty where it can."""
        if measured.values(self.what, self.key, self.over, self.parts):
            return ""
        reasons = (why_missing(measured, self.what, key) for key in (self.key, *self.references))
        unpaired = f"{self.where}: never measured on one GPU in one block"
        return next((reason for reason in reasons if reason), unpaired)


def comparisons(test, work: Mapping[str, Mapping[str, float]]) -> list[Comparison]:
    """The numbers that a test looks at, and the bounds of each; any rule but `status`."""
    if isinstance(test, Greater | Less | Equal):
        what, bounds = quantity(test.of, test.member, work.get(test.work)), _bounds(test)
        return [
            Comparison(what, key, bounds, test.over and replace(key, method=test.over))
            for key in test.cells()
        ]
    gain = quantity("gain")
    if isinstance(test, Order):
        return [
            Comparison(
                gain,
                Key.of(each, better, test.variant),
                Above(1 + test.margin),
                Key.of(each, worse, test.variant),
            )
            for each in test.sets()
            for better, worse in zip(test.methods, test.methods[1:], strict=False)
        ]
    if isinstance(test, Saturates):
        few, many = test.counts
        bounds = Below(test.growth(test.share), test.growth(test.contradicted_share))
        return [
            Comparison(gain, Key.of({name: many}, method), bounds, Key.of({name: few}, method))
            for name in test.workloads
            for method in test.methods
        ]
    assert isinstance(test, Additive)
    bounds = Within(test.margin)
    return [Comparison(quantity("memory"), key, bounds, parts=True) for key in test.cells()]


def _bounds(test: Greater | Less | Equal) -> Above | Below | Within:
    if isinstance(test, Equal):
        return Within(test.margin)
    return (Above if isinstance(test, Greater) else Below)(test.bound, test.neutral)


def compare(test, sources: Iterable[str], evidence: Evidence) -> tuple[list[Finding], list[str]]:
    """A finding per number, and what was left out: workloads that are none of the test's business
    (`where`) by what they read alone. Where that was not read, the number cannot be tested.
    """
    numbers, where = comparisons(test, evidence.work), getattr(test, "where", None)
    if where is None:
        return [_finding(number, sources, evidence) for number in numbers], []
    found, notes = [], []
    for number in numbers:
        what, key = quantity(where.of), alone(number.key.parts[0][0])
        value = evidence.measured.mean(what, key)
        if value is None:
            found.append(_untested(number, why_missing(evidence.measured, what, key)))
        elif where.admits(value):
            found.append(_finding(number, sources, evidence))
        else:
            notes.append(f"left out: {key.label} reads {value:.3g} {what.name}")
    if not found:
        why = f"no workload reads {where.words} {quantity(where.of).name} alone"
        rule = numbers[0].bounds.words
        found = [Finding("", numbers[0].what.name, "", rule, Verdict.NOT_TESTABLE, why)]
    return found, notes


def _untested(number: Comparison, why: str) -> Finding:
    words = number.bounds.words
    return Finding(number.where, number.what.name, "", words, Verdict.NOT_TESTABLE, why)


def _finding(number: Comparison, sources: Iterable[str], evidence: Evidence) -> Finding:
    what, key, bounds, measured = number.what, number.key, number.bounds, evidence.measured
    reported = []
    for source in sources:
        for _, value in evidence.paper[source].values(what, key, number.over, number.parts)[:1]:
            says = bounds.verdict(verdicts.exact(value))
            reported.append(Reported(source, value, "completed", says))
    found = Finding(
        where=number.where,
        what=f"{what.name} ratio" if number.references else what.name,
        unit="" if number.references else what.unit,
        rule=bounds.words,
        verdict=Verdict.NOT_TESTABLE,
        why=number.missing(measured),
        reported=tuple(reported),
    )
    if found.why:
        return found
    estimate = measured.estimate(what, key, number.over, number.parts)
    verdict = bounds.verdict(estimate)
    views = [view for view, _ in measured.values(what, key, number.over, number.parts)]
    places = {view.place for view in views}
    views += [
        view
        for reference in number.refers_to
        for place, view in measured.references(reference, what.window).items()
        if place in places
    ]
    why = f"{number.where}: {bounds.because(verdict, estimate)}"
    return replace(found, verdict=verdict, why=why, estimate=estimate, views=tuple(views))
