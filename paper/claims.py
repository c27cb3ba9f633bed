"""Verdicts on the paper's claims, by the estimates of a study and the rules of claims.yaml.

The head of that file says how hosts, sets of jobs and tests make a verdict. No number is estimated
here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from analysis import labels
from analysis.estimates.quantities import AT_GRACT, QUANTITIES
from analysis.estimates.table import MEASURED, Row, by_id, get, identity, place, ranged
from paper.gract_lines import LEAST_POINTS
from paper.rules import Claim, ClaimRules, ClaimTest, Need
from paper.verdicts import (
    ClaimVerdict,
    NeedReading,
    SetEvidence,
    TestVerdict,
    Verdict,
    verdict_of_hosts,
    verdict_of_parts,
)
from workflow.collocation.study.names import PAPER_IMPLEMENTATION, parse_scenario, scenario_id

_ENDINGS = {"completed": "completed", "out_of_memory": "ran out of memory"}
# Quantities that compare a set with one by another method.
PARTNER = {"rate_over_naive": "naive", "rate_over_mig": "mig", "rate_over_mps": "mps"}
PARTNER |= {"gract_over_mps": "mps"}


def judge_claims(rules: ClaimRules, estimates: pd.DataFrame) -> list[ClaimVerdict]:
    """The verdict on every claim, in the order of the file.

    estimates: of a study, with the paper's values and lines, as `table.read_estimates` gives them.
    """
    judge = _Judge(estimates)
    return [judge.claim(claim) for claim in rules.claims]


def post_hoc_claims(rules: ClaimRules, estimates: pd.DataFrame) -> tuple[str, ...]:
    """Ids of claims whose rule was changed after the first cell of the study was measured."""
    began = get(estimates, "count", name="began")
    if began is None:
        return ()
    dates = {claim.id: claim.settled or rules.settled for claim in rules.claims}
    return tuple(name for name, date in dates.items() if not date or began.value < date.timestamp())


def claim_estimates(rules: ClaimRules, estimates: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: a verdict for each claim, and how many have which verdict."""
    judgements = judge_claims(rules, estimates)
    for judgement in judgements:
        holding = [test for test in judgement.tests if test.verdict == Verdict.HOLDS]
        yield {
            "quantity": "claim",
            "name": judgement.claim.id,
            "value": len(holding),
            "n": len(judgement.tests),
            "status": judgement.verdict.value,
            "note": judgement.reason,
        }
    yield _count("claims", len(judgements), "claims of the paper")
    for verdict in Verdict:
        number = sum(judgement.verdict == verdict for judgement in judgements)
        name = f"claims_{verdict.name.lower()}"
        yield _count(name, number, f"claims with verdict: {verdict}")


def _count(name: str, number: int, note: str) -> dict:
    return {"quantity": "count", "name": name, "value": number, "note": note}


