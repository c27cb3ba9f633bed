"""Claims on hand-made estimates with known answers, and the shipped rules on the paper's values."""

from dataclasses import replace
from hashlib import sha256

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from analysis import claims
from analysis.estimates import reported
from analysis.estimates.schema import INTERVAL, NONE, RANGE, Estimate
from analysis.estimates.table import Estimates
from analysis.rules import Rules, Side, Test, Verdict, all_of, over_hosts
from tests.studio import REPOSITORY

CLAIMS, REPORTED = REPOSITORY / "config" / "claims.yaml", REPOSITORY / "config" / "reported.csv"
JOB, OTHER = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
GAIN = {"quantity": "stp", "jobs": [JOB], "counts": [2], "methods": ["mps"]}
MORE, LESS = GAIN | {"above": 1.5}, GAIN | {"below": 0.8}
SAME = GAIN | {"within": [0.952, 1.05]}


def cell(quantity, *hosts, scenario=f"2x_{JOB}", method="mps", **fields):
    """Estimates of one place: over all hosts, and one per host; (low, high), or a point."""
    place = {"scenario": scenario, "arm": "paper_step", "method": method} | fields
    rows = []
    for number, host in enumerate(hosts, 1):
        low, high = host if isinstance(host, tuple) else (None, None)
        value = host if low is None else (low + high) / 2
        spread = NONE if low is None else INTERVAL
        e = Estimate(quantity, **place, host=f"h{number}", value=value, low=low, high=high)
        rows.append(replace(e, spread=spread, n=1 if low is None else 3))
    values = [row.value for row in rows]
    over = Estimate(quantity, **place, value=sorted(values)[len(values) // 2], spread=RANGE)
    return [replace(over, low=min(values), high=max(values), hosts=len(rows)), *rows]


def outcome(scenario=f"2x_{JOB}", method="mps", status="completed", note=""):
    place = {"scenario": scenario, "arm": "paper_step", "method": method}
    return Estimate(
        "outcome", **place, status=status, value=float(status == "completed"), note=note
    )


def decide(estimates, *tests, **claim):
    """What is judged of one claim with these tests."""
    content = {"id": "C1", "text": "A claim.", "sources": ["SUIT25"], "tests": list(tests)} | claim
    rules = Rules.model_validate({"claims": [content]})
    return claims.judged(rules, Estimates(estimates))[0]


def of_one_cell(quantity, low, high, **place):
    """Of sides that took turns in one cell of one host."""
    return [replace(row, design="alternate", n=1) for row in cell(quantity, (low, high), **place)]


@pytest.mark.parametrize("wavers", ["", "mps", "naive", "alone"])
def test_fewer_than_three_alternating_cells_decide_only_by_sets_that_hold_their_rate(wavers):
    """MPS over plain for seven small jobs, minutes apart on one card: 1.42 ± 0.04, 1.97 ± 0.06."""
    places = {
        "mps": {"method": "mps"},
        "naive": {"method": "naive"},
        "alone": {"method": "naive", "scenario": f"1x_{JOB}"},
    }
    rates = [outcome()]
    for name, place in places.items():
        off = 0.04 if name == wavers else 0.005
        rates += of_one_cell("rate", 1 - off, 1 + off, **place)
    for quantity, of in (
        ("rate_over_naive", ["mps", "naive"]),
        ("stp", ["mps", "alone"]),
        ("s", ["mps"]),
    ):
        found = of_one_cell(quantity, 1.6, 1.9)
        rule = MORE | {"quantity": quantity}
        decided = Verdict.IMPRECISE if wavers in of else Verdict.HOLDS
        for cells, verdict in ((1, decided), (2, decided), (3, Verdict.HOLDS)):
            rows = [replace(row, n=cells) for row in found]
            assert decide([*rows, *rates], rule).verdict == verdict, (quantity, cells)


@pytest.mark.parametrize(
    ("rows", "quantity", "planned"),
    [([], "stp", False), ([outcome(method="naive")], "stp", False), ([outcome()], "stp", True),
     ([outcome()], "rate_over_naive", False),  # which needs the plain set besides
     ([outcome(status="not_run", note="stopped (not planned")], "stp", True)],
)  # fmt: skip
def test_a_claim_is_planned_if_the_study_planned_a_set_of_it_whatever_became_of_it(
    rows, quantity, planned
):
    assert decide(rows, MORE | {"quantity": quantity}).planned is planned


# One test on one cell


@pytest.mark.parametrize(
    ("test", "hosts", "verdict"),
    [
        (MORE, [(1.6, 1.9)], Verdict.HOLDS),
        (MORE, [(1.2, 1.4)], Verdict.CONTRADICTED),
        (MORE, [(1.4, 1.6)], Verdict.IMPRECISE),
        (MORE, [1.9], Verdict.IMPRECISE),  # one replicate decides nothing
        (MORE, [1.2, 1.3], Verdict.IMPRECISE),
        (MORE, [(1.6, 1.9), 1.7, (1.4, 1.8)], Verdict.HOLDS),
        (MORE, [(1.6, 1.9), 1.4], Verdict.IMPRECISE),  # a point on the other side
        (MORE, [(1.2, 1.4), 1.6], Verdict.IMPRECISE),
        (MORE, [(1.2, 1.4), 1.3], Verdict.CONTRADICTED),
        (MORE, [(1.6, 1.9), (1.2, 1.4)], Verdict.DEPENDS),
        (MORE, [(1.6, 1.9), (1.2, 1.4), 1.4], Verdict.DEPENDS),
        (LESS, [(0.6, 0.7)], Verdict.HOLDS),
        (LESS, [(0.9, 1.0)], Verdict.CONTRADICTED),
        (LESS, [(0.6, 0.7), (0.9, 1.0)], Verdict.DEPENDS),
        (SAME, [(0.99, 1.01)], Verdict.HOLDS),
        (SAME, [(0.8, 1.2)], Verdict.IMPRECISE),  # a wide interval around 1 supports nothing
        (SAME, [(0.9, 0.95)], Verdict.CONTRADICTED),
        (SAME, [(1.06, 1.1)], Verdict.CONTRADICTED),
        (SAME, [(0.99, 1.01), 1.06], Verdict.IMPRECISE),
    ],
)
def test_hosts_decide_by_their_intervals(test, hosts, verdict):
    assert decide(cell("stp", *hosts), test).verdict == verdict


def test_details_name_hosts_ids_and_the_papers_number():
    paper = Estimate("stp", f"2x_{JOB}", "paper_step", "mps", source="SUIT25", value=1.97, n=1)
    found = decide([*cell("stp", (1.6, 1.9), 1.4), outcome(), paper], MORE)
    (one,) = found.tests[0].cells
    assert one.ids == (f"stp:2x_{JOB}/paper_step/mps",)
    assert one.reported == paper.id
    place = f"stp:2x_{JOB}/paper_step/mps@h"
    assert one.hosts == (("h1", place + "1", Side.SUPPORTS), ("h2", place + "2", Side.WRONG))
    assert "h1" in found.note and "h2" in found.note


def test_an_abstracts_number_of_no_set_stands_beside():
    text = Estimate("stp", source="ABSE", name="text", value=3.0)
    found = decide([*cell("stp", (1.6, 1.9)), text], MORE, sources=["ABSE", "SUIT25"])
    assert found.tests[0].cells[0].reported == text.id


# Several cells, several tests


TWO = MORE | {"counts": [2, 3]}


def test_of_undecided_sets_the_one_that_speaks_least_for_the_claim_is_named():
    rows = [*cell("stp", (1.4, 1.9)), *cell("stp", (1.2, 1.6), scenario=f"3x_{JOB}")]
    found = decide(rows, TWO)
    assert found.verdict == Verdict.IMPRECISE and "For 3 ×" in found.note


@pytest.mark.parametrize(
    ("third", "verdict"),
    [
        ((1.6, 1.9), Verdict.HOLDS),
        ((1.2, 1.4), Verdict.CONTRADICTED),
        ((1.4, 1.6), Verdict.IMPRECISE),
        (None, Verdict.NOT_TESTABLE),
    ],
)
def test_every_cell_and_every_test_must_hold(third, verdict):
    rows = cell("stp", (1.6, 1.9))
    if third:
        rows += cell("stp", third, scenario=f"3x_{JOB}")
    assert decide(rows, TWO).verdict == verdict
    assert decide(rows, MORE, MORE | {"counts": [3]}).verdict == verdict


def test_a_missing_cell_says_why_unless_another_contradicts():
    why = outcome(f"3x_{JOB}", status="unsupported", note="MIG mode is off; switch it on")
    found = decide([*cell("stp", (1.6, 1.9)), why], TWO)
    assert found.verdict == Verdict.NOT_TESTABLE
    assert "unsupported: MIG mode is off)" in found.note
    assert decide([*cell("stp", (1.2, 1.4)), why], TWO).verdict == Verdict.CONTRADICTED
    # A ratio is missing for the cell that it is held against.
    rows = [outcome(), outcome(method="mig", status="unsupported", note="MIG mode is off")]
    found = decide(rows, MORE | {"quantity": "rate_over_mig"})
    assert "under MIG (unsupported: MIG mode is off)" in found.note


# Conditions


NEED = {"quantity": "gract", "job": OTHER, "above": 0.9}
BOTH, ON_H1, NOWHERE = [(1.6, 1.9), (1.2, 1.4)], "yes on h1; not comparable on h2.", "on no host."


@pytest.mark.parametrize(
    ("found", "readings", "verdict", "words"),
    [
        ([(1.6, 1.9)], [0.95], Verdict.HOLDS, ""),
        ([(1.6, 1.9)], [0.7], Verdict.NOT_COMPARABLE, ""),
        ([(1.6, 1.9)], [], Verdict.NOT_TESTABLE, "was not read"),
        ([], [0.7], Verdict.NOT_TESTABLE, ""),  # whatever it needs
        (BOTH, [0.95, 0.7], Verdict.HOLDS, ON_H1),  # only hosts that meet the need count
        (BOTH, [0.7, 0.95], Verdict.CONTRADICTED, ""),
        (BOTH, [0.7, 0.8], Verdict.NOT_COMPARABLE, NOWHERE),
        ([(1.6, 1.9)], [0.7, 0.95], Verdict.NOT_COMPARABLE, "That is so on h2 only."),
    ],
)
def test_needs(found, readings, verdict, words):
    place = {"scenario": f"1x_{OTHER}", "method": "naive"}
    rows = [*(cell("stp", *found) if found else ()), outcome()]
    rows += cell("gract", *readings, **place) if readings else []
    said = decide(rows, MORE, needs=[NEED])
    assert said.verdict == verdict and words in said.note, said.note
    if found and readings:
        assert said.needs[0].id == f"gract:1x_{OTHER}/paper_step/naive"
    if words == ON_H1:
        assert said.needs[0].met == ("h1",)
        assert said.tests[0].cells[0].ids == (f"stp:2x_{JOB}/paper_step/mps@h1",)


def test_two_needs_must_be_met_on_one_host():
    other, place = {"quantity": "smact", "job": OTHER, "above": 0.5}, {"scenario": f"1x_{OTHER}"}
    rows = cell("stp", (1.6, 1.9), (1.6, 1.9)) + cell("gract", 0.95, 0.7, method="naive", **place)
    rows += cell("smact", 0.4, 0.6, method="naive", **place)
    assert decide(rows, MORE, needs=[NEED, other]).verdict == Verdict.NOT_COMPARABLE


def test_where_takes_jobs_by_their_reading_alone():
    test = MORE | {"jobs": [JOB, OTHER], "where": {"quantity": "smact", "below": 0.8}}
    rows = cell("stp", (1.6, 1.9)) + cell("stp", (1.0, 1.1), scenario=f"2x_{OTHER}")
    rows += cell("smact", 0.1, scenario=f"1x_{JOB}", method="naive")
    assert decide(rows, test).verdict == Verdict.NOT_TESTABLE  # the other's is not known
    rows += cell("smact", 0.8, scenario=f"1x_{OTHER}", method="naive")
    assert decide(rows, test).verdict == Verdict.HOLDS
    for least, verdict in ((0.8, Verdict.CONTRADICTED), (0.9, Verdict.NOT_TESTABLE)):
        test["where"] = {"quantity": "smact", "at_least": least}
        assert decide(rows, test).verdict == verdict


def test_a_mix_is_found_in_any_order_of_its_parts():
    scenario = f"1x_{OTHER}+1x_{JOB}--completion"
    test = {"quantity": "time_over_serial", "mix": {JOB: 1, OTHER: 1}, "methods": ["mps"]}
    test |= {"variant": "completion", "window": "completion", "below": 0.98}
    rows = cell("time_over_serial", (0.9, 0.95), scenario=scenario, window="completion")
    assert decide([*rows, outcome(scenario)], test).verdict == Verdict.HOLDS


# Memory


FITS = {"quantity": "parts_over_capacity", "methods": ["naive", "mps"], "fits": True}


def memory(*sets):
    """(copies, memory of the jobs alone over the card's, what became of the set)."""
    rows = []
    for n, parts, status in sets:
        rows.append(outcome(f"{n}x_{JOB}", status=status))
        place = {"scenario": f"{n}x_{JOB}", "arm": "paper_step", "method": "mps"}
        rows.append(Estimate("parts_over_capacity", **place, value=parts))
    return rows


@pytest.mark.parametrize(
    ("sets", "verdict"),
    [
        ([(2, 0.5, "completed"), (5, 1.2, "out_of_memory")], Verdict.HOLDS),
        ([(2, 0.5, "completed"), (5, 1.2, "completed")], Verdict.CONTRADICTED),
        ([(2, 0.9, "out_of_memory"), (5, 1.2, "out_of_memory")], Verdict.CONTRADICTED),
        ([(2, 0.5, "completed")], Verdict.NOT_TESTABLE),
        ([(2, 0.5, "completed"), (5, 1.2, "failed")], Verdict.NOT_TESTABLE),
        ([], Verdict.NOT_TESTABLE),
    ],
)
def test_memory_fits_exactly_where_its_parts_do(sets, verdict):
    found = decide(memory(*sets), FITS)
    assert found.verdict == verdict
    if verdict == Verdict.CONTRADICTED:
        assert "× ResNet26 b32 under MPS" in found.note


def test_named_sets_that_were_not_run_are_not_testable():
    named = FITS | {"jobs": [JOB], "counts": [5, 7], "methods": ["mps"]}
    rows = memory((5, 1.2, "out_of_memory"))
    assert decide(rows, named).verdict == Verdict.NOT_TESTABLE
    assert decide(memory((5, 1.2, "completed")), named).verdict == Verdict.CONTRADICTED


# The file


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quantity": "speed"}, ["tests.0.quantity", "'speed'", "'stp'"]),
        ({"methods": ["cuda"]}, ["methods", "'cuda'", "'mps'"]),
        ({"methods": ["mps_4g"]}, ["methods", "'mps_4g'", "'mig_4g'"]),  # a study's stand-in
        ({"bound": 2}, ["bound", "no such key", "above"]),
        ({"below": 2}, ["give one of above, below, within, fits"]),
        ({"mix": {JOB: 2}}, ["give jobs with counts, or a mix"]),
    ],
)
def test_a_mistake_is_one_line_with_file_claim_key_and_what_is_allowed(tmp_path, change, says):
    path = tmp_path / "claims.yaml"
    content = {"claims": [{"id": "C7", "text": "A claim.", "tests": [MORE | change]}]}
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(claims.ClaimsError) as error:
        claims.read(path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in (str(path), "C7", *says))


