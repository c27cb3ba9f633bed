"""Estimates: what each number is made of, and the laws that all of them obey."""

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.estimates import table as estimates
from analysis.estimates.formulas import LOADER_QUANTITIES
from analysis.estimates.quantities import AT_GRACT, QUANTITIES
from analysis.estimates.records.schema import SCHEMA
from analysis.report import explain
from paper.gract_lines import QUANTITIES_ON_LINES
from tests.handmade import frame, number, simulated, written
from tests.simulator import BUSY_GAINS, CARD, IMPLEMENTATION, Design, Job, Noise, simulate
from workflow.collocation.record.values import REQUEST_METRICS
from workflow.collocation.study.names import parse_scenario

THIN, WIDE = Job("thin_b32", 3000, 0.2), Job("wide_b32", 700, 0.97, BUSY_GAINS, memory=9.0)
PAIR = "1x_thin_b32+1x_wide_b32"
RICH = Design(
    [THIN, WIDE],
    counts=(2, 3, 7),
    methods=("naive", "mps", "mig"),
    mixes=(PAIR, "2x_thin_b32+1x_wide_b32--departure", f"{PAIR}--completion"),
    hosts=2,
    replicates=3,
    ends={
        ("7x_wide_b32", "mig"): "unsupported",
        ("7x_wide_b32", "mps"): "out_of_memory",
        ("3x_wide_b32", "mig"): "not_run",
    },
    failing=0.05,
    unsteady=0.1,
    split=True,
)


def built(design, seed=1, rows=None):
    """id → estimate of a simulated study; `rows` changes its rows."""
    return simulated(design, seed, rows)


@pytest.fixture(scope="module")
def rich():
    return built(RICH)


def told(e):
    """What of an estimate is a number, with NaN as None."""
    ends = (None if math.isnan(x) else x for x in (e.value, e.low, e.high))
    return *ends, e.n, tuple(r["value"] for r in e.replicates)


def test_every_kind_of_measured_quantity_is_there(rich):
    missing = QUANTITIES.keys() - {e.quantity for e in rich.values()}
    # RICH has one way of writing, no interleaved cell, no set on streams; predictions and lines
    # are made later.
    lines = {name + AT_GRACT for name in QUANTITIES_ON_LINES}
    rewritten = {"stp_apart", "alone_over_paper", "fastest_rate", "over_fastest", "rate_over_mps"}
    served = {*REQUEST_METRICS, "tpot_over_alone", "e2el_over_alone"}
    made = {"claim", "epoch_time", *rewritten, "aa", "stp_predicted", *lines, *served}
    made |= {"cpu_per_sample", *LOADER_QUANTITIES}  # of studies whose jobs share a loader
    assert missing == made
    place = "thin_b32/paper_step/mps"  # of fewer jobs, not of as many
    assert f"stp_over_3:7x_{place}" in rich and f"stp_over_3:3x_{place}" not in rich


def test_a_gain_is_s_times_what_filling_gaps_wins(rich):
    for e in rich.values():
        if e.quantity != "gaps":
            continue
        stp, s = (rich[e.id.replace("gaps:", f"{name}:")] for name in ("stp", "s"))
        assert stp.value == pytest.approx(s.value * e.value, rel=1e-9)
        for parts in zip(stp.replicates, s.replicates, e.replicates, strict=True):
            assert len({r["cell"] for r in parts}) == 1


def test_hosts_differ_in_a_job_alone_and_not_in_what_it_does_while_the_gpu_is_busy():
    found = built(Design([THIN], hosts=3, noise=Noise(replicate=0, alone=0, device=0)))
    where = "1x_thin_b32/paper_step/naive"
    rates = [found[f"rate:{where}@h{host}"].value for host in (1, 2, 3)]
    assert max(rates) > 1.05 * min(rates)
    for host in ("", "@h1", "@h2", "@h3"):
        assert found[f"device_rate:{where}{host}"].value == pytest.approx(THIN.device_rate)


