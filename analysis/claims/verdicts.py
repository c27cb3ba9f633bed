"""The rules by which a number, its interval and a bound become a verdict. Pure functions.

All are of ratios: an interval is a 95 % one of the log (analysis.statistics). A claim is believed
only where the interval as a whole, not its middle, is where the claim says; without an interval
(one replicate) nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from analysis.statistics import Estimate, tost

# Level of the two one-sided tests; 1 minus that of the intervals.
ALPHA = 0.05
# 'Direction only' of an equivalence: it holds with a margin this many times the stated one.
LOOSER = 2.0


class Verdict(StrEnum):
    """In the order in which parts decide a compound claim: the first that occurs is the whole's.

    A part that is refuted refutes the whole; a part that could not be tested leaves it open.
    """

    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not comparable"
    NOT_TESTABLE = "not testable here"
    INCONCLUSIVE = "inconclusive"
    DIRECTION = "direction only"
    HOLDS = "holds"


MEANING = {
    Verdict.HOLDS: "the whole 95 % interval is where the claim says, beyond the stated bound or "
    "within the stated margin",
    Verdict.DIRECTION: "the sign is shown, the stated size is not; of 'no effect': shown with "
    "twice the stated margin only",
    Verdict.INCONCLUSIVE: "the interval allows both, or there is none (one replicate)",
    Verdict.CONTRADICTED: "the whole 95 % interval is on the other side",
    Verdict.NOT_COMPARABLE: "a condition that makes our cells comparable to the paper's, or to "
    "each other, is not met",
    Verdict.NOT_TESTABLE: "cells or readings that the rule needs are not there",
}


def greater(estimate: Estimate, bound: float, neutral: float = 1.0) -> Verdict:
    """Is the ratio above `bound`? `neutral` ≤ bound is where the claim's direction ends.

    Holds: the interval lies above the bound. Direction only: above neutral. Contradicted: below
    neutral.
    """
    if estimate.low is None or estimate.high is None:
        return Verdict.INCONCLUSIVE
    if estimate.low > bound:
        return Verdict.HOLDS
    if estimate.high < neutral:
        return Verdict.CONTRADICTED
    return Verdict.DIRECTION if estimate.low > neutral else Verdict.INCONCLUSIVE


def less(estimate: Estimate, bound: float, neutral: float = 1.0) -> Verdict:
    """Is the ratio below `bound` ≤ neutral? The mirror image of `greater`."""
    return greater(inverse(estimate), 1 / bound, 1 / neutral)


def equal(estimate: Estimate, margin: float) -> Verdict:
    """Is the ratio 1 within a factor 1 + margin? Two one-sided tests at ALPHA.

    Contradicted: the interval lies outside the margin. Direction only: the tests pass with LOOSER
    times the margin.
    """
    if estimate.low is None or estimate.high is None:
        return Verdict.INCONCLUSIVE
    if tost(estimate, margin) < ALPHA:
        return Verdict.HOLDS
    if estimate.low > 1 + margin or estimate.high < 1 / (1 + margin):
        return Verdict.CONTRADICTED
    looser = tost(estimate, LOOSER * margin) < ALPHA
    return Verdict.DIRECTION if looser else Verdict.INCONCLUSIVE


def inverse(estimate: Estimate) -> Estimate:
    """The estimate of 1 / ratio."""
    low, high = estimate.low, estimate.high
    return Estimate(
        1 / estimate.mean,
        None if high is None else 1 / high,
        None if low is None else 1 / low,
        estimate.replicates,
        estimate.error,
        estimate.df,
    )


def fits(need: float, tolerance: float) -> bool | None:
    """Must a set fit whose jobs alone take `need` of the memory? None within a tolerance of 1."""
    if abs(need - 1) <= tolerance:
        return None
    return need < 1


def outcome(fitting: bool, statuses: Iterable[str]) -> Verdict:
    """Did the replicates end as they must: completed where the set fits, else out of memory?

    Inconclusive: replicates differ, or ended otherwise.
    """
    found = set(statuses)
    if found not in ({"completed"}, {"out_of_memory"}):
        return Verdict.INCONCLUSIVE
    return Verdict.HOLDS if (found == {"completed"}) == fitting else Verdict.CONTRADICTED


@dataclass(frozen=True)
class Above:
    """`greater` with its bounds, and in words."""

    bound: float
    neutral: float = 1.0

    def verdict(self, estimate: Estimate) -> Verdict:
        return greater(estimate, self.bound, self.neutral)

    @property
    def words(self) -> str:
        return f"above {self.bound:.3g}; contradicted below {self.neutral:.3g}"

    def because(self, verdict: Verdict, estimate: Estimate) -> str:
        return _because(verdict, estimate, "above", "below", self.bound, self.neutral)


@dataclass(frozen=True)
class Below:
    """`less` with its bounds, and in words."""

    bound: float
    neutral: float = 1.0

    def verdict(self, estimate: Estimate) -> Verdict:
        return less(estimate, self.bound, self.neutral)

    @property
    def words(self) -> str:
        return f"below {self.bound:.3g}; contradicted above {self.neutral:.3g}"

    def because(self, verdict: Verdict, estimate: Estimate) -> str:
        return _because(verdict, estimate, "below", "above", self.bound, self.neutral)


@dataclass(frozen=True)
class Within:
    """`equal` with its margin, and in words."""

    margin: float

    def verdict(self, estimate: Estimate) -> Verdict:
        return equal(estimate, self.margin)

    @property
    def words(self) -> str:
        return f"equal to 1 within {_percent(self.margin)} (two one-sided tests)"

    def because(self, verdict: Verdict, estimate: Estimate) -> str:
        match verdict:
            case Verdict.HOLDS:
                return f"equal within {_percent(self.margin)}"
            case Verdict.DIRECTION:
                return f"equal within {_percent(LOOSER * self.margin)} only"
            case Verdict.CONTRADICTED:
                return f"the interval lies further than {_percent(self.margin)} from 1"
        return _NO_INTERVAL if estimate.low is None else "the interval is too wide to tell"


_NO_INTERVAL = "one replicate has no interval"


def _because(
    verdict: Verdict, estimate: Estimate, there: str, away: str, bound: float, neutral: float
) -> str:
    match verdict:
        case Verdict.HOLDS:
            return f"the interval lies {there} {bound:.3g}"
        case Verdict.DIRECTION:
            return f"the interval lies {there} {neutral:.3g}, but not {there} {bound:.3g}"
        case Verdict.CONTRADICTED:
            return f"the interval lies {away} {neutral:.3g}"
    return _NO_INTERVAL if estimate.low is None else f"the interval includes {neutral:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def exact(value: float) -> Estimate:
    """A value without error, such as one that was published."""
    return Estimate(value, value, value, 1, 0.0, 1)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a claim that needs all its parts: the first of Verdict's order that occurs.

    Each part is tested at full level: a conjunction rejects only where all its parts do.
    """
    found = set(verdicts)
    return next((verdict for verdict in Verdict if verdict in found), Verdict.NOT_TESTABLE)