def test_who_changes_a_rule_says_when():
    """Else verdicts of a study from before the change would not be marked post hoc."""
    rules = claims.read(CLAIMS)
    tested = [claim.model_dump_json(include={"tests", "needs"}) for claim in rules.claims]
    digest = sha256("".join(tested).encode()).hexdigest()[:12]
    assert (str(rules.settled), digest) == ("2026-11-23 10:25:25+00:00", "0a43f2da24ad")


def test_a_changed_rule_needs_to_say_when(tmp_path):
    path, changed = tmp_path / "claims.yaml", {"before": "holds", "why": "It could not fail."}
    claim = {"id": "C7", "text": "A claim.", "tests": [MORE], "changed": changed}
    path.write_text(yaml.safe_dump({"claims": [claim]}))
    with pytest.raises(claims.ClaimsError, match="settled"):
        claims.read(path)


@pytest.mark.parametrize("text", ["", "claims: [", "claims: [5]"])
def test_what_is_no_file_of_claims_is_one_line(tmp_path, text):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    with pytest.raises(claims.ClaimsError, match="claims.yaml: ") as error:
        claims.read(path)
    assert "\n" not in str(error.value)
    with pytest.raises(claims.ClaimsError, match="cannot be read"):
        claims.read(tmp_path / "none.yaml")