@given(host=st.integers(1, 2), factor=st.floats(0.1, 10), seed=st.integers(0, 50))
@settings(max_examples=2)
def test_a_faster_host_changes_no_ratio(host, factor, seed):
    """All rates of one host times a factor: what is in samples/s or J moves, and only there."""
    design = Design([THIN], counts=(2,), mixes=(), hosts=2, replicates=2)

    def faster(rows):
        own = {"m1": 1.0, "m2": 1.0} | {f"m{host}": factor}
        return [r | {"samples_per_s": r["samples_per_s"] * own[r["machine"]]} for r in rows]

    before, after = built(design, seed), built(design, seed, rows=faster)
    assert before.keys() == after.keys()
    moved = {"rate", "device_rate", "energy_per_sample", "fastest_rate"}
    for identity, e in before.items():
        if e.quantity in moved:
            of_host = e.host == f"h{host}"
            power = 1 if e.quantity.endswith("rate") else -1
            if e.host:
                expected = e.value * (factor**power if of_host else 1)
                assert after[identity].value == pytest.approx(expected)
        elif not math.isnan(e.value):
            assert after[identity].value == pytest.approx(e.value, abs=1e-12), identity
            assert after[identity].low == pytest.approx(e.low, abs=1e-12, nan_ok=True), identity


@given(seed=st.integers(0, 1000))
@settings(max_examples=4)
def test_another_host_changes_no_value_of_the_first(seed):
    """Its intervals it does: how cells vary is pooled over hosts."""
    design = Design([THIN, WIDE], counts=(2,), mixes=(PAIR,), hosts=3, replicates=2)

    def without_last(rows):
        return [row for row in rows if row["machine"] != "m3"]

    three, two = built(design, seed), built(design, seed, rows=without_last)
    single = {identity for identity, e in two.items() if e.host}
    assert single and single < three.keys()
    for identity in single:
        if two[identity].quantity != "over_fastest" or "over hosts" not in two[identity].note:
            ours, theirs = told(three[identity]), told(two[identity])
            assert (ours[0], *ours[3:]) == (theirs[0], *theirs[3:]), identity


@given(seed=st.integers(0, 1000))
@settings(max_examples=4)
def test_the_order_of_rows_of_cells_does_not_matter(seed):
    design = Design([THIN], counts=(2,), hosts=2, replicates=2, split=True)
    forward, backward = built(design, seed), built(design, seed, rows=lambda rows: rows[::-1])
    assert forward.keys() == backward.keys()
    for identity, e in forward.items():
        for one, other in zip(told(e)[:3], told(backward[identity])[:3], strict=True):
            assert one == pytest.approx(other), identity


def test_one_replicate_has_no_interval():
    found = built(Design([THIN], replicates=1))
    for e in found.values():
        if e.scenario and e.quantity != "outcome":
            assert (e.spread, told(e)[1:4]) == ("none", (None, None, 1)), e.id


def test_baselines_come_from_the_same_replicate_and_device(rich):
    rows = {f"{row['cell']}/a{row['attempt']}": row for row in simulate(RICH, 1).rows}
    within = {"stp", "antt", "s", "gaps", "slowdown", "rate_over_naive", "rate_over_mig"}
    within |= {"stp_over_3", "energy_over_serial", "memory_over_parts"}
    within |= {"time_over_serial", "saving", "reclaimed"}
    seen = Counter()
    for e in rich.values():
        bases = {base for r in e.replicates for base in r["over"].split()}
        cells = {r["cell"] for r in e.replicates} | bases
        assert cells <= rows.keys(), e.id
        for r in e.replicates if e.quantity in within else ():
            assert r["over"], e.id
            for base in r["over"].split():
                for key in ("replicate", "device", "implementation"):
                    assert rows[base][key] == rows[r["cell"]][key], e.id
                seen[e.quantity] += 1
    assert seen.keys() == within


