"""The paper's claims: what the estimates say of each, by the rules of config/claims.yaml.

A verdict compares estimates with bounds, host by host, as the header of that file says; it computes
no number. `verdicts` gives the rows of estimates.parquet, `judged` all that pages show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis import labels
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.schema import Estimate, described
from analysis.estimates.table import Estimates
from analysis.names import Scenario, parse_scenario, scenario_id
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

__all__ = ["ClaimsError", "Judged", "Rules", "Verdict", "judged", "read", "verdicts"]

# What a ratio of two cells needs besides its own.
_PARTNER = {"rate_over_naive": "naive", "rate_over_mig": "mig", "gract_over_mps": "mps"}


@dataclass(frozen=True)
class CellJudged:
    """One number of a test. hosts: host, id of its estimate, and where it lies. reported: id of the
    paper's number beside it, or "". note: why there is no number, or what the set did (fits).
    """

    scenario: str
    arm: str
    method: str
    verdict: Verdict
    ids: tuple[str, ...] = ()
    hosts: tuple[tuple[str, str, Side], ...] = ()
    reported: str = ""
    note: str = ""

    def on(self, *sides: Side) -> list[str]:
        return [host for host, _, side in self.hosts if side in sides]


@dataclass(frozen=True)
class TestJudged:
    test: Test
    verdict: Verdict
    cells: tuple[CellJudged, ...]
    note: str


@dataclass(frozen=True)
class NeedJudged:
    """id: of the reading, or "" (met is None then)."""

    need: Need
    met: bool | None
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


def judged(rules: Rules, estimates: Estimates) -> list[Judged]:
    """Every claim with its verdict, in the file's order."""
    return [_claim(claim, estimates) for claim in rules.claims]


def verdicts(rules: Rules, estimates: Estimates) -> list[Estimate]:
    """Rows of estimates.parquet: one per claim (flag `post_hoc` where its rule was changed after
    data had been seen), and how many claims there are in all, post hoc, and of each verdict.
    """
    found = judged(rules, estimates)
    rows = []
    for each in found:
        holding = sum(test.verdict == Verdict.HOLDS for test in each.tests)
        row = Estimate("claim", name=each.claim.id, status=each.verdict.value, note=each.note)
        flags = "post_hoc" if each.claim.changed else ""
        rows.append(replace(row, value=holding, n=len(each.tests), flags=flags))
    count = Counter(each.verdict for each in found)
    counts = {f"claims_{v.slug}": (count[v], f"claims with verdict: {v.value}") for v in Verdict}
    counts["claims"] = len(found), "claims of the paper"
    post_hoc = sum(each.claim.changed is not None for each in found)
    counts["claims_post_hoc"] = post_hoc, "claims whose rule was changed after data had been seen"
    rows += [Estimate("count", name=k, value=n, note=note) for k, (n, note) in counts.items()]
    return [described(row) for row in rows]


def _claim(claim: Claim, estimates: Estimates) -> Judged:
    needs = tuple(_need(need, estimates) for need in claim.needs)
    tests = tuple(_test(test, claim.sources, estimates) for test in claim.tests)
    # What was not measured at all is not testable, whatever else it would need.
    nothing = not any(cell.ids for test in tests for cell in test.cells)
    unread, unmet = ([n for n in needs if n.met is met] for met in (None, False))
    if nothing:
        verdict, why = Verdict.NOT_TESTABLE, tests[0].note
    elif unread:
        verdict, why = Verdict.NOT_TESTABLE, unread[0].note
    elif unmet:
        verdict, why = Verdict.NOT_COMPARABLE, unmet[0].note
    else:
        verdict = all_of([test.verdict for test in tests])
        why = next(test.note for test in tests if test.verdict == verdict)
    return Judged(claim, verdict, why, tests, needs)


def _need(need: Need, estimates: Estimates) -> NeedJudged:
    """Read from the estimate over all hosts."""
    mix, job = (need.mix, need.job) if need.mix else ({need.job: 1}, "")
    scenario = _scenario(mix, need.variant, estimates, need.arm)
    place = {"scenario": scenario, "arm": need.arm, "method": need.method}
    e = estimates.get(need.quantity, **place, window=need.window, job=job)
    where, what = _place(scenario, need.method), _title(need.quantity)
    if e is None or e.value is None:
        note = f"For {where}, {what} was not read, and must be {need.rule}."
        return NeedJudged(need, None, "", note)
    note = f"For {where}, {what} is {labels.span(e)}, and the comparison needs it {need.rule}."
    return NeedJudged(need, need.admits(e.value), e.id, note)