# The shipped rules


# Where one of the paper's sources falls on the other side of a bound, and why.
PAPER_DIFFERS = {
    ("C3c", "SUIT25"): "the talk's 5.35 at seven jobs is more than the abstract's three times",
    ("C3d", "SUIT25"): "and more than arXiv's four times",
    ("C4b", "LEC22"): "the lecture's older software has MIG ahead of MPS at seven jobs",
    ("C16b", "LEC22"): "as C4b",
    ("C6d", "LEC22"): "two large jobs gain 1.101 under MIG in the lecture; the bound is 1.1",
}


def test_the_papers_own_values_are_on_its_side():
    estimates = Estimates(reported.estimates(reported.read(REPORTED)))
    rules, beside, differ = claims.read(CLAIMS), 0, set()
    for source in reported.SOURCES:
        only = [
            claim.model_copy(update={"sources": [source] * (source in claim.sources)})
            for claim in rules.claims
        ]
        for each in claims.judged(rules.model_copy(update={"claims": only}), estimates):
            for test in each.tests:
                found = [one.reported for one in test.cells if one.reported and not test.test.fits]
                sides = [test.test.side(estimates[identity]) for identity in found]
                beside += len(sides)
                differ |= {(each.claim.id, source)} if Side.WRONG in sides else set()
    assert differ == set(PAPER_DIFFERS)
    assert beside > 50