def test_a_set_without_its_job_alone_has_a_rate_and_no_gain():
    def without(rows):
        return [row for row in rows if row["n"] > 1 or row["replicate"] > 1]

    found = built(Design([THIN], replicates=3), rows=without)
    assert found["rate:7x_thin_b32/paper_step/mps"].n == 3
    assert found["stp:7x_thin_b32/paper_step/mps"].n == 2
    assert found["rate_over_naive:7x_thin_b32/paper_step/mps"].n == 3


def test_samples_of_unlike_jobs_are_never_added(rich):
    for e in rich.values():
        mixed = e.scenario and parse_scenario(e.scenario).mixed
        # One job that is left of a mix is alike.
        if mixed and e.window != "after" and not e.job:
            assert e.unit not in ("samples/s", "J"), e.id
    assert f"job_rate:{PAIR}/paper_step/mps/thin_b32" in rich


def test_over_the_fastest_way_alone():
    """Of a mix each job over its own, cell by cell."""
    implementations, mix = (
        {"slow": 0.5, "fast": 2.0, IMPLEMENTATION: 1.0},
        "2x_thin_b32+1x_wide_b32",
    )
    quiet = Noise(0, 0, 0, 0, 0, 0, 0)
    jobs = [
        replace(THIN, implementations=implementations),
        replace(WIDE, implementations={IMPLEMENTATION: 1.0, "fast": 2.0}),
    ]
    found = built(Design(jobs, hosts=2, mixes=(mix,), noise=quiet))
    fastest = {
        e.scenario: (e.implementation, e.value)
        for e in found.values()
        if e.quantity == "fastest_rate"
    }
    assert fastest["1x_thin_b32"] == ("fast", pytest.approx(6000))
    assert found["alone_over_paper:1x_thin_b32/slow/naive"].value == pytest.approx(0.5)
    over = {e.id: e.value for e in found.values() if e.quantity == "over_fastest"}
    assert over["over_fastest:1x_thin_b32/slow/naive"] == pytest.approx(0.25)
    assert over["over_fastest:1x_thin_b32/fast/naive"] == pytest.approx(1)
    assert over["over_fastest:7x_thin_b32/paper_step/mps@h1"] == pytest.approx(3.5)
    place = f"{mix}/paper_step/mps"
    expected = pytest.approx(2 * 0.5 + WIDE.rate / fastest["1x_wide_b32"][1])
    assert over[f"over_fastest:{place}@h1"] == expected
    e = found[f"over_fastest:{place}"]
    assert len({r["cell"] for r in e.replicates}) == e.n == 10


def test_a_set_whose_job_alone_is_in_other_cells_has_a_gain_apart(rich):
    """Host by host, and none where there is an STP."""

    def apart(rows):
        alone = [row["scenario"].startswith("1x_") and row["method"] == "naive" for row in rows]
        return [row | {"replicate": row["replicate"] + 100 * one}
                for row, one in zip(rows, alone, strict=True)]  # fmt: skip

    found = built(Design([THIN, WIDE], hosts=2, noise=Noise(0, 0, 0, 0, 0, 0, 0)), rows=apart)
    assert not any(e.quantity == "stp" and e.jobs > 1 for e in found.values())
    e = found["stp_apart:2x_wide_b32/paper_step/naive@h2"]
    assert e.value == pytest.approx(0.92 / 0.97) and len(e.replicates) == 5
    assert not any(e.quantity == "stp_apart" for e in rich.values())


def test_memory_of_jobs_alone_is_that_of_all_copies(rich):
    one = rich["memory_of_jobs:1x_wide_b32/paper_step/naive"]
    e = rich["parts_over_capacity:7x_wide_b32/paper_step/naive"]
    capacity = rich["capacity_for_jobs:1x_wide_b32/paper_step/naive"].value
    assert e.value == pytest.approx(7 * one.value / capacity)
    assert np.mean([r["value"] for r in e.replicates]) == pytest.approx(e.value)


