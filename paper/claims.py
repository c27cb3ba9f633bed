"""The paper's claims: what the estimates say of each, by the rules of paper/claims.yaml.

A verdict compares estimates with bounds, host by host, as the header of that file says; it computes
no number. `verdicts` gives the rows of estimates.parquet, `judged` all that pages show.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analysis import labels
from analysis.estimates.quantities import AT_GRACT, QUANTITIES
from analysis.estimates.table import MEASURED, Row, by_id, get, identity, place, ranged
from paper.gract_lines import POINTS
from paper.rules import Claim, Need, Rules, Side, Test, Verdict, all_of, over_hosts
from workflow.collocation.study.names import PAPER_IMPLEMENTATION, parse_scenario, scenario_id

# Quantities that compare a set with one by another method.
PARTNER = {"rate_over_naive": "naive", "rate_over_mig": "mig", "rate_over_mps": "mps"}
PARTNER |= {"gract_over_mps": "mps"}
_DID = {"completed": "completed", "out_of_memory": "ran out of memory"}


@dataclass(frozen=True)
class CellJudged:
    """One number of a test. hosts: host, id of its estimate, and where it lies. unlike: hosts on
    which a need is not met. reported: id of the paper's number beside it, or "". note: why there is
    no number, or what the set did (fits). planned: the study planned it, and what it is held
    against.
    """

    scenario: str
    implementation: str
    method: str
    verdict: Verdict = Verdict.NOT_TESTABLE
    ids: tuple[str, ...] = ()
    hosts: tuple[tuple[str, str, Side], ...] = ()
    unlike: tuple[str, ...] = ()
    reported: str = ""
    note: str = ""
    planned: bool = True

    @property
    def label(self) -> str:
        """`7 × ResNet26 b32 under MPS`, `ResNet152 b32 alone`."""
        one = self.method == "naive" and parse_scenario(self.scenario).n == 1
        how = "alone" if one else labels.method_phrase(self.method)
        return f"{labels.scenario(self.scenario)} {how}"

    @property
    def said(self) -> str:
        """`yes on h1, h2; rather no on h3; not comparable on h4`."""
        on = {side: [h or "all hosts" for h, _, at in self.hosts if at == side] for side in Side}
        parts = [f"{side} on {', '.join(hosts)}" for side, hosts in on.items() if hosts]
        parts += [f"not comparable on {', '.join(self.unlike)}"] * bool(self.unlike)
        return "; ".join(parts)


@dataclass(frozen=True)
class TestJudged:
    """A test with its verdict, why, and the numbers that it compares; `deciding` is what why tells
    of.
    """

    test: Test
    verdict: Verdict
    cells: tuple[CellJudged, ...]
    note: str
    deciding: CellJudged | None = None


@dataclass(frozen=True)
class NeedJudged:
    """met: hosts whose own reading is within the bounds ("": it has no single hosts); None: it was
    not read.
    """

    need: Need
    met: tuple[str, ...] | None
    note: str


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, why, and all that it rests on."""

    claim: Claim
    verdict: Verdict
    note: str
    tests: tuple[TestJudged, ...]
    needs: tuple[NeedJudged, ...]

    @property
    def deciding(self) -> CellJudged | None:
        """The cell whose number the verdict rests on, which its reason tells of."""
        of = Verdict.HOLDS if self.verdict == Verdict.AGREES else self.verdict
        return next((test.deciding for test in self.tests if test.verdict == of), None)

    @property
    def planned(self) -> bool:
        """Whether the study planned a set that it is tested by."""
        return any(cell.planned for test in self.tests for cell in test.cells)


def judged(rules: Rules, estimates: pd.DataFrame) -> list[Judged]:
    """Every claim with its verdict, in the file's order."""
    judge = _Judge(estimates)
    return [judge.claim(claim) for claim in rules.claims]


def post_hoc(rules: Rules, estimates: pd.DataFrame) -> bool:
    """True if a cell of the study was measured before the last rule was changed."""
    began = get(estimates, "count", name="began")
    settled = rules.settled.timestamp() if rules.settled else math.inf
    return began is not None and began.value < settled