def test_without_estimates_nothing_is_testable():
    rules = claims.read(CLAIMS)
    rows = claims.verdicts(rules, Estimates([]))
    of = {row.name: row for row in rows if row.quantity == "claim"}
    assert set(of) == {claim.id for claim in rules.claims}
    assert {row.status for row in of.values()} == {"not testable"}
    counts = {row.name: row.value for row in rows if row.quantity == "count"}
    assert counts["claims_not_testable"] == counts["claims"] == len(of)
    assert of["C6a"].flags == "post_hoc" and of["C3b"].flags == ""


@pytest.mark.parametrize("late", [-1, 0])
def test_on_cells_from_after_the_last_change_no_verdict_is_post_hoc(late):
    rules = claims.read(CLAIMS)
    began = Estimate("count", name="began", value=rules.settled.timestamp() + late)
    found = claims.judged(rules, Estimates([began]))
    changed = [claim.id for claim in rules.claims if claim.changed]
    assert changed and [each.claim.id for each in found if each.post_hoc] == changed[: -late * 99]


# Laws


numbers = st.floats(0.5, 3).map(lambda value: round(value, 3))
hosts = st.one_of(numbers, st.tuples(numbers, numbers).map(lambda pair: tuple(sorted(pair))))
rules = st.sampled_from([MORE, LESS, SAME])