def test_fixed_work(rich):
    """Steps are a minute of work alone each."""
    for method in ("naive", "mps"):
        place = f"{PAIR}--completion/paper_step/{method}/completion"
        took = rich[f"time_over_serial:{place}"]
        for r, saved in zip(took.replicates, rich[f"saving:{place}"].replicates, strict=True):
            assert r["value"] == pytest.approx(r["numerator"] / r["denominator"])
            assert r["denominator"] == pytest.approx(120, rel=0.01)
            assert saved["value"] == pytest.approx(1 - r["value"])


CONDITIONS = "alone-naive-mps-naive"
TAKING_TURNS = Design([THIN], (7,), replicates=2, hosts=2, turns=(("7x_thin_b32", CONDITIONS),))
ALONE = f"1x_thin_b32/{IMPLEMENTATION}/naive"
OVER = f"rate_over_naive:7x_thin_b32/{IMPLEMENTATION}/mps"


def on_first(rows, change=None):
    """Without the interleaved cell of the second host; `change` alters rows of the first one's."""
    kept = [r for r in rows if r["measure"] != "interleaved" or r["machine"] == "m1"]
    return [change(r) if change and r["measure"] == "interleaved" else r for r in kept]


def test_an_interleaved_cell_supersedes_other_cells_of_its_host():
    found = built(TAKING_TURNS, rows=on_first)
    first, second, both = (found[OVER + at] for at in ("@h1", "@h2", ""))
    assert (first.design, second.design, both.design) == ("interleaved", "replicates", "both")
    assert (first.n, second.n, both.n) == (1, 2, 3) and both.spread == "range"
    (cell,) = first.replicates
    assert (
        cell["cell"]
        == cell["over"]
        == f"7x_thin_b32--interleaved/{IMPLEMENTATION}/{CONDITIONS}/r1/a1"
    )
    assert cell["value"] == pytest.approx(cell["numerator"] / cell["denominator"])
    assert len(cell["batches"]) == 10 and first.low < first.value < first.high < 1.01 * first.low
    rate, alone = (found[f"rate:{of}@h1"] for of in (OVER.partition(":")[2], ALONE))
    stp, s, gaps = (found[f"{q}:7x_thin_b32/{IMPLEMENTATION}/mps@h1"] for q in ("stp", "s", "gaps"))
    assert (
        stp.value == pytest.approx(rate.value / alone.value) == pytest.approx(s.value * gaps.value)
    )
    assert s.high / s.low < stp.high / stp.low  # the job alone wavers with its GRACT
    assert found[f"aa:7x_thin_b32/{IMPLEMENTATION}/naive@h1"].value == pytest.approx(1, abs=0.01)
    # What slices do not tell is of cells that show it: memory and power of a set by itself.
    assert found[f"memory:7x_thin_b32/{IMPLEMENTATION}/mps@h1"].design == "replicates"
    outcome = found[f"outcome:7x_thin_b32/{IMPLEMENTATION}/mps"]
    assert (outcome.value, outcome.n) == (5, 6) and not any("--interleaved" in i for i in found)
    assert found["count:cells"].value == 2 * 2 * 3 + 2
    told = explain.explain(frame(e._asdict() for e in found.values()), f"{OVER}@h1")
    assert "10 batches" in told and "take turns in one cell" in told and cell["cell"] in told