def verdicts(rules: Rules, estimates: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: one per claim, and how many there are in all and of each
    verdict.
    """
    found = judged(rules, estimates)
    for each in found:
        holding = sum(test.verdict == Verdict.HOLDS for test in each.tests)
        row = {"quantity": "claim", "name": each.claim.id, "value": holding, "n": len(each.tests)}
        yield row | {"status": each.verdict.value, "note": each.note}
    counts = [("claims", len(found), "claims of the paper")]
    for verdict in Verdict:
        n = sum(each.verdict == verdict for each in found)
        counts.append((f"claims_{verdict.name.lower()}", n, f"claims with verdict: {verdict}"))
    for name, value, note in counts:
        yield {"quantity": "count", "name": name, "value": value, "note": note}


class _Judge:
    """Judges claims by the estimates of a study."""

    def __init__(self, estimates: pd.DataFrame):
        self.numbers = by_id(estimates)
        self.hosts = sorted({e.host for e in self.numbers.values()} - {""})
        every = [e for e in self.numbers.values() if e.quantity == "outcome"]
        self.outcomes = [e for e in every if e.source == MEASURED]
        self.paper = [e for e in self.numbers.values() if e.source != MEASURED]

    def claim(self, claim: Claim) -> Judged:
        if claim.untestable:
            return Judged(claim, Verdict.NOT_TESTABLE, claim.untestable, (), ())
        needs = tuple(map(self._need, claim.needs))
        single = [set(need.met) for need in needs if need.met is not None and "" not in need.met]
        like = set.intersection(*single) if single else None
        tests = tuple(self._test(test, like, claim.sources) for test in claim.tests)
        unread = [need.note for need in needs if need.met is None]
        verdict = all_of([test.verdict for test in tests])
        why = next(test.note for test in tests if test.verdict == verdict)
        # What was not measured at all says so, whatever else it would need.
        if any(cell.ids for test in tests for cell in test.cells):
            if unread:
                verdict, why = Verdict.NOT_TESTABLE, unread[0]
            elif like == set():
                notes = [need.note for need in needs if not need.met] or [n.note for n in needs]
                verdict, why = Verdict.NOT_TESTABLE, " ".join(notes)
            elif verdict == Verdict.NOT_TESTABLE:
                why = " ".join([*(need.note for need in needs), why])
        if verdict == Verdict.NOT_TESTABLE and claim.of_mig:
            why = f"Needs MIG. {why}"
        if verdict == Verdict.HOLDS and claim.extrapolated:
            verdict = Verdict.AGREES
        return Judged(claim, verdict, why, tests, needs)

    def _get(self, quantity: str, cell: CellJudged, window: str = "", job: str = "") -> Row | None:
        """The number of a cell, where there is one."""
        e = self.numbers.get(identity(quantity, **place(cell), window=window, job=job))
        return None if e is None or math.isnan(e.value) else e

    def _points(self, e: Row) -> list[Row]:
        """The number on each host, or where it has none, the one there is."""
        ids = [f"{e.id}@{host}" for host in self.hosts]
        return [self.numbers[each] for each in ids if each in self.numbers] or [e]

    def _span(self, e: Row) -> str:
        """A number with the values of its hosts, which decide, or the interval of a line."""
        return labels.span(ranged(e, [point.value for point in self._points(e)]))

    def _need(self, need: Need) -> NeedJudged:
        """Read host by host; what is met on a host makes the tests comparable there."""
        cell = CellJudged(
            self._scenario(need.mix or {need.job: 1}, need), need.implementation, need.method
        )
        e = self._get(need.quantity, cell, need.window, need.job if need.mix else "")
        what = f"For {cell.label}, {_title(need.quantity)}"
        if e is None:
            return NeedJudged(need, None, f"{what} was not read, and must be {need.rule}.")
        points = self._points(e)
        met = tuple(point.host for point in points if need.admits(point))
        on = "on no host" if not met else f"on {', '.join(met)} only"
        met_on = "" if "" in met else f" That is so {on}." if len(met) < len(points) else ""
        note = f"{what} is {self._span(e)}, and the comparison needs it {need.rule}.{met_on}"
        return NeedJudged(need, met, note)

    def _scenario(self, mix: dict[str, int], of: Need | Test) -> str:
        """The id of a set of jobs, in the order in which the study names them."""
        wanted = scenario_id(mix, of.variant)
        there = (e.scenario for e in self.outcomes if e.implementation == of.implementation)
        return next((each for each in there if _set(each) == _set(wanted)), wanted)

    def _test(self, test: Test, like: set[str] | None, sources: Sequence[str]) -> TestJudged:
        """like: hosts on which our cells are comparable; None: all of them."""
        quantity = "outcome" if test.fits else test.quantity.removesuffix(AT_GRACT)
        cells = [
            replace(
                self._fit(test, cell) if test.fits else self._cell(test, cell, like),
                reported=self._reported(quantity, cell, test.job, sources),
            )
            for cell in self._cells(test)
        ]
        if not (test.jobs or test.mix):
            cells = [cell for cell in cells if cell.ids]
        verdict = all_of([cell.verdict for cell in cells] or [Verdict.NOT_TESTABLE])
        return self._told(test, verdict, cells)

    def _cells(self, test: Test) -> list[CellJudged]:
        """The cells of a test; of one that names no jobs, of every job and implementation."""
        if test.jobs or test.mix:
            mixes = [test.mix] if test.mix else [{j: n} for j in test.jobs for n in test.counts]
            scenarios = [self._scenario(mix, test) for mix in mixes]
            return [CellJudged(s, test.implementation, m) for s in scenarios for m in test.methods]
        found = []
        for e in self.outcomes:
            parsed = parse_scenario(e.scenario)
            copies = not parsed.mixed and not parsed.variant and parsed.n in test.counts
            if e.method not in test.methods or not (test.fits or copies):
                continue
            one = CellJudged(f"1x_{parsed.family}", e.implementation, "naive")
            alone = self._get(test.where.quantity, one) if test.where else None
            if not test.where or (alone and test.where.admits(alone)):
                found.append(CellJudged(e.scenario, e.implementation, e.method))
        return found

    def _cell(self, test: Test, cell: CellJudged, like: set[str] | None) -> CellJudged:
        e = self._get(test.quantity, cell, test.window, test.job)
        if e is None:
            return self._absent(test.quantity, cell)
        every = self._points(e)
        points = [p for p in every if like is None or not p.host or p.host in like]
        unlike = tuple(p.host for p in every if p not in points)
        # Of one host that counts the number is that host's, not the one over all.
        shown = points[0] if unlike and len(points) == 1 else e
        cell = replace(cell, ids=(shown.id,), unlike=unlike)
        if not points:
            note = f"{cell.label} on a host like the paper's"
            return replace(cell, note=note)
        hosts = tuple((p.host, p.id, test.side(p)) for p in points)
        return replace(cell, verdict=over_hosts([side for *_, side in hosts]), hosts=hosts)

    def _fit(self, test: Test, cell: CellJudged) -> CellJudged:
        """Whether a set completed exactly where memory suffices."""
        outcome, parts = self._get("outcome", cell), self._get(test.quantity, cell)
        if not (outcome and outcome.status in _DID and parts):
            return self._absent(test.quantity, cell)
        as_said = (parts.value > 1) == (outcome.status == "out_of_memory")
        verdict = Verdict.HOLDS if as_said else Verdict.CONTRADICTED
        note = f"{cell.label} {_DID[outcome.status]}, and its jobs alone take "
        note += f"{labels.number(parts.value)} times what the card has for them"
        note += " (one replicate)" if outcome.n == 1 else ""
        return replace(cell, verdict=verdict, ids=(parts.id, outcome.id), note=note)

    def _reported(self, quantity: str, cell: CellJudged, job: str, sources: Sequence[str]) -> str:
        """Id of the paper's number of the same place, from the first source that has one, or "".

        The paper has no variants; what an abstract says has no set.
        """
        ours = _set(cell.scenario)[0]
        for source in sources if cell.implementation == PAPER_IMPLEMENTATION else ():
            for e in self.paper:
                if (e.quantity, e.source) != (quantity, source):
                    continue
                in_words = e.name == "text" and e.method in ("", cell.method)
                same = e.scenario and _set(e.scenario) == (ours, "")
                if in_words or (same and (e.method, e.job) == (cell.method, job)):
                    return e.id
        return ""

    def _absent(self, quantity: str, cell: CellJudged) -> CellJudged:
        """Why there is no number: what became of its cell, or of the one it is held against."""
        for method in filter(None, (cell.method, PARTNER.get(quantity.removesuffix(AT_GRACT)))):
            asked = replace(cell, method=method)
            outcome = self._get("outcome", asked)
            if outcome is None:
                return replace(cell, note=f"{asked.label} (not planned)", planned=False)
            if outcome.status != "completed":
                reason = outcome.note.split(";")[0].split(". ")[0]
                why = ": ".join(filter(None, (labels.status(outcome.status), reason)))
                return replace(cell, note=f"{asked.label} ({why})")
        few = f" (fewer than {POINTS} points, or hosts too alike)" * quantity.endswith(AT_GRACT)
        return replace(cell, note=f"{_title(quantity)} for {cell.label}{few}")

    def _told(self, test: Test, verdict: Verdict, cells: list[CellJudged]) -> TestJudged:
        """With the verdict's reason in one sentence, by the first cell that decides it."""

        def value(cell: CellJudged) -> float:
            return self.numbers[cell.ids[0]].value

        deciding = [cell for cell in cells if cell.verdict == verdict]
        if verdict == Verdict.NOT_TESTABLE:
            absent = [cell.note for cell in deciding]
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            why = f"Not measured: {absent[0]}{more}." if absent else "There is no such set or job."
        elif test.fits and verdict == Verdict.CONTRADICTED:
            why = f"{'; '.join(cell.note for cell in deciding)}."
        elif test.fits and all(value(cell) <= 1 for cell in cells):
            verdict, why = Verdict.NOT_TESTABLE, "None of its sets needs more memory than there is."
        elif test.fits:
            why = f"All {len(cells)} sets do so, those that exceed the card among them."
        else:
            if verdict in (Verdict.HOLDS, Verdict.IMPRECISE):  # the one that speaks for it least
                deciding.sort(key=value, reverse=test.below is not None)
            cell, others = deciding[0], verdict == Verdict.HOLDS and len(cells) > 1
            span = self._span(self.numbers[cell.ids[0]])
            why = f"For {cell.label}, {_title(test.quantity)} is {span}, "
            why += f"and must be {test.rule}: {cell.said}"
            why += "; the other readings hold too." if others else "."
        return TestJudged(test, verdict, tuple(cells), why, next(iter(deciding), None))


def _set(scenario: str) -> tuple[list[tuple[str, int]], str]:
    """Its jobs in any order, and its variant."""
    parsed = parse_scenario(scenario)
    return sorted(parsed.parts), parsed.variant


def _title(quantity: str) -> str:
    title = QUANTITIES[quantity].title
    return f"throughput {title}" if title.startswith("over ") else title