class _Judge:
    """Judges claims by the estimates of one study."""

    def __init__(self, estimates: pd.DataFrame):
        self.numbers = by_id(estimates)
        self.hosts = sorted({number.host for number in self.numbers.values()} - {""})
        self.outcomes = []  # of sets of the study
        self.reported = []  # numbers of the paper
        for number in self.numbers.values():
            if number.source != MEASURED:
                self.reported.append(number)
            elif number.quantity == "outcome":
                self.outcomes.append(number)

    def claim(self, claim: Claim) -> ClaimVerdict:
        """The verdict of a claim's tests, unless a need is not met, or nothing was measured."""
        if claim.untestable:
            return ClaimVerdict(claim, Verdict.NOT_TESTABLE, claim.untestable)
        needs = tuple(self._need(need) for need in claim.needs)
        comparable = _comparable_hosts(needs)  # None: no need limits them; empty: no host is
        tests = tuple(self._test(test, comparable, claim.sources) for test in claim.tests)
        verdict = verdict_of_parts([test.verdict for test in tests])
        reason = next(test.reason for test in tests if test.verdict == verdict)
        # A claim whose tests have no number at all says so, whatever else it needs.
        if any(evidence.estimate_ids for test in tests for evidence in test.sets):
            unread = [need.note for need in needs if need.hosts is None]
            notes = [need.note for need in needs]
            if unread:
                verdict, reason = Verdict.NOT_TESTABLE, unread[0]
            elif comparable == set():
                unmet = [need.note for need in needs if not need.hosts]
                verdict, reason = Verdict.NOT_TESTABLE, " ".join(unmet or notes)
            elif verdict == Verdict.NOT_TESTABLE:
                reason = " ".join([*notes, reason])
        if verdict == Verdict.NOT_TESTABLE and claim.of_mig:
            reason = f"Needs MIG. {reason}"
        # What is read off a line at the paper's GRACT agrees with the paper; nobody measured it.
        if verdict == Verdict.HOLDS and claim.on_a_line:
            verdict = Verdict.AGREES
        return ClaimVerdict(claim, verdict, reason, tests, needs)

    def _need(self, need: Need) -> NeedReading:
        """Which hosts meet a need, and its reading in words."""
        scenario = self._scenario(need.mix or {need.job: 1}, need)
        jobs = SetEvidence(scenario, need.implementation, need.method)
        number = self._number(need.quantity, jobs, need.window, need.job if need.mix else "")
        subject = f"For {jobs.label}, {_title(need.quantity)}"
        if number is None:
            return NeedReading(need, None, f"{subject} was not read, and must be {need.rule}.")
        on_hosts = self._on_hosts(number)
        meeting = tuple(reading.host for reading in on_hosts if need.admits(reading))
        note = f"{subject} is {self._span(number)}, and the comparison needs it {need.rule}."
        if not meeting:
            note += " That is so on no host."
        elif len(meeting) < len(on_hosts):
            note += f" That is so on {', '.join(meeting)} only."
        return NeedReading(need, meeting, note)

    def _test(
        self, test: ClaimTest, comparable: set[str] | None, sources: Sequence[str]
    ) -> TestVerdict:
        """The verdict on a test. comparable: hosts that count; None: all."""
        quantity = "outcome" if test.fits else test.quantity.removesuffix(AT_GRACT)
        sets = []
        for jobs in self._sets(test):
            if test.fits:
                evidence = self._memory(test, jobs)
            else:
                evidence = self._sides(test, jobs, comparable)
            if evidence.estimate_ids or test.names_jobs:
                reported_id = self._reported_id(quantity, evidence, test.job, sources)
                sets.append(replace(evidence, reported_id=reported_id))
        verdicts = [evidence.verdict for evidence in sets] or [Verdict.NOT_TESTABLE]
        verdict = verdict_of_parts(verdicts)
        deciding = [evidence for evidence in sets if evidence.verdict == verdict]
        if verdict == Verdict.NOT_TESTABLE:
            return TestVerdict(test, verdict, _not_measured(deciding), tuple(sets))
        if test.fits:
            return self._memory_verdict(test, verdict, sets)
        if verdict in (Verdict.HOLDS, Verdict.IMPRECISE):  # the weakest evidence decides
            deciding.sort(key=self._first_value, reverse=test.below is not None)
        holds_elsewhere = verdict == Verdict.HOLDS and len(sets) > 1
        ending = "; the other readings hold too." if holds_elsewhere else "."
        reason = self._reason(test, deciding[0]) + ending
        return TestVerdict(test, verdict, reason, tuple(sets), deciding[0])

    def _memory_verdict(
        self, test: ClaimTest, verdict: Verdict, sets: Sequence[SetEvidence]
    ) -> TestVerdict:
        """The verdict on whether sets fit into memory; one of them must exceed the card."""
        deciding = [evidence for evidence in sets if evidence.verdict == verdict]
        if verdict == Verdict.CONTRADICTED:
            reason = f"{'; '.join(evidence.note for evidence in deciding)}."
        elif any(self._first_value(evidence) > 1 for evidence in sets):
            reason = f"All {len(sets)} sets do so, those that exceed the card among them."
        else:
            verdict = Verdict.NOT_TESTABLE
            reason = "None of its sets needs more memory than there is."
        return TestVerdict(test, verdict, reason, tuple(sets), deciding[0])

    def _sets(self, test: ClaimTest) -> Iterator[SetEvidence]:
        """The sets of a test, without evidence yet."""
        if test.names_jobs:
            mixes = [test.mix] if test.mix else []
            mixes += [{job: count} for job in test.jobs for count in test.counts]
            for mix in mixes:
                scenario = self._scenario(mix, test)
                for method in test.methods:
                    yield SetEvidence(scenario, test.implementation, method)
            return
        for outcome in self.outcomes:
            parsed = parse_scenario(outcome.scenario)
            copies = not parsed.mixed and not parsed.variant and parsed.n in test.counts
            if outcome.method not in test.methods or not (test.fits or copies):
                continue
            if test.where:
                alone = SetEvidence(f"1x_{parsed.family}", outcome.implementation, "naive")
                reading = self._number(test.where.quantity, alone)
                if reading is None or not test.where.admits(reading):
                    continue
            yield SetEvidence(outcome.scenario, outcome.implementation, outcome.method)

    def _sides(
        self, test: ClaimTest, jobs: SetEvidence, comparable: set[str] | None
    ) -> SetEvidence:
        """On which side of the bound a set lies on each comparable host."""
        number = self._number(test.quantity, jobs, test.window, test.job)
        if number is None:
            return self._absent(test.quantity, jobs)
        counting, unlike = [], []
        for reading in self._on_hosts(number):
            like = comparable is None or not reading.host or reading.host in comparable
            (counting if like else unlike).append(reading)
        # If one host only counts, the number is that host's, not the one over all hosts.
        if unlike and len(counting) == 1:
            number = counting[0]
        unlike_hosts = tuple(reading.host for reading in unlike)
        jobs = replace(jobs, estimate_ids=(number.id,), unlike_hosts=unlike_hosts)
        if not counting:
            return replace(jobs, note=f"{jobs.label} on a host like the paper's")
        sides = tuple((reading.host, test.side(reading)) for reading in counting)
        return replace(jobs, verdict=verdict_of_hosts([side for _, side in sides]), sides=sides)

    def _memory(self, test: ClaimTest, jobs: SetEvidence) -> SetEvidence:
        """Whether a set completed exactly if the memory of its jobs alone fits the card."""
        outcome, parts = self._number("outcome", jobs), self._number(test.quantity, jobs)
        if not (outcome and outcome.status in _ENDINGS and parts):
            return self._absent(test.quantity, jobs)
        expected = (parts.value > 1) == (outcome.status == "out_of_memory")
        note = (
            f"{jobs.label} {_ENDINGS[outcome.status]}, and its jobs alone take "
            f"{labels.number(parts.value)} times what the card has for them"
        )
        if outcome.n == 1:
            note += " (one replicate)"
        verdict = Verdict.HOLDS if expected else Verdict.CONTRADICTED
        return replace(jobs, verdict=verdict, estimate_ids=(parts.id, outcome.id), note=note)

    def _absent(self, quantity: str, jobs: SetEvidence) -> SetEvidence:
        """With the reason why there is no number: of this set, or of the one it is divided by."""
        measured = quantity.removesuffix(AT_GRACT)
        for method in (jobs.method, PARTNER.get(measured)):
            if method is None:
                continue
            needed = replace(jobs, method=method)
            outcome = self._number("outcome", needed)
            if outcome is None:
                return replace(jobs, note=f"{needed.label} (not planned)", planned=False)
            if outcome.status != "completed":
                status = labels.status(outcome.status)
                cause = outcome.note.split(";")[0].split(". ")[0]
                reason = f"{status}: {cause}" if cause else status
                return replace(jobs, note=f"{needed.label} ({reason})")
        note = f"{_title(quantity)} for {jobs.label}"
        if quantity != measured:
            note += f" (fewer than {LEAST_POINTS} points, or hosts too alike)"
        return replace(jobs, note=note)

    def _reported_id(
        self, quantity: str, jobs: SetEvidence, job: str, sources: Sequence[str]
    ) -> str:
        """The id of the paper's number of the same set, from the first source that has one, or "".

        sources: of the paper's numbers, preferred first. The paper has no variants of sets. What an
        abstract says is of no set (its name is "text"), so it stands beside every set.
        """
        if jobs.implementation != PAPER_IMPLEMENTATION:
            return ""
        parts = _parts(jobs.scenario)
        for source in sources:
            for number in self.reported:
                if (number.quantity, number.source) != (quantity, source):
                    continue
                if number.name == "text" and number.method in ("", jobs.method):
                    return number.id
                same_place = (number.method, number.job) == (jobs.method, job)
                if number.scenario and same_place and _parts(number.scenario) == parts:
                    return number.id
        return ""

    def _number(
        self, quantity: str, jobs: SetEvidence, window: str = "", job: str = ""
    ) -> Row | None:
        """A quantity of a set over all hosts, where there is one."""
        number = self.numbers.get(identity(quantity, **place(jobs), window=window, job=job))
        return None if number is None or math.isnan(number.value) else number

    def _on_hosts(self, number: Row) -> list[Row]:
        """The same number on each host, or where it is of no single host, itself."""
        ids = [f"{number.id}@{host}" for host in self.hosts]
        return [self.numbers[name] for name in ids if name in self.numbers] or [number]

    def _span(self, number: Row) -> str:
        """A number with the range of its hosts, or with the interval of a line."""
        values = [reading.value for reading in self._on_hosts(number)]
        return labels.span(ranged(number, values))

    def _first_value(self, evidence: SetEvidence) -> float:
        return self.numbers[evidence.estimate_ids[0]].value

    def _reason(self, test: ClaimTest, evidence: SetEvidence) -> str:
        """What a set shows, as a sentence without its full stop."""
        span = self._span(self.numbers[evidence.estimate_ids[0]])
        subject = f"For {evidence.label}, {_title(test.quantity)}"
        return f"{subject} is {span}, and must be {test.rule}: {evidence.sides_in_words}"

    def _scenario(self, mix: dict[str, int], rule: Need | ClaimTest) -> str:
        """The id of a mix, with its jobs in the order in which the study names them."""
        wanted = scenario_id(mix, rule.variant)
        for outcome in self.outcomes:
            if outcome.implementation == rule.implementation:
                same_jobs = _parts(outcome.scenario) == _parts(wanted)
                if same_jobs and parse_scenario(outcome.scenario).variant == rule.variant:
                    return outcome.scenario
        return wanted


def _comparable_hosts(needs: Sequence[NeedReading]) -> set[str] | None:
    """Hosts that meet all needs that are read host by host; None: nothing is asked of hosts."""
    meeting = [set(need.hosts) for need in needs if need.hosts is not None and "" not in need.hosts]
    return set.intersection(*meeting) if meeting else None


def _not_measured(absent: Sequence[SetEvidence]) -> str:
    if not absent:
        return "There is no such set or job."
    remaining = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    return f"Not measured: {absent[0].note}{remaining}."


def _parts(scenario: str) -> list[tuple[str, int]]:
    """The jobs of a set and their numbers, in alphabetical order."""
    return sorted(parse_scenario(scenario).parts)


def _title(quantity: str) -> str:
    title = QUANTITIES[quantity].title
    return f"throughput {title}" if title.startswith("over ") else title