@pytest.mark.parametrize("rounds", [60, 47, 9])
def test_its_numbers_follow_from_its_slices(rounds):
    """Computed once more, with numpy and scipy alone, of jobs alike and of a mix."""
    turns = (("7x_thin_b32", CONDITIONS), (PAIR, "alone-naive-mps"))
    design = Design([THIN, WIDE], (), replicates=0, turns=turns, rounds=rounds)
    found, conditions = built(design), {}
    for row in simulate(design, 1).rows:
        kept = conditions.setdefault((row["cell"].split("--")[0], row["window"]), {})
        kept.setdefault(row["workload"], []).append(row["slices"])
        kept["busy"] = row["gract_slices"]

    def check(quantity, scenario, number, place=f"{IMPLEMENTATION}/mps"):
        """number: of so many rounds, as (from, to)."""
        parts = np.array_split(np.arange(rounds), min(10, rounds // 2))
        logs = np.log([number(slice(part[0], part[-1] + 1)) for part in parts])
        half = stats.t.ppf(0.975, len(parts) - 1) * logs.std(ddof=1) / math.sqrt(len(parts))
        e, whole = found[f"{quantity}:{scenario}/{place}@h1"], number(slice(0, rounds))
        expected = whole, whole * math.exp(-half), whole * math.exp(half)
        assert (e.value, e.low, e.high) == pytest.approx(expected, rel=1e-9)

    def rate(name, at, job="thin_b32", of="7x_thin_b32"):
        return np.array(conditions[of, name][job]).sum(axis=0)[at].mean()

    def busy(at):
        return np.mean(conditions["7x_thin_b32", "alone"]["busy"][at])

    def mix(name, at):
        jobs = ("thin_b32", "wide_b32")
        return sum(rate(name, at, j, PAIR) / rate(f"alone:{j}", at, j, PAIR) for j in jobs)

    check("rate", "7x_thin_b32", lambda at: rate("mps", at))
    check("stp", "7x_thin_b32", lambda at: rate("mps", at) / rate("alone", at))
    check("s", "7x_thin_b32", lambda at: rate("mps", at) / rate("alone", at) * busy(at))
    check("gaps", "7x_thin_b32", lambda at: 1 / busy(at))
    check("rate_over_naive", "7x_thin_b32", lambda at: rate("mps", at) / rate("naive", at))
    again = lambda at: rate("naive_2", at) / rate("naive", at)  # noqa: E731
    check("aa", "7x_thin_b32", again, f"{IMPLEMENTATION}/naive")
    check("stp", PAIR, lambda at: mix("mps", at))
    check("rate_over_naive", PAIR, lambda at: mix("mps", at) / mix("naive", at))


def test_an_interleaved_cell_that_ended_early_says_nothing_of_its_conditions():
    ended = {"status": "out_of_memory", "member": None, "window": None, "reason": "too much"}
    found = built(replace(TAKING_TURNS, replicates=0, hosts=1), rows=lambda rows: [rows[0] | ended])
    outcome = found[f"outcome:7x_thin_b32/{IMPLEMENTATION}/mps"]
    assert (outcome.status, outcome.n, outcome.note) == ("not_run", 1, "too much")
    assert found["count:cells_out_of_memory"].value == found["count:cells"].value == 1


@given(
    factors=st.lists(st.floats(0.5, 2), min_size=60, max_size=60, unique=True),
    rounds=st.sampled_from([0, 3, 4, 19, 60]),
)
@settings(max_examples=2)
def test_whatever_befalls_all_conditions_alike_is_in_no_ratio(factors, rounds):
    """Sides that are alike in each round: every ratio is 1, and too few rounds have no interval."""

    def like(row):
        slices = [100.0 * factor for factor in factors[:rounds]]
        return row | {"slices": slices, "samples_per_s": sum(slices) / max(rounds, 1) or 50.0}

    found = built(replace(TAKING_TURNS, hosts=1), rows=lambda rows: on_first(rows, like))
    for quantity, method in (("rate_over_naive", "mps"), ("aa", "naive")):
        e = found[f"{quantity}:7x_thin_b32/{IMPLEMENTATION}/{method}@h1"]
        assert e.value == pytest.approx(1) and e.spread == "none"
    rate = found[f"rate:1x_thin_b32/{IMPLEMENTATION}/naive@h1"]
    assert len(rate.replicates[0]["batches"]) == (0 if rounds < 4 else min(10, rounds // 2))


def test_counts_add_up(rich):
    count = {e.name: e.value for e in rich.values() if e.quantity == "count" and not e.host}
    by_status = [v for name, v in count.items() if name.startswith("cells_")]
    assert sum(by_status) == count["cells"] == len(simulate(RICH, 1).plan)
    outcomes = [e for e in rich.values() if e.quantity == "outcome"]
    assert count["cells_completed"] == sum(e.value for e in outcomes)
    assert count["method_proven"] + count["method_not_proven"] == count["cells_completed"]
    assert count["hosts"] == 2
    losses = sum(value for name, value in count.items() if name.startswith("losses_"))
    rows = [r for r in simulate(RICH, 1).rows if r["status"] == "completed" and r["current"]]
    assert losses == len({(row["cell"], row["member"]) for row in rows})


def test_the_middle_variation_is_of_sets_and_not_of_what_runs_on_after_one_left(rich):
    varied = [e for e in rich.values() if e.quantity == "rate_cv" and not e.host]
    assert {e.window for e in varied} > {""}
    sets = [e.value for e in varied if not e.window and parse_scenario(e.scenario).n > 1]
    assert rich["count:cv_together"].value == pytest.approx(np.median(sets))


def test_outcomes_say_what_became_of_every_planned_set(rich):
    status = {(e.scenario, e.method): e.status for e in rich.values() if e.quantity == "outcome"}
    assert {place: status[place] for place in RICH.ends} == RICH.ends
    assert len(status) == len({(c["scenario"], c["method"]) for c in simulate(RICH, 1).plan})
    unknown = built(RICH, rows=lambda rows: [r | {"status": "postponed"} for r in rows[:40]])
    assert unknown["count:cells_postponed"].value > 0


def test_cells_of_another_gpu_model_are_left_out_and_counted():
    def upgraded(rows):
        other = {"hardware": "Other GPU", "gpu_name": "Other GPU"}
        return [row | (other if row["machine"] == "m3" else {}) for row in rows]

    design = Design([THIN], hosts=3, replicates=2, ends={("7x_thin_b32", "mps"): "out_of_memory"})
    both = built(design, rows=upgraded)
    assert {e.host for e in both.values()} == {"", "h1", "h2"}
    assert both["count:left_out_other_gpu"].value == 2 * 4
    assert both["outcome:7x_thin_b32/paper_step/mps"].status == "out_of_memory"
    assert both["count:cells_out_of_memory"].value == 2 * 2  # not the other card's
    assert both["count:cells_not_run"].value == 2 * 5
    assert CARD in both["count:host_cells@h1"].note


def test_explaining_names_every_cell_and_the_arithmetic(rich):
    table = frame(e._asdict() for e in rich.values())
    for e in rich.values():
        if e.quantity in ("outcome", "stp", "parts_over_capacity", "over_fastest", "rate_cv"):
            text = explain.explain(table, e.id)
            for r in e.replicates:
                assert all(cell in text for cell in (r["cell"], *r["over"].split()))
            on = list(estimates.on_hosts(table, e).itertuples()) if not e.host else []
            for host, cell in ((h.host, r["cell"]) for h in on[1:] for r in h.replicates):
                assert re.search(rf"{re.escape(cell)}\b.*, on {host}$", text, re.M), e.id
    e = number("stp", "7x_a")
    table = frame([e | {"source": "SUIT25"}, e | {"host": "h1"}, e])
    with pytest.raises(ValueError, match="near: stp:7x_a/paper_step/mps$"):
        explain.explain(table, "7x_a/paper")


def test_a_cell_whose_method_was_not_proven_does_not_count():
    """Neither its rate nor what it would be the baseline of; and the study says so."""

    def unproven(row):
        mps = (row["method"], row["replicate"]) == ("mps", 1)
        return mps or (row["scenario"], row["replicate"]) == ("1x_thin_b32", 2)

    def change(rows):
        return [row | ({"method_verified": None} if unproven(row) else {}) for row in rows]

    found = built(Design([THIN], counts=(2,), replicates=3), rows=change)
    assert found["rate:2x_thin_b32/paper_step/mps"].n == 2
    assert found["stp:2x_thin_b32/paper_step/mps"].n == 1
    outcome = found["outcome:2x_thin_b32/paper_step/mps"]
    assert (outcome.value, outcome.n) == (2, 3) and "not proven" in outcome.note
    assert found["count:cells_unverified"].value == found["count:method_not_proven"].value == 2


def test_ids_are_unique_and_are_read_back(rich, tmp_path):
    rows = [e._asdict() for e in rich.values()]
    path = written(tmp_path, rows) / "estimates.parquet"
    read = estimates.by_id(estimates.read_estimates(path))
    assert {e.id: told(e) for e in read.values()} == {i: told(e) for i, e in rich.items()}
    assert path.with_suffix(".csv").read_text("utf-8").count("\n") >= len(rich)
    with pytest.raises(ValueError, match=re.escape(rows[0]["id"])):
        written(tmp_path, [rows[0], rows[0]])


def test_a_file_that_is_none_is_one_line(tmp_path):
    rows = tmp_path / "runs.parquet"
    empty = pa.Table.from_pylist([], schema=SCHEMA)
    pq.write_table(empty, rows)
    with pytest.raises(ValueError, match="no table of estimates"):
        estimates.read_estimates(rows)
    written(tmp_path / "a", [number("count", name="cells")])
    with pytest.raises(FileNotFoundError, match="typo: no results of a study; there are: a$"):
        estimates.read_estimates(tmp_path / "typo" / "estimates.parquet")


def test_latency_over_alone_is_of_one_replicate():
    """Requests of a replicate are the same alone and beside, so what they change cancels."""

    def serve(rows):
        for row in rows:
            if row["workload"] == "thin_b32":
                row["p99_tpot_ms"] = 5 * row["replicate"] * (1.5 if row["scenario"] == PAIR else 1)
        return rows

    found = built(Design([THIN, WIDE], mixes=(PAIR,), replicates=4), rows=serve)
    over = {e.id: told(e) for e in found.values() if e.quantity == "tpot_over_alone"}
    assert over.keys() == {
        f"tpot_over_alone:{PAIR}/paper_step/{method}/thin_b32{host}"
        for method in ("naive", "mps")
        for host in ("", "@h1")
    }
    for e in over.values():
        assert e[-1] == pytest.approx([1.5] * 4)


def test_what_answers_requests_has_no_gain_and_slows_down_who_trains():
    """Its rate is that of the requests: whatever shares the GPU, as long as they are answered."""

    def serve(rows):
        for row in rows:
            row["answered_share"] = 1.0 if row["workload"] == "thin_b32" else None
        return rows

    found = built(Design([THIN, WIDE], mixes=(PAIR,), replicates=2), rows=serve)
    beside = {e.quantity: e.job for e in found.values() if e.scenario == PAIR and not e.host}
    rates = {e.job for e in found.values() if e.quantity in ("job_rate", "slowdown")}
    assert beside["slowdown"] == "wide_b32" and rates == {"wide_b32"}
    gains = {"stp", "s", "antt", "slowdown_worst", "rate_over_naive", "stp_predicted"}
    assert not gains & {e.quantity for e in found.values() if e.scenario == PAIR}
    assert "stp:1x_wide_b32/paper_step/naive" in found
    of_requests = ("stp", "rate", "waits", "device_rate")
    assert not {f"{name}:1x_thin_b32/paper_step/naive" for name in of_requests} & found.keys()


def test_who_does_not_train_as_alone_is_flagged():
    def spoilt(rows):
        for row in rows:
            if row["method"] == "mps" and row["n"] == 2:
                row["loss_check"] = "differs"
        return rows

    found = built(Design([THIN], counts=(2, 3), replicates=2), rows=spoilt)
    marked = {(e.jobs, e.method) for e in found.values() if "losses_differ" in e.flags}
    assert marked == {(2, "mps")}