def _scenario(mix: dict[str, int], variant: str, estimates: Estimates, arm: str) -> str:
    """The id of a set of jobs, in the order in which the study (or the paper) names them."""
    wanted = scenario_id(mix, variant)
    for outcome in estimates.of("outcome", arm=arm):
        if _same(parse_scenario(outcome.scenario), parse_scenario(wanted)):
            return outcome.scenario
    return wanted


def _same(one: Scenario, other: Scenario) -> bool:
    return (sorted(one.parts), one.variant) == (sorted(other.parts), other.variant)


def _test(test: Test, sources: Sequence[str], estimates: Estimates) -> TestJudged:
    if test.fits:
        return _fits(test, sources, estimates)
    cells, unread = [], []
    for job in test.jobs:
        if test.where:
            place = {"scenario": f"1x_{job}", "arm": test.arm, "method": "naive"}
            reading = estimates.get(test.where.quantity, **place)
            if reading is None or reading.value is None:
                unread.append(f"{_title(test.where.quantity)} for {labels.job(job)} alone")
                continue
            if not test.where.admits(reading.value):
                continue
        cells += [({job: count}, method) for count in test.counts for method in test.methods]
    if test.mix:
        cells = [(test.mix, method) for method in test.methods]
    found = tuple(_cell(test, mix, method, sources, estimates) for mix, method in cells)
    parts = [cell.verdict for cell in found] + [Verdict.NOT_TESTABLE] * bool(unread)
    if not parts:
        where = f"{_title(test.where.quantity)} {test.where.rule}"
        return TestJudged(test, Verdict.NOT_TESTABLE, (), f"No job alone has a {where}.")
    verdict = all_of(parts)
    return TestJudged(test, verdict, found, _why(test, verdict, found, unread, estimates))


def _cell(
    test: Test, mix: dict[str, int], method: str, sources: Sequence[str], estimates: Estimates
) -> CellJudged:
    scenario = _scenario(mix, test.variant, estimates, test.arm)
    place = {"scenario": scenario, "arm": test.arm, "method": method}
    beside = _reported(test.quantity, scenario, method, test.job, sources, estimates)
    cell = CellJudged(**place, verdict=Verdict.NOT_TESTABLE, reported=beside)
    e = estimates.get(test.quantity, **place, window=test.window, job=test.job)
    if e is None or e.value is None:
        return replace(cell, note=_absent(test.quantity, place, estimates))
    points = [point for point in estimates.on_hosts(e) if point.value is not None] or [e]
    hosts = tuple((point.host, point.id, test.side(point)) for point in points)
    return replace(cell, verdict=over_hosts([side for *_, side in hosts]), ids=(e.id,), hosts=hosts)


def _reported(
    quantity: str,
    scenario: str,
    method: str,
    job: str,
    sources: Sequence[str],
    estimates: Estimates,
) -> str:
    """Id of the paper's number of the same place, from the first source that has one, or "".

    The paper has no variants; what an abstract says has no set.
    """
    ours = parse_scenario(scenario_id(dict(parse_scenario(scenario).parts)))
    for source in sources:
        for e in estimates.of(quantity, source=source):
            in_words = e.name == "text" and e.method in ("", method)
            same = e.scenario and _same(parse_scenario(e.scenario), ours)
            if in_words or (same and (e.method, e.job) == (method, job)):
                return e.id
    return ""


def _absent(quantity: str, place: dict[str, str], estimates: Estimates) -> str:
    """Why there is no number: what became of its cell, or of the one it is held against."""
    for method in (place["method"], _PARTNER.get(quantity, "")):
        outcome = estimates.get("outcome", **place | {"method": method}) if method else None
        if method and outcome is None:
            return f"{_place(place['scenario'], method)} (not planned)"
        if method and outcome.status != "completed":
            reason = outcome.note.split(";")[0].split(". ")[0]
            why = labels.status(outcome.status) + (f": {reason}" if reason else "")
            return f"{_place(place['scenario'], method)} ({why})"
    return f"{_title(quantity)} for {_place(place['scenario'], place['method'])}"


