"""Verdicts on claims, on their tests and on sets of jobs, and what each of them rests on."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis import labels
from paper.rules import Claim, ClaimTest, Need, Side
from workflow.collocation.study.names import parse_scenario


class Verdict(StrEnum):
    """What a study says of a claim, of one of its tests, or of one set of jobs.

    Only a claim can have AGREES: it holds on lines that are read at the paper's GRACT.
    """

    HOLDS = "holds"
    AGREES = "agrees at the paper's GRACT"
    CONTRADICTED = "contradicted"
    DEPENDS = "depends on the host"
    IMPRECISE = "too imprecise"
    NOT_TESTABLE = "not testable"


def verdict_of_hosts(sides: Sequence[Side]) -> Verdict:
    """The verdict on one set of jobs: a host decides unless another one leans the other way."""
    supported, contradicted = Side.SUPPORTS in sides, Side.CONTRADICTS in sides
    if supported and contradicted:
        return Verdict.DEPENDS
    if supported and Side.LEANS_AGAINST not in sides:
        return Verdict.HOLDS
    if contradicted and Side.LEANS_FOR not in sides:
        return Verdict.CONTRADICTED
    return Verdict.IMPRECISE


def verdict_of_parts(parts: Sequence[Verdict]) -> Verdict:
    """The verdict on parts that must all hold: the worst one among them."""
    worst_first = (Verdict.CONTRADICTED, Verdict.NOT_TESTABLE, Verdict.DEPENDS, Verdict.IMPRECISE)
    return next((verdict for verdict in worst_first if verdict in parts), Verdict.HOLDS)


@dataclass(frozen=True)
class SetEvidence:
    """What one set of jobs shows of a test.

    estimate_ids: the numbers it is read from, the deciding one first; none where there is no
    number. sides: host ("": all hosts) → where its number lies. unlike_hosts: hosts on which a need
    of the claim is not met. reported_id: the paper's number of the same set, or "". note: why there
    is no number, or whether the set fits into memory. planned: the study has this set, and the one
    that it is compared with.
    """

    scenario: str
    implementation: str
    method: str
    verdict: Verdict = Verdict.NOT_TESTABLE
    estimate_ids: tuple[str, ...] = ()
    sides: tuple[tuple[str, Side], ...] = ()
    unlike_hosts: tuple[str, ...] = ()
    reported_id: str = ""
    note: str = ""
    planned: bool = True

    @property
    def label(self) -> str:
        """`7 × ResNet26 b32 under MPS`, `ResNet152 b32 alone`."""
        alone = self.method == "naive" and parse_scenario(self.scenario).n == 1
        method = "alone" if alone else labels.method_phrase(self.method)
        return f"{labels.scenario(self.scenario)} {method}"

    @property
    def sides_in_words(self) -> str:
        """`yes on h1, h2; rather no on h3; not comparable on h4`."""
        parts = []
        for side in Side:
            hosts = [host or "all hosts" for host, on_side in self.sides if on_side == side]
            if hosts:
                parts.append(f"{side} on {', '.join(hosts)}")
        if self.unlike_hosts:
            parts.append(f"not comparable on {', '.join(self.unlike_hosts)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class TestVerdict:
    """The verdict on a test, why, and the sets of jobs it rests on; `deciding` decides it."""

    test: ClaimTest
    verdict: Verdict
    reason: str
    sets: tuple[SetEvidence, ...]
    deciding: SetEvidence | None = None


@dataclass(frozen=True)
class NeedReading:
    """The hosts that meet a need ("": all at once); None where its quantity was not read."""

    need: Need
    hosts: tuple[str, ...] | None
    note: str


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim, why, and what it rests on."""

    claim: Claim
    verdict: Verdict
    reason: str
    tests: tuple[TestVerdict, ...] = ()
    needs: tuple[NeedReading, ...] = ()

    @property
    def deciding(self) -> SetEvidence | None:
        """The set of jobs that the reason tells of, where a number decides."""
        verdict = Verdict.HOLDS if self.verdict == Verdict.AGREES else self.verdict
        return next((test.deciding for test in self.tests if test.verdict == verdict), None)

    @property
    def planned(self) -> bool:
        """True if the study planned one of the sets that test it."""
        return any(evidence.planned for test in self.tests for evidence in test.sets)
