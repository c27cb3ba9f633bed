"""Claims on hand-made estimates with known answers, and the shipped rules on the paper's values."""

from datetime import datetime
from hashlib import sha256

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates.table import by_id
from paper import tables as paper_tables
from paper.claims import claim_estimates, judge_claims, post_hoc_claims
from paper.reported import SOURCES, read_reported, reported_estimates
from paper.rules import ClaimRules, Side, read_rules
from paper.verdicts import Verdict, verdict_of_hosts
from tests.handmade import frame, number, on_hosts

JOB, OTHER = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
GAIN = {"quantity": "stp", "jobs": [JOB], "counts": [2], "methods": ["mps"]}
MORE, LESS = GAIN | {"above": 1.5}, GAIN | {"below": 0.8}
SAME = GAIN | {"within": [0.952, 1.05]}


def cell(quantity, *hosts, scenario=f"2x_{JOB}", **fields):
    """Numbers of one place on these hosts, each (low, high) or a point."""
    values = [(h[0], sum(h) / 2, h[1]) if isinstance(h, tuple) else h for h in hosts]
    return on_hosts(quantity, scenario, *values, **fields)


def outcome(scenario=f"2x_{JOB}", method="mps", status="completed", note="", value=1.0):
    return number("outcome", scenario, method, status=status, note=note, value=value)


def decide(rows, *tests, **claim):
    """What is judged of one claim with these tests."""
    content = {"id": "C1", "text": "A claim.", "sources": ["SUIT25"], "tests": list(tests)} | claim
    rules = ClaimRules.model_validate({"claims": [content]})
    return judge_claims(rules, frame(rows))[0]


@pytest.mark.parametrize(
    ("test", "hosts", "verdict"),
    [
        (MORE, [(1.6, 1.9)], Verdict.HOLDS),
        (MORE, [(1.2, 1.4)], Verdict.CONTRADICTED),
        (MORE, [(1.4, 1.6)], Verdict.IMPRECISE),
        (MORE, [1.9], Verdict.IMPRECISE),  # one replicate decides nothing
        (MORE, [(1.6, 1.9), 1.7, (1.4, 1.8)], Verdict.HOLDS),
        (MORE, [(1.6, 1.9), 1.4], Verdict.IMPRECISE),  # a point on the other side
        (MORE, [(1.2, 1.4), 1.6], Verdict.IMPRECISE),
        (MORE, [(1.2, 1.4), 1.3], Verdict.CONTRADICTED),
        (MORE, [(1.6, 1.9), (1.2, 1.4), 1.4], Verdict.DEPENDS),
        (LESS, [(0.6, 0.7)], Verdict.HOLDS),
        (LESS, [(0.9, 1.0)], Verdict.CONTRADICTED),
        (LESS, [(0.6, 0.7), (0.9, 1.0)], Verdict.DEPENDS),
        (SAME, [(0.99, 1.01)], Verdict.HOLDS),
        (SAME, [(0.8, 1.2)], Verdict.IMPRECISE),  # a wide interval around 1 supports nothing
        (SAME, [(0.9, 0.95)], Verdict.CONTRADICTED),
        (SAME, [(0.99, 1.01), 1.06], Verdict.IMPRECISE),
    ],
)
def test_hosts_decide_by_their_intervals(test, hosts, verdict):
    assert decide(cell("stp", *hosts), test).verdict == verdict


@pytest.mark.parametrize(("n", "verdict"), [(1, "too imprecise"), (3, "holds")])
def test_more_cells_of_a_host_tell_more_of_their_mean(n, verdict):
    """The next cell may lie below the bound; the mean of three does not."""
    assert decide(cell("stp", (1.42, 1.9), n=n), MORE).verdict == verdict


@pytest.mark.parametrize(("spread", "verdict"), [("interval", "holds"), ("cell", "too imprecise")])
def test_what_one_interleaved_cell_tells_of_itself_decides_nothing(spread, verdict):
    assert decide(cell("stp", (1.6, 1.9), spread=spread), MORE).verdict == verdict


