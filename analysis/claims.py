"""The paper's claims: what the estimates say of each, by the rules of config/claims.yaml.

A verdict compares estimates with bounds, host by host, as the header of that file says; it computes
no number. `verdicts` gives the rows of estimates.parquet, `judged` all that pages show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from analysis import labels
from analysis.choose import PARTNER, place, wavers
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.schema import NONE, Estimate, described
from analysis.estimates.table import Estimates
from analysis.rules import (
    Claim,
    ClaimsError,
    Need,
    Rules,
    Side,
    Test,
    Verdict,
    all_of,
    over_hosts,
    read,
)
from workflow.collocation.spec.names import Scenario, parse_scenario, scenario_id

__all__ = ["ClaimsError", "Judged", "Rules", "Verdict", "judged", "read", "verdicts"]

_SAID = {
    Side.SUPPORTS: "yes on",
    Side.AGAINST: "no on",
    Side.LEANS: "rather yes, within the interval, on",
    Side.LEANS_AWAY: "rather no, within the interval, on",
    Side.RIGHT: "yes by one replicate on",
    Side.WRONG: "no by one replicate on",
}


@dataclass(frozen=True)
class CellJudged:
    """One number of a test. hosts: host, id of its estimate, and where it lies. unlike: hosts that
    do not count, as a need is not met there. reported: id of the paper's number beside it, or "".
    note: why there is no number, or what the set did (fits). planned: the study planned it, and
    what it is held against.
    """

    scenario: str
    arm: str
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
        how = f"under {labels.method(self.method)}"
        if self.method == "naive":
            how = "as plain processes" if parse_scenario(self.scenario).n > 1 else "alone"
        return f"{labels.scenario(self.scenario)} {how}"

    @property
    def said(self) -> str:
        """`yes on h1, h2; no by one replicate on h3; not comparable on h4`."""
        parts = []
        for side, words in _SAID.items():
            if on := [host or "all hosts" for host, _, of_host in self.hosts if of_host == side]:
                parts.append(f"{words} {', '.join(on)}")
        if self.unlike:
            parts.append(f"not comparable on {', '.join(self.unlike)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class TestJudged:
    test: Test
    verdict: Verdict
    cells: tuple[CellJudged, ...]
    note: str


@dataclass(frozen=True)
class NeedJudged:
    """met: hosts whose own reading is within the bounds ("": it has no single hosts). id: of the
    reading, or "" (met is None then).
    """

    need: Need
    met: tuple[str, ...] | None
    id: str
    note: str


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, why, and all that it rests on."""

    claim: Claim
    verdict: Verdict
    note: str
    tests: tuple[TestJudged, ...]
    needs: tuple[NeedJudged, ...]
    post_hoc: bool = False

    @property
    def planned(self) -> bool:
        """True if the study planned a set that it is tested by."""
        return any(cell.planned for test in self.tests for cell in test.cells)


def judged(rules: Rules, estimates: Estimates) -> list[Judged]:
    """Every claim with its verdict, in the file's order.

    Post hoc is one whose rule was changed after data had been seen, if this study has a cell from
    before the last such change.
    """
    began = estimates.get("count", name="began")
    new = began and rules.settled and began.value >= rules.settled.timestamp()
    found = [_Judge(estimates, claim.sources).claim(claim) for claim in rules.claims]
    return [replace(each, post_hoc=bool(each.claim.changed and not new)) for each in found]


def verdicts(rules: Rules, estimates: Estimates) -> list[Estimate]:
    """Rows of estimates.parquet: one per claim (flag `post_hoc`), and how many claims there are in
    all, post hoc, and of each verdict.
    """
    found, rows = judged(rules, estimates), []
    for each in found:
        holding = sum(test.verdict == Verdict.HOLDS for test in each.tests)
        row = Estimate("claim", name=each.claim.id, value=holding, n=len(each.tests))
        flags = "post_hoc" if each.post_hoc else ""
        rows.append(replace(row, status=each.verdict.value, note=each.note, flags=flags))
    post_hoc = sum(each.post_hoc for each in found)
    counts = [
        ("claims", len(found), "claims of the paper"),
        ("claims_post_hoc", post_hoc, "claims whose rule was changed after data had been seen"),
    ]
    for verdict in Verdict:
        n = sum(each.verdict == verdict for each in found)
        counts.append((f"claims_{verdict.replace(' ', '_')}", n, f"claims with verdict: {verdict}"))
    rows += [Estimate("count", name=name, value=n, note=note) for name, n, note in counts]
    return [described(row) for row in rows]