def _fits(test: Test, sources: Sequence[str], estimates: Estimates) -> TestJudged:
    """Of the sets that are named, or of every set of the study, written in any way."""
    if test.jobs or test.mix:
        mixes = [{job: count} for job in test.jobs for count in test.counts] or [test.mix]
        named = [(_scenario(m, test.variant, estimates, test.arm), test.arm) for m in mixes]
        places = [(s, arm, method) for s, arm in named for method in test.methods]
    else:
        outcomes = estimates.of("outcome")
        places = [(e.scenario, e.arm, e.method) for e in outcomes if e.method in test.methods]
    cells, exceeding = [], False
    for scenario, arm, method in places:
        place = {"scenario": scenario, "arm": arm, "method": method}
        outcome, parts = estimates.get("outcome", **place), estimates.get(test.quantity, **place)
        known = outcome is not None and outcome.status in ("completed", "out_of_memory")
        known = known and parts is not None and parts.value is not None
        if not known and not (test.jobs or test.mix):
            continue
        beside = _reported("outcome", scenario, method, "", sources, estimates)
        cell = CellJudged(**place, verdict=Verdict.NOT_TESTABLE, reported=beside)
        if not known:
            cells.append(replace(cell, note=_absent(test.quantity, place, estimates)))
            continue
        exceeding |= parts.value > 1
        as_said = (parts.value > 1) == (outcome.status == "out_of_memory")
        verdict = Verdict.HOLDS if as_said else Verdict.CONTRADICTED
        did = "completed" if outcome.status == "completed" else "ran out of memory"
        need = f"its jobs alone take {labels.number(parts.value)} times the card's memory"
        note = f"{_place(scenario, method)} {did}, and {need}"
        cells.append(replace(cell, verdict=verdict, ids=(parts.id, outcome.id), note=note))
    verdict = all_of([cell.verdict for cell in cells]) if cells else Verdict.NOT_TESTABLE
    if verdict == Verdict.HOLDS and not exceeding:
        why = "No set measured needs more memory than the card has."
        return TestJudged(test, Verdict.NOT_TESTABLE, tuple(cells), why)
    named = [cell.note for cell in cells if cell.verdict == verdict]
    why = {
        Verdict.CONTRADICTED: f"{'; '.join(named)}.",
        Verdict.HOLDS: f"All {len(cells)} sets do so, those that exceed the card among them.",
    }.get(verdict, f"Not measured: {'; '.join(named) or 'any set'}.")
    return TestJudged(test, verdict, tuple(cells), why)


def _why(
    test: Test,
    verdict: Verdict,
    cells: Sequence[CellJudged],
    unread: Sequence[str],
    estimates: Estimates,
) -> str:
    """The verdict's reason in one sentence, by the first cell that decides it."""
    if verdict == Verdict.NOT_TESTABLE:
        absent = [cell.note for cell in cells if not cell.ids] + list(unread)
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        return f"Not measured: {absent[0]}{more}."
    deciding = [cell for cell in cells if cell.verdict == verdict]
    if verdict == Verdict.HOLDS:  # the one that is nearest to its bound
        nearest = max if test.below is not None else min
        deciding = [nearest(deciding, key=lambda cell: estimates[cell.ids[0]].value)]
    cell = deciding[0]
    e = estimates[cell.ids[0]]
    where, what = _place(cell.scenario, cell.method), _title(test.quantity)
    said = f"For {where}, {what} is {labels.span(e)}"
    against, right = cell.on(Side.AGAINST), cell.on(Side.RIGHT)
    supports, wrong = cell.on(Side.SUPPORTS), cell.on(Side.WRONG)
    if verdict == Verdict.HOLDS:
        others = f"; the other {len(cells) - 1} readings hold too" if len(cells) > 1 else ""
        return f"{said}, {test.rule} on {_and(supports)}{others}."
    if verdict == Verdict.CONTRADICTED:
        return f"{said}, not {test.rule} on {_and(against)}."
    if verdict == Verdict.DEPENDS:
        return f"{said}, {test.rule} on {_and(supports)} but not on {_and(against)}."
    if supports or against:
        is_so, decided = ("", supports) if supports else ("not ", against)
        single = f"but the one replicate on {_and(wrong or right)} is on the other side"
        return f"{said}, {is_so}{test.rule} on {_and(decided)}, {single}."
    if not cell.on(Side.UNCLEAR):
        return f"{said}, with one replicate on each host; the claim needs it {test.rule}."
    return f"{said}, and no host's 95 % interval tells whether it is {test.rule}."


def _and(hosts: Sequence[str]) -> str:
    *most, last = [host or "all hosts" for host in hosts]
    return f"{', '.join(most)} and {last}" if most else last


def _title(quantity: str) -> str:
    title = QUANTITIES[quantity].title
    return f"throughput {title}" if title.startswith("over ") else title


def _place(scenario: str, method: str) -> str:
    """`7 × ResNet26 b32 under MPS`, `ResNet152 b32 alone`."""
    if method == "naive":
        how = "as plain processes" if parse_scenario(scenario).n > 1 else "alone"
    else:
        how = f"under {labels.method(method)}"
    return f"{labels.scenario(scenario)} {how}"