def test_a_claim_shows_the_values_of_the_hosts_that_decide_it():
    rows = cell("stp", (1.6, 1.9), 1.7, (1.2, 1.4))
    judged = decide(rows, MORE)
    [number] = paper_tables.verdict_table([judged], frame(rows))["ours"]
    for text in (number.spell(number.estimate), judged.reason):
        assert "(1.30 to 1.75)" in text


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
    paper = number("stp", f"2x_{JOB}", source="SUIT25", value=1.97)
    rows = [*cell("stp", (1.6, 1.9), 1.7), paper]
    rows += cell("stp", third, scenario=f"3x_{JOB}") if third else []
    judged = decide(rows, MORE | {"counts": [2, 3]})
    assert judged.verdict == decide(rows, MORE, MORE | {"counts": [3]}).verdict == verdict
    assert ("For 3 ×" in judged.reason) == (verdict in (Verdict.CONTRADICTED, Verdict.IMPRECISE))
    identity, evidence = f"stp:2x_{JOB}/paper_step/mps", judged.tests[0].sets[0]
    assert (evidence.estimate_ids, evidence.reported_id) == ((identity,), f"{identity}@SUIT25")
    assert evidence.sides_in_words == "yes on h1; rather yes on h2"
    [row] = paper_tables.verdict_table([judged], frame(rows)).to_dict("records")
    jobs = row["ours"].estimate and row["ours"].estimate.jobs
    assert jobs == (int(row["why"].split()[1]) if third else None)


@pytest.mark.parametrize(
    ("rows", "quantity", "planned", "words"),
    [
        ([], "stp", False, "(not planned)"),
        ([outcome(method="naive")], "stp", False, "(not planned)"),
        ([outcome()], "stp", True, "throughput gain (STP) for 2 ×"),
        ([outcome()], "rate_over_naive", False, "as separate processes (not planned)"),
        ([outcome(status="unsupported", note="MIG is off; why")], "stp", True,
         "under MPS (unsupported: MIG is off)"),
        ([outcome(), outcome(method="naive", status="failed")], "rate_over_naive", True,
         "as separate processes (failed)"),
    ],
)  # fmt: skip
def test_what_is_missing_says_why(rows, quantity, planned, words):
    judged = decide(rows, MORE | {"quantity": quantity})
    assert judged.verdict == Verdict.NOT_TESTABLE and judged.planned is planned
    assert words in judged.reason


NEED = {"quantity": "gract", "job": OTHER, "above": 0.9}
BOTH, ON_H1 = [(1.6, 1.9), (1.2, 1.4)], "yes on h1; not comparable on h2."


@pytest.mark.parametrize(
    ("hosts", "readings", "verdict", "words"),
    [
        ([(1.6, 1.9)], [0.95], Verdict.HOLDS, ""),
        ([(1.6, 1.9)], [(0.91, 0.99)], Verdict.HOLDS, ""),
        ([(1.6, 1.9)], [(0.86, 0.99)], Verdict.NOT_TESTABLE, "on no host."),  # it may be lower
        ([(1.6, 1.9)], [0.7], Verdict.NOT_TESTABLE, ""),
        ([(1.6, 1.9)], [], Verdict.NOT_TESTABLE, "was not read"),
        ([], [0.7], Verdict.NOT_TESTABLE, ""),  # whatever it needs
        (BOTH, [0.95, 0.7], Verdict.HOLDS, ON_H1),  # only hosts that meet the need count
        (BOTH, [0.7, 0.95], Verdict.CONTRADICTED, ""),
        (BOTH, [0.7, 0.8], Verdict.NOT_TESTABLE, "on no host."),
        ([(1.6, 1.9)], [0.7, 0.95], Verdict.NOT_TESTABLE, "That is so on h2 only."),
    ],
)
def test_needs_are_met_host_by_host(hosts, readings, verdict, words):
    rows = [*(cell("stp", *hosts) if hosts else ()), outcome()]
    if readings:
        rows += cell("gract", *readings, scenario=f"1x_{OTHER}", method="naive")
    judged = decide(rows, MORE, needs=[NEED])
    assert judged.verdict == verdict and words in judged.reason, judged.reason
    if words == ON_H1:
        assert judged.tests[0].sets[0].estimate_ids == (f"stp:2x_{JOB}/paper_step/mps@h1",)
    if readings in ([0.95, 0.7], [0.7, 0.95]):
        smact = [row | {"quantity": "smact"} for row in rows if row["quantity"] == "gract"]
        smact = [row | {"value": 1.65 - row["value"]} for row in smact]
        judged = decide([*rows, *smact], MORE, needs=[NEED, NEED | {"quantity": "smact"}])
        assert judged.verdict == Verdict.NOT_TESTABLE  # never both on one host