@given(st.lists(hosts, min_size=1, max_size=5), rules)
def test_another_host_that_supports_never_contradicts(found, test):
    inside = {"above": (1.6, 1.7), "below": (0.6, 0.7), "within": (0.99, 1.01)}
    more = next(interval for key, interval in inside.items() if key in test)
    before = decide(cell("stp", *found), test).verdict
    after = decide(cell("stp", *found, more), test).verdict
    assert after != Verdict.CONTRADICTED
    if before == Verdict.HOLDS:
        assert after == Verdict.HOLDS


@given(st.lists(st.sampled_from(list(Side)), min_size=1), st.permutations(list(Side)))
def test_the_order_of_hosts_does_not_matter(sides, order):
    assert over_hosts(sides) == over_hosts(sorted(sides, key=order.index))


@given(hosts)
def test_a_bound_and_its_mirror(host):
    e = cell("stp", host)[1]
    above, below = (Test.model_validate(GAIN | {key: 1.5}) for key in ("above", "below"))
    mirror = {Side.SUPPORTS: Side.AGAINST, Side.RIGHT: Side.WRONG}
    mirror |= {Side.LEANS: Side.LEANS_AWAY}
    mirror |= {value: key for key, value in mirror.items()}
    if e.value != 1.5:
        assert below.side(e) == mirror[above.side(e)]


parts = st.sampled_from([v for v in Verdict if v != Verdict.NOT_COMPARABLE])


@given(st.lists(parts, min_size=1), parts)
def test_another_part_never_makes_a_claim_hold(found, part):
    if all_of(found) != Verdict.HOLDS:
        assert all_of([*found, part]) != Verdict.HOLDS
    assert (all_of(found) == Verdict.CONTRADICTED) == (Verdict.CONTRADICTED in found)