@dataclass(frozen=True)
class _Judge:
    """Judges one claim. sources: where the paper's numbers may come from."""

    estimates: Estimates
    sources: Sequence[str]

    def claim(self, claim: Claim) -> Judged:
        needs = tuple(map(self._need, claim.needs))
        single = [set(need.met) for need in needs if need.met is not None and "" not in need.met]
        like = set.intersection(*single) if single else None
        tests = tuple(self._test(test, like) for test in claim.tests)
        unread = [need.note for need in needs if need.met is None]
        # What was not measured at all is not testable, whatever else it would need.
        if not any(cell.ids for test in tests for cell in test.cells):
            verdict, why = Verdict.NOT_TESTABLE, tests[0].note
        elif unread:
            verdict, why = Verdict.NOT_TESTABLE, unread[0]
        elif like == set():
            notes = [need.note for need in needs if not need.met] or [n.note for n in needs]
            verdict, why = Verdict.NOT_COMPARABLE, " ".join(notes)
        else:
            verdict = all_of([test.verdict for test in tests])
            why = next(test.note for test in tests if test.verdict == verdict)
            if verdict == Verdict.NOT_COMPARABLE:
                why = " ".join([*(need.note for need in needs), why])
        return Judged(claim, verdict, why, tests, needs)

    def _need(self, need: Need) -> NeedJudged:
        """Read host by host; what is met on a host makes the tests comparable there."""
        mix, job = (need.mix, need.job) if need.mix else ({need.job: 1}, "")
        cell = CellJudged(self._scenario(mix, need), need.arm, need.method)
        e = self.estimates.get(need.quantity, **place(cell), window=need.window, job=job)
        what = f"For {cell.label}, {_title(need.quantity)}"
        if e is None or e.value is None:
            return NeedJudged(need, None, "", f"{what} was not read, and must be {need.rule}.")
        points = self._points(e)
        met = tuple(point.host for point in points if need.admits(point.value))
        on = "on no host" if not met else f"on {', '.join(met)} only"
        met_on = "" if "" in met else f" That is so {on}." if len(met) < len(points) else ""
        note = f"{what} is {labels.span(e)}, and the comparison needs it {need.rule}.{met_on}"
        return NeedJudged(need, met, e.id, note)

    def _points(self, e: Estimate) -> list[Estimate]:
        """The number on each host, or where it has none, the one there is."""
        return [point for point in self.estimates.on_hosts(e) if point.value is not None] or [e]

    def _scenario(self, mix: dict[str, int], of: Need | Test) -> str:
        """The id of a set of jobs, in the order in which the study (or the paper) names them."""
        wanted = scenario_id(mix, of.variant)
        for outcome in self.estimates.of("outcome", arm=of.arm):
            if _same(parse_scenario(outcome.scenario), parse_scenario(wanted)):
                return outcome.scenario
        return wanted

    def _test(self, test: Test, like: set[str] | None) -> TestJudged:
        """like: hosts on which our cells are comparable; None: all of them."""
        cells, unread = self._cells(test)
        everything = not (test.jobs or test.mix)
        judge = self._fit if test.fits else partial(self._cell, like=like)
        cells = [judge(test, cell) for cell in cells]
        cells = [cell for cell in cells if cell.ids or not everything]
        missing = unread or not cells
        verdict = all_of([cell.verdict for cell in cells] + [Verdict.NOT_TESTABLE] * bool(missing))
        return self._told(test, verdict, cells, unread)

    def _cells(self, test: Test) -> tuple[list[CellJudged], list[str]]:
        """The cells of a test, and which readings of `where` are missing. Of a test on memory that
        names no set: every set of the study, written in any way.
        """
        if not (test.jobs or test.mix):
            every = (CellJudged(e.scenario, e.arm, e.method) for e in self.estimates.of("outcome"))
            return [cell for cell in every if cell.method in test.methods], []
        mixes, unread = [test.mix] if test.mix else [], []
        for job in test.jobs:
            if test.where:
                one = {"scenario": f"1x_{job}", "arm": test.arm, "method": "naive"}
                alone = self.estimates.get(test.where.quantity, **one)
                if alone is None or alone.value is None:
                    unread.append(f"{_title(test.where.quantity)} for {labels.job(job)} alone")
                    continue
                if not test.where.admits(alone.value):
                    continue
            mixes += [{job: count} for count in test.counts]
        scenarios = [self._scenario(mix, test) for mix in mixes]
        return [CellJudged(s, test.arm, m) for s in scenarios for m in test.methods], unread

    def _cell(self, test: Test, cell: CellJudged, like: set[str] | None) -> CellJudged:
        cell = replace(cell, reported=self._reported(test.quantity, cell, test.job))
        e = self.estimates.get(test.quantity, **place(cell), window=test.window, job=test.job)
        if e is None or e.value is None:
            return self._absent(test.quantity, cell)
        every = self._points(e)
        points = [p for p in every if like is None or not p.host or p.host in like]
        unlike = tuple(p.host for p in every if p not in points)
        cell = replace(cell, ids=(e.id,), unlike=unlike)
        if not points:
            return replace(cell, verdict=Verdict.NOT_COMPARABLE)
        if unlike and len(points) == 1:  # the number of that host, not one over all
            cell = replace(cell, ids=(points[0].id,))
        hosts = tuple((p.host, p.id, test.side(self._of_host(p))) for p in points)
        return replace(cell, verdict=over_hosts([side for *_, side in hosts]), hosts=hosts)

    def _of_host(self, point: Estimate) -> Estimate:
        """The number of a host, as one point where its interval is too narrow."""
        if not wavers(self.estimates, point):
            return point
        return replace(point, low=None, high=None, spread=NONE)

    def _fit(self, test: Test, cell: CellJudged) -> CellJudged:
        """Whether a set completed exactly where memory suffices."""
        cell = replace(cell, reported=self._reported("outcome", cell))
        outcome, parts = (self.estimates.get(q, **place(cell)) for q in ("outcome", test.quantity))
        did = {"completed": "completed", "out_of_memory": "ran out of memory"}
        if not (outcome and outcome.status in did and parts and parts.value is not None):
            return self._absent(test.quantity, cell)
        as_said = (parts.value > 1) == (outcome.status == "out_of_memory")
        verdict = Verdict.HOLDS if as_said else Verdict.CONTRADICTED
        times = labels.number(parts.value)
        note = f"{cell.label} {did[outcome.status]}, and its jobs alone take {times} times"
        note += " what the card has for them"
        note += " (one replicate)" if outcome.n == 1 else ""
        return replace(cell, verdict=verdict, ids=(parts.id, outcome.id), note=note)

    def _reported(self, quantity: str, cell: CellJudged, job: str = "") -> str:
        """Id of the paper's number of the same place, from the first source that has one, or "".

        The paper has no variants; what an abstract says has no set.
        """
        ours = replace(parse_scenario(cell.scenario), variant="")
        for source in self.sources:
            for e in self.estimates.of(quantity, source=source):
                in_words = e.name == "text" and e.method in ("", cell.method)
                same = e.scenario and _same(parse_scenario(e.scenario), ours)
                if in_words or (same and (e.method, e.job) == (cell.method, job)):
                    return e.id
        return ""

    def _absent(self, quantity: str, cell: CellJudged) -> CellJudged:
        """Why there is no number: what became of its cell, or of the one it is held against."""
        for method in filter(None, (cell.method, PARTNER.get(quantity))):
            asked = replace(cell, method=method)
            outcome = self.estimates.get("outcome", **place(asked))
            if outcome is None:
                return replace(cell, note=f"{asked.label} (not planned)", planned=False)
            if outcome.status != "completed":
                reason = outcome.note.split(";")[0].split(". ")[0]
                why = ": ".join(filter(None, (labels.status(outcome.status), reason)))
                return replace(cell, note=f"{asked.label} ({why})")
        return replace(cell, note=f"{_title(quantity)} for {cell.label}")

    def _told(
        self, test: Test, verdict: Verdict, cells: list[CellJudged], unread: list[str]
    ) -> TestJudged:
        """With the verdict's reason in one sentence, by the first cell that decides it."""
        deciding = [cell for cell in cells if cell.verdict == verdict]
        if verdict == Verdict.NOT_TESTABLE:
            absent = [cell.note for cell in deciding] + unread
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            why = f"Not measured: {absent[0]}{more}." if absent else "There is no such set or job."
        elif test.fits and verdict == Verdict.CONTRADICTED:
            why = f"{'; '.join(cell.note for cell in deciding)}."
        elif test.fits and all(self._value(cell) <= 1 for cell in cells):
            verdict, why = Verdict.NOT_TESTABLE, "No set measured needs more memory than there is."
        elif test.fits:
            why = f"All {len(cells)} sets do so, those that exceed the card among them."
        elif verdict == Verdict.NOT_COMPARABLE:
            why = f"{deciding[0].label} was not measured on such a host."
        else:
            if verdict in (Verdict.HOLDS, Verdict.IMPRECISE):  # the one that speaks for it least
                deciding.sort(key=self._value, reverse=test.below is not None)
            cell, others = deciding[0], verdict == Verdict.HOLDS and len(cells) > 1
            span = labels.span(self.estimates[cell.ids[0]])
            why = f"For {cell.label}, {_title(test.quantity)} is {span}, "
            why += f"and must be {test.rule}: {cell.said}"
            why += "; the other readings hold too." if others else "."
        return TestJudged(test, verdict, tuple(cells), why)

    def _value(self, cell: CellJudged) -> float:
        return self.estimates[cell.ids[0]].value


def _same(one: Scenario, other: Scenario) -> bool:
    return (sorted(one.parts), one.variant) == (sorted(other.parts), other.variant)


def _title(quantity: str) -> str:
    title = QUANTITIES[quantity].title
    return f"throughput {title}" if title.startswith("over ") else title