def test_of_all_jobs_where_takes_those_by_their_reading_alone():
    """Of every implementation; those whose reading straddles the bound are in neither test."""
    rows = []
    for job, implementation, gain, smact in (
        (JOB, "paper_step", (1.6, 1.9), (0.1, 0.2)),
        (JOB, "graph", (1.6, 1.9), (0.5, 0.6)),
        (OTHER, "paper_step", (1.0, 1.1), (0.85, 0.9)),
        (OTHER, "graph", (0.8, 0.9), (0.7, 0.9)),
    ):
        place = {"implementation": implementation}
        rows += [outcome(f"2x_{job}") | place, *cell("stp", gain, scenario=f"2x_{job}", **place)]
        rows += cell("smact", smact, scenario=f"1x_{job}", method="naive", **place)
        rows += cell("stp", (0.1, 0.2), scenario=f"3x_{job}", **place)
    test = {key: GAIN[key] for key in ("quantity", "counts", "methods")} | {"above": 1.5}
    judged = decide(rows, test | {"where": {"quantity": "smact", "below": 0.8}})
    assert judged.verdict == Verdict.HOLDS and len(judged.tests[0].sets) == 2
    for least, verdict in ((0.8, Verdict.CONTRADICTED), (0.95, Verdict.NOT_TESTABLE)):
        where = {"quantity": "smact", "at_least": least}
        assert decide(rows, test | {"where": where}).verdict == verdict
    assert len(decide(rows, test).tests[0].sets) == 4


@pytest.mark.parametrize(
    ("line", "verdict", "words"),
    [
        ((1.6, 1.7, 1.8), Verdict.AGREES, "at the paper's GRACT is 1.70 [1.60, 1.80]"),
        ((1.2, 1.3, 1.4), Verdict.CONTRADICTED, "no on all hosts"),
        ((1.4, 1.6, 1.8), Verdict.IMPRECISE, "rather yes on all hosts"),
        (None, Verdict.NOT_TESTABLE, "hosts too alike"),
    ],
)
def test_a_claim_is_read_off_a_line(line, verdict, words):
    """Whatever the hosts say at their own GRACT."""
    rows = [outcome(), *cell("stp", (0.5, 0.6), (0.5, 0.6))]
    rows += [number("stp_at_gract", f"2x_{JOB}", value=line, hosts=2)] * bool(line)
    rows += [number("stp", f"2x_{JOB}", source="SUIT25", value=1.97)]
    judged = decide(rows, MORE | {"quantity": "stp_at_gract"})
    assert judged.verdict == verdict and words in judged.reason and judged.planned
    assert judged.tests[0].sets[0].reported_id == f"stp:2x_{JOB}/paper_step/mps@SUIT25"


@pytest.mark.parametrize("test", [{"methods": ["mig"]}, {"quantity": "rate_over_mig"}, {}])
def test_claims_that_need_mig_and_claims_without_a_test_say_so(test):
    judged = decide([outcome()], MORE | test)
    assert judged.verdict == Verdict.NOT_TESTABLE
    assert judged.reason.startswith("Needs MIG.") == bool(test)
    judged = decide([outcome()], untestable="It follows from the method.")
    assert (judged.verdict, judged.reason) == (Verdict.NOT_TESTABLE, "It follows from the method.")


def test_a_mix_is_found_in_any_order_of_its_parts():
    scenario = f"1x_{OTHER}+1x_{JOB}--completion"
    test = {"quantity": "time_over_serial", "mix": {JOB: 1, OTHER: 1}, "methods": ["mps"]}
    test |= {"variant": "completion", "window": "completion", "below": 0.98}
    rows = cell("time_over_serial", (0.9, 0.95), scenario=scenario, window="completion")
    assert decide([*rows, outcome(scenario)], test).verdict == Verdict.HOLDS


FITS = {"quantity": "parts_over_capacity", "methods": ["naive", "mps"], "fits": True}
NAMED = FITS | {"jobs": [JOB], "counts": [5, 7], "methods": ["mps"]}


@pytest.mark.parametrize(
    ("test", "sets", "verdict"),
    [
        (FITS, [(2, 0.5, "completed"), (5, 1.2, "out_of_memory")], Verdict.HOLDS),
        (FITS, [(2, 0.5, "completed"), (5, 1.2, "completed")], Verdict.CONTRADICTED),
        (FITS, [(2, 0.9, "out_of_memory"), (5, 1.2, "out_of_memory")], Verdict.CONTRADICTED),
        (FITS, [(2, 0.5, "completed"), (5, 1.2, "failed")], Verdict.NOT_TESTABLE),
        (FITS, [], Verdict.NOT_TESTABLE),
        (NAMED, [(5, 1.2, "out_of_memory")], Verdict.NOT_TESTABLE),  # 7 were not run
        (NAMED, [(5, 1.2, "completed")], Verdict.CONTRADICTED),
    ],
)
def test_memory_fits_exactly_where_its_parts_do(test, sets, verdict):
    """sets: copies, memory of the jobs alone over the card's, what became of the set."""
    rows = [outcome(f"{n}x_{JOB}", status=status) for n, _, status in sets]
    rows += [number("parts_over_capacity", f"{n}x_{JOB}", value=parts) for n, parts, _ in sets]
    assert decide(rows, test).verdict == verdict


# The file


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quantity": "speed"}, ["claims.0.tests.0.quantity", "'stp'"]),
        ({"methods": ["mps_4g"]}, ["methods", "'mig_4g'"]),  # a study's stand-in
        ({"bound": 2}, ["bound"]),
        ({"below": 2}, ["give one of above, below, within, fits"]),
        ({"mix": {JOB: 2}}, ["give jobs with counts", "or a mix"]),
        ({"where": {"quantity": "smact", "below": 0.8}}, ["name none"]),
        ("claims: [", ["no YAML"]),
    ],
)
def test_a_mistake_is_one_line_with_file_key_and_what_is_allowed(tmp_path, change, says):
    path = tmp_path / "claims.yaml"
    if isinstance(change, dict):
        content = {"claims": [{"id": "C7", "text": "A claim.", "tests": [MORE | change]}]}
        change = yaml.safe_dump(content)
    path.write_text(change, encoding="utf-8")
    with pytest.raises(ValueError, match=r"claims\.yaml: ") as error:
        read_rules(path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in says)


def test_who_changes_a_rule_says_when():
    """Else a study from before the change would not be marked post hoc."""
    rules = read_rules()
    changing = {"tests", "needs", "settled"}
    tested = [claim.model_dump_json(include=changing) for claim in rules.claims]
    digest = sha256("".join(tested).encode()).hexdigest()[:12]
    assert (str(rules.settled), digest) == ("2026-11-26 04:15:00+00:00", "ae9c9551f0a9")


def test_no_bound_of_a_claim_is_implied_by_its_own_conditions():
    """No quantity of a set is both what it needs and what it must show."""
    for claim in read_rules().claims:
        needed = {(need.quantity, need.window) for need in claim.needs}
        assert not needed & {(test.quantity, test.window) for test in claim.tests}, claim.id


# Where one of the paper's sources falls on the other side of a bound, and why.
PAPER_DIFFERS = {
    ("C3c", "SUIT25"): "the talk's 5.35 at seven jobs is more than the abstract's three times",
    ("C3d", "SUIT25"): "and more than arXiv's four times",
    ("C4b", "LEC22"): "the lecture's older software has MIG ahead of MPS at seven jobs",
    ("C16b", "LEC22"): "as C4b",
    ("C6d", "LEC22"): "two large jobs gain 1.101 under MIG in the lecture; the bound is 1.1",
}


def test_the_papers_own_values_are_on_its_side():
    rows = reported_estimates(read_reported())
    estimates = frame(rows).drop_duplicates("id")
    numbers, rules, beside, differ = by_id(estimates), read_rules(), 0, set()
    for source in SOURCES:
        only = [
            claim.model_copy(update={"sources": [source] * (source in claim.sources)})
            for claim in rules.claims
        ]
        for judged in judge_claims(rules.model_copy(update={"claims": only}), estimates):
            for test in judged.tests:
                identities = [
                    evidence.reported_id
                    for evidence in test.sets
                    if evidence.reported_id and not test.test.fits
                ]
                sides = [test.test.side(numbers[identity]) for identity in identities]
                beside += len(sides)
                differ |= {(judged.claim.id, source)} if Side.LEANS_AGAINST in sides else set()
    assert differ == set(PAPER_DIFFERS)
    assert beside > 50


def test_without_estimates_nothing_is_testable():
    rules = read_rules()
    rows = list(claim_estimates(rules, frame([])))
    verdicts = {row["name"]: row for row in rows if row["quantity"] == "claim"}
    assert set(verdicts) == {claim.id for claim in rules.claims}
    assert {row["status"] for row in verdicts.values()} == {"not testable"}
    counts = {row["name"]: row["value"] for row in rows if row["quantity"] == "count"}
    assert counts["claims_not_testable"] == counts["claims"] == len(verdicts)


@pytest.mark.parametrize(
    ("began", "post_hoc"),
    [
        ("2026-11-25", ("C1", "C2")),
        ("2026-11-27", ("C2",)),  # whose own rule was changed later
        ("2026-11-29", ()),
        (None, ()),  # nothing was seen
    ],
)
def test_verdicts_on_cells_from_before_the_last_change_are_post_hoc(began, post_hoc):
    changed = {"C1": None, "C2": "2026-11-28T00:00:00+00:00"}
    claims = [
        {"id": name, "text": "A claim.", "tests": [MORE], "settled": settled}
        for name, settled in changed.items()
    ]
    content = {"claims": claims, "settled": "2026-11-26T00:00:00+00:00"}
    rules, rows = ClaimRules.model_validate(content), []
    if began:
        seconds = datetime.fromisoformat(f"{began}T00:00:00+00:00").timestamp()
        rows.append(number("count", name="began", value=seconds))
    assert post_hoc_claims(rules, frame(rows)) == post_hoc


# Laws


SIDES = st.sampled_from(list(Side))


@given(st.lists(SIDES, min_size=1), st.permutations(list(Side)))
def test_the_order_of_hosts_does_not_matter_and_one_that_supports_never_contradicts(sides, order):
    verdict = verdict_of_hosts(sides)
    assert verdict == verdict_of_hosts(sorted(sides, key=order.index))
    supported = verdict_of_hosts([*sides, Side.SUPPORTS])
    assert supported != Verdict.CONTRADICTED
    assert verdict != Verdict.HOLDS or supported == Verdict.HOLDS
