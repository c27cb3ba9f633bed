"""Claims and guidelines on hand-made studies with known answers.

`Made` builds rows of runs.parquet; its numbers measure nothing.
"""

import itertools
import json
import math
import re
import subprocess

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import flags, quantities, reported
from analysis.cells import load as load_study
from analysis.cells import read_runs, summarise
from analysis.claims import command as claims
from analysis.claims import page as claims_page
from analysis.claims import verdicts
from analysis.claims.judge import gather, judge
from analysis.claims.rules import Claim, ClaimError, Claims, load
from analysis.claims.verdicts import Verdict
from analysis.guidelines import advice
from analysis.guidelines import page as guidelines
from analysis.merging.schema import SCHEMA
from analysis.names import parse_scenario
from analysis.quantities import Measurements
from analysis.statistics import Estimate, t_quantile, tost
from analysis.views import Key, views_of_runs
from tests.studio import REPOSITORY

CLAIMS = REPOSITORY / "config" / "claims.yaml"
REPORTED = REPOSITORY / "config" / "reported.csv"
ALONE = 100.0  # samples/s
S, L = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
DLRM, R50 = "dlrm_criteo_b2048", "resnet50_imagenet64_b128"
R26 = "resnet26_cifar10_b128"
PAIR, MIX = f"1x_{DLRM}+1x_{L}", f"1x_{R50}+1x_{R26}--departure"
GB = 1e9
SILENT = reported.read(REPORTED).iloc[:0]  # a paper that says nothing
# Of the logs, over the replicates of a cell: they add up to 0, so that means are exact.
SCATTER = (-1.0, 0.5, 1.0, -1.5, 1.0)

# What all cells of a study have in common.
_CELL = {"study": "made", "attempt": 1, "current": True, "flags": "", "method_verified": True}
_CELL |= {"device": "GPU-1", "gpu_uuid": "GPU-1"}


class Made:
    """A study; every cell in every block, with a scatter whose geometric mean is 1."""

    def __init__(self, blocks: int = 5, noise: float = 0.004, **columns):
        self.rows, self.blocks, self.noise = [], blocks, noise
        self.columns = {"hardware": "Test GPU", "digest": "d1", "source": "synthetic"} | columns
        self.turn = itertools.count()

    def cell(self, scenario, method="naive", progress=1.0, status="completed", **options):
        """`progress`: of each member, or one for all. Options: blocks, window, reason, arm, and any
        column of runs.parquet.
        """
        parsed = parse_scenario(scenario)
        names = [name for name, count in parsed.parts for _ in range(count)]
        each = progress if isinstance(progress, list | tuple) else [progress] * len(names)
        arm, turn = options.pop("arm", "faithful"), next(self.turn)
        window = options.pop("window", "window")
        baseline = len(names) == 1 and method == "naive"
        for block in options.pop("blocks", range(1, self.blocks + 1)):
            scatter = 0.0 if baseline else SCATTER[(block + turn) % 5] * self.noise
            base = dict.fromkeys(SCHEMA.names) | _CELL | self.columns
            base |= {"cell": f"{scenario}/{arm}/{method}/r{block}", "block": block, "arm": arm}
            base |= {"scenario": scenario, "method": method, "n": len(names), "status": status}
            base |= options
            if status != "completed":
                self.rows.append(base)
                continue
            for member, (name, value) in enumerate(zip(names, each, strict=True)):
                if value is not None:
                    rate = ALONE * value * math.exp(scatter)
                    row = base | {"member": member, "window": window, "samples_per_s": rate}
                    row |= {"workload": name, "dataset": name.split("_")[1]}
                    row |= {"epoch_time_s": 1000 / rate, "nominal_train_size": 1000}
                    row |= {"baseline_samples_per_s": ALONE, "progress": rate / ALONE}
                    row |= {"baseline_cell": f"1x_{name}/{arm}/naive/r{block}"}
                    self.rows.append(row)
        return self

    def ladder(self, workload, method, gains: dict[int, float], **options):
        """Cells of N copies with these gains; the job alone is added."""
        if method == "naive" and 1 not in gains:
            self.cell(f"1x_{workload}", **{k: v for k, v in options.items() if k == "arm"})
        for n, gain in gains.items():
            self.cell(f"{n}x_{workload}", method, gain / n, **options)
        return self

    def frame(self) -> pd.DataFrame:
        """As read_runs gives it."""
        return pd.DataFrame(self.rows, columns=SCHEMA.names)

    def write(self, path):
        pa.parquet.write_table(pa.Table.from_pylist(self.rows, schema=SCHEMA), path)
        return path


@pytest.fixture(scope="module")
def values():
    return reported.read(REPORTED)


@pytest.fixture(scope="module")
def shipped():
    return {claim.id: claim for claim in load(CLAIMS)}


def decide(made: Made, *tests: dict, values=None, sources=("SUIT25",), expected=(), **claim):
    """The result of one claim with these tests on a hand-made study."""
    content = {"id": "C1", "text": "A claim.", "sources": list(sources), "tests": list(tests)}
    checked = Claim.model_validate(content | claim)
    rows = SILENT if values is None else values
    return judge(checked, gather(views_of_runs(made.frame(), expected), rows))


GAIN = {"of": "gain", "workloads": [S], "counts": [2], "methods": ["mps"]}
MORE = GAIN | {"rule": "greater", "bound": 1.5}
LESS = GAIN | {"rule": "less", "bound": 0.8, "neutral": 0.95}
SAME = GAIN | {"rule": "equal", "margin": 0.05}


# The rules alone


def estimated(mean, error, df=20):
    half = t_quantile(0.975, df) * error
    low, high = mean * math.exp(-half), mean * math.exp(half)
    return Estimate(mean, low, high, 5, error, df)


ratios, errors = st.floats(0.2, 5), st.floats(1e-4, 0.5)
margins = st.floats(0.001, 1)


@given(ratios, errors, st.integers(1, 60), margins)
def test_two_one_sided_tests_treat_a_ratio_and_its_inverse_alike(mean, error, df, margin):
    estimate = estimated(mean, error, df)
    assert tost(verdicts.inverse(estimate), margin) == pytest.approx(tost(estimate, margin))


@given(ratios, errors, st.integers(1, 60), margins)
def test_two_one_sided_tests_pass_where_the_90_percent_interval_is_within(mean, error, df, margin):
    half, bound = t_quantile(0.95, df) * error, math.log1p(margin)
    inside = bound - abs(math.log(mean)) - half
    if abs(inside) > 1e-9:
        assert (tost(estimated(mean, error, df), margin) < 0.05) == (inside > 0)


@given(ratios, errors, margins, margins)
def test_a_wider_margin_never_makes_two_one_sided_tests_less_sure(mean, error, one, other):
    estimate = estimated(mean, error)
    assert tost(estimate, max(one, other)) <= tost(estimate, min(one, other)) + 1e-15


def test_two_one_sided_tests_by_hand():
    # (log 1.05 - log 1.01) / 0.02 = 1.9420 with 10 degrees of freedom: P(t > 1.9420) = 0.0404.
    assert tost(estimated(1.01, 0.02, 10), 0.05) == pytest.approx(0.04039, abs=2e-5)
    assert tost(Estimate(1.0, None, None, 1), 0.05) is None
    assert tost(verdicts.exact(1.04), 0.05) == 0
    assert tost(verdicts.exact(1.06), 0.05) == 1


# From refuted to believed: a looser bound can only raise a verdict.
RISING = [Verdict.CONTRADICTED, Verdict.INCONCLUSIVE, Verdict.DIRECTION, Verdict.HOLDS]


@given(ratios, errors, margins, margins)
def test_verdicts_rise_with_the_margin(mean, error, one, other):
    estimate = estimated(mean, error)
    found = [verdicts.equal(estimate, margin) for margin in sorted((one, other))]
    assert RISING.index(found[0]) <= RISING.index(found[1])


@given(ratios, errors, st.floats(1, 4), st.floats(1, 4))
def test_verdicts_fall_with_the_bound_and_mirror(mean, error, one, other):
    estimate = estimated(mean, error)
    found = [verdicts.greater(estimate, bound) for bound in sorted((one, other))]
    assert RISING.index(found[0]) >= RISING.index(found[1])
    mirrored = verdicts.less(verdicts.inverse(estimate), 1 / one)
    assert mirrored == verdicts.greater(estimate, one)


@given(st.lists(st.sampled_from(list(Verdict)), min_size=1), st.sampled_from(list(Verdict)))
def test_another_part_never_betters_a_compound(parts, part):
    order = list(Verdict)
    assert order.index(verdicts.all_of([*parts, part])) <= order.index(verdicts.all_of(parts))
    assert verdicts.all_of([part]) == part


# Each rule to each verdict


@pytest.mark.parametrize(
    ("test", "gain", "noise", "verdict", "why"),
    [
        (MORE, 1.9, 0.01, Verdict.HOLDS, "the interval lies above 1.5"),
        (MORE, 1.3, 0.01, Verdict.DIRECTION, "above 1, but not above 1.5"),
        (MORE, 1.0, 0.01, Verdict.INCONCLUSIVE, "the interval includes 1"),
        (MORE, 1.5, 0.60, Verdict.INCONCLUSIVE, "the interval includes 1"),
        (MORE, 0.9, 0.01, Verdict.CONTRADICTED, "the interval lies below 1"),
        (LESS, 0.6, 0.01, Verdict.HOLDS, "the interval lies below 0.8"),
        (LESS, 0.9, 0.01, Verdict.DIRECTION, "below 0.95, but not below 0.8"),
        (LESS, 0.95, 0.01, Verdict.INCONCLUSIVE, "the interval includes 0.95"),
        (LESS, 1.2, 0.01, Verdict.CONTRADICTED, "the interval lies above 0.95"),
        (SAME, 1.01, 0.01, Verdict.HOLDS, "equal within 5 %"),
        (SAME, 1.045, 0.01, Verdict.DIRECTION, "equal within 10 % only"),
        (SAME, 1.0, 0.20, Verdict.INCONCLUSIVE, "too wide to tell"),
        (SAME, 1.2, 0.01, Verdict.CONTRADICTED, "further than 5 % from 1"),
        (SAME, 0.8, 0.01, Verdict.CONTRADICTED, "further than 5 % from 1"),
    ],
)
def test_a_number_and_its_bounds(test, gain, noise, verdict, why):
    result = decide(Made(noise=noise).ladder(S, "naive", {}).ladder(S, "mps", {2: gain}), test)
    assert result.verdict == verdict
    assert why in result.why
    assert result.deciding.estimate.mean == pytest.approx(gain)


ORDER = {"rule": "order", "workloads": [S], "counts": [7], "margin": 0.02}
ORDER |= {"methods": ["mps", "mig", "naive"]}


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((5.4, 4.3, 2.7), Verdict.HOLDS),
        ((4.4, 4.35, 2.7), Verdict.DIRECTION),
        ((4.3, 4.3, 2.7), Verdict.INCONCLUSIVE),
        ((3.8, 4.2, 2.3), Verdict.CONTRADICTED),
        ((5.4, 2.3, 2.7), Verdict.CONTRADICTED),
    ],
)
def test_order(gains, verdict):
    made = Made()
    for method, gain in zip(ORDER["methods"], gains, strict=True):
        made.ladder(S, method, {7: gain})
    result = decide(made, ORDER)
    assert result.verdict == verdict
    assert [f.where for f in result.findings] == [
        f"7× {S}, mps over mig",
        f"7× {S}, mig over naive",
    ]
    assert result.findings[0].estimate.mean == pytest.approx(gains[0] / gains[1])


SATURATES = {"rule": "saturates", "workloads": [S], "counts": [3, 7], "methods": ["naive"]}
SATURATES |= {"share": 0.2, "contradicted_share": 0.5}


@pytest.mark.parametrize(
    ("seven", "verdict"),
    [
        (2.7, Verdict.HOLDS),
        (3.4, Verdict.DIRECTION),
        (2.4 * (1 + 0.5 * 4 / 3), Verdict.INCONCLUSIVE),
        (5.4, Verdict.CONTRADICTED),
    ],
)
def test_saturation(seven, verdict):
    assert decide(Made().ladder(S, "naive", {3: 2.4, 7: seven}), SATURATES).verdict == verdict


ADDS = {"rule": "additive", "mix": {DLRM: 1, L: 1}, "methods": ["mps"], "margin": 0.05}


def pair(made, method="mps", memory=38.0, progress=(0.8, 0.95), spread=0.0, **options):
    """The pair and its jobs alone; `spread`: of the memory's logs over the blocks."""
    made.cell(f"1x_{DLRM}", gpu_memory_used=29 * GB, gract=options.pop("gract", 0.06))
    made.cell(f"1x_{L}", gpu_memory_used=9 * GB)
    for block in range(1, made.blocks + 1):
        used = memory * GB * math.exp(spread * SCATTER[block % 5])
        made.cell(PAIR, method, list(progress), blocks=[block], gpu_memory_used=used, **options)
    return made


@pytest.mark.parametrize(
    ("memory", "spread", "verdict"),
    [
        (38.1, 0.005, Verdict.HOLDS),
        (39.6, 0.01, Verdict.DIRECTION),
        (38.0, 0.30, Verdict.INCONCLUSIVE),
        (46.0, 0.01, Verdict.CONTRADICTED),
    ],
)
def test_memory_that_adds_up(memory, spread, verdict):
    result = decide(pair(Made(), memory=memory, spread=spread), ADDS)
    assert result.verdict == verdict
    assert result.deciding.estimate.mean == pytest.approx(memory / 38)


FITS = {"rule": "status", "methods": ["naive", "mps"], "tolerance": 0.1}


def memory_ladder(statuses: dict[int, str], each=30.0, card=141.0, **options):
    made = Made().cell(f"1x_{L}", gpu_memory_used=each * GB, gpu_memory_total=card * GB)
    for n, status in statuses.items():
        made.cell(f"{n}x_{L}", "mps", 1.2 / n, status=status, **options)
    return made


@pytest.mark.parametrize(
    ("statuses", "verdict", "why"),
    [
        ({2: "completed", 7: "out_of_memory"}, Verdict.HOLDS, "needs 1.49"),
        ({2: "completed", 7: "completed"}, Verdict.CONTRADICTED, "5× completed"),
        ({2: "out_of_memory", 7: "out_of_memory"}, Verdict.CONTRADICTED, "needs 0.43"),
        ({2: "completed", 3: "completed"}, Verdict.NOT_TESTABLE, "needs 0.64 of the memory"),
        ({2: "unsupported", 7: "failed"}, Verdict.NOT_TESTABLE, "unsupported"),
        # 5 x 30 of 141 GB: within the tolerance either may be.
        ({5: "completed", 7: "out_of_memory"}, Verdict.HOLDS, "needs 1.49"),
        ({5: "out_of_memory", 7: "out_of_memory"}, Verdict.HOLDS, "needs 1.49"),
    ],
)
def test_what_does_not_fit_must_run_out_of_memory(statuses, verdict, why):
    result = decide(memory_ladder(statuses), FITS)
    assert result.verdict == verdict
    assert why in result.why


def test_nothing_is_said_to_fit_that_did_not():
    """5 × 30 of 141 GB, too close to tell, ran out; a set that fits ended both ways."""
    close = decide(memory_ladder({2: "completed", 5: "out_of_memory"}), FITS)
    assert close.verdict == Verdict.NOT_TESTABLE
    assert "the most that was measured needs 0.43 of the memory, which fits" in close.why
    assert f"5× {L}, mps needs 1.06 of it, too close to tell: 5× out of memory" in close.why
    only = decide(memory_ladder({5: "out_of_memory"}), FITS)
    assert "fits" not in only.why and "needs 1.06" in only.why
    both = memory_ladder({3: "completed"}).cell(f"2x_{L}", "mps", 0.1, blocks=[1, 2])
    both.cell(f"2x_{L}", "mps", status="out_of_memory", blocks=[3, 4, 5])
    result = decide(both, FITS)
    assert result.verdict == Verdict.NOT_TESTABLE
    assert "2× completed, 3× out of memory" in {f.ended for f in result.findings}


def test_replicates_that_end_differently_decide_nothing():
    made = memory_ladder({2: "completed"})
    made.cell(f"7x_{L}", "mps", 0.1, blocks=[1, 2])
    made.cell(f"7x_{L}", "mps", status="out_of_memory", blocks=[3, 4, 5])
    assert decide(made, FITS).verdict == Verdict.INCONCLUSIVE


def test_the_paper_s_own_out_of_memory_can_be_tested_on_a_small_card_only(shipped, values):
    for card, verdict in ((42.9, Verdict.HOLDS), (141.0, Verdict.NOT_TESTABLE)):
        end = "out_of_memory" if card < 60 else "completed"
        made = memory_ladder({2: "completed", 7: end}, each=8.5, card=card)
        made.cell(f"7x_{L}", "naive", 0.1, status=end).cell(f"7x_{L}", "mig", status=end)
        evidence = gather(views_of_runs(made.frame()), values)
        result = judge(shipped["C13a"], evidence)
        assert result.verdict == verdict
        told = [told for finding in result.findings for told in finding.reported]
        assert {t.status for t in told} == {"out_of_memory"}
        assert judge(shipped["C13b"], evidence).verdict == verdict
        assert judge(shipped["C13c"], evidence).verdict == verdict


def test_without_the_card_s_memory_nothing_is_said_of_fitting():
    made = Made().cell(f"1x_{L}", gpu_memory_used=9 * GB).cell(f"7x_{L}", "mps", 0.1)
    result = decide(made, FITS)
    assert result.verdict == Verdict.NOT_TESTABLE
    assert "memory of the GPU is not known" in result.why


# What is not there, and what cannot be compared


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("unsupported", "MIG mode is off", "unsupported: MIG mode is off"),
        ("failed", "exit code 1", "failed: exit code 1"),
        ("out_of_memory", None, "out of memory"),
    ],
)
def test_a_cell_that_did_not_complete_is_not_testable(status, reason, said):
    made = Made().ladder(S, "naive", {}).cell(f"2x_{S}", "mps", status=status, reason=reason)
    result = decide(made, MORE)
    assert result.verdict == Verdict.NOT_TESTABLE
    assert result.why == f"2× {S}, mps: {said}"


def test_a_cell_that_is_not_there_is_told_from_one_that_did_not_run_yet():
    made = Made().ladder(S, "naive", {})
    assert decide(made, MORE).why == f"the study has no cell 2× {S}, mps"
    planned = {"scenario": f"2x_{S}", "arm": "faithful", "method": "mps", "replicate": 1, "n": 2}
    assert decide(made, MORE, expected=[planned]).why == f"2× {S}, mps: not run"
    tuned = planned | {"arm": "tuned"}
    assert "no cell" in decide(made, MORE, expected=[tuned]).why


def test_other_arms_do_not_count():
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}, arm="tuned")
    assert decide(made, MORE).verdict == Verdict.NOT_TESTABLE
    with pytest.raises(ValueError, match="arm"):
        decide(made, MORE, arm="tuned")


def test_a_reading_that_was_not_taken_is_not_testable():
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}, gract=math.nan)
    result = decide(made, MORE | {"of": "gract", "bound": 0.9, "neutral": 0.8})
    assert result.verdict == Verdict.NOT_TESTABLE
    assert "GRACT is not known" in result.why


def test_a_cell_without_its_baseline_is_not_testable():
    made = Made().ladder(S, "mps", {2: 1.9})
    frame = made.frame().assign(baseline_samples_per_s=None, progress=None)
    claim = Claim(id="C1", text="t", sources=["SUIT25"], tests=[MORE])
    result = judge(claim, gather(views_of_runs(frame), reported.read(REPORTED)))
    assert "no alone run on the same GPU" in result.why


def test_blocks_on_different_cards_are_not_paired():
    made = Made().ladder(S, "naive", {7: 2.7}).ladder(S, "mps", {7: 5.4}, device="GPU-2")
    result = decide(made, ORDER | {"methods": ["mps", "naive"]})
    assert result.verdict == Verdict.NOT_TESTABLE
    assert result.why.endswith("never measured on one GPU in one block")


def test_one_replicate_has_no_interval():
    result = decide(Made(blocks=1).ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}), MORE)
    assert result.verdict == Verdict.INCONCLUSIVE
    assert "one replicate has no interval" in result.why


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        # A cell also counts by its baseline, of which each of the five has one.
        ("hardware", "Other GPU", "GPU model differs: Other GPU (1 cell), Test GPU (10 cells)"),
        ("digest", "d2", "trainer digest differs: d1 (10 cells), d2 (1 cell)"),
        ("source", "real", "source of cifar10 differs: real (1 cell), synthetic (10 cells)"),
        ("flags", "unverified", "the method was not proven in force in 1 of 10 cells"),
    ],
)
def test_cells_that_differ_are_not_compared(column, value, said):
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9})
    frame = made.frame()
    odd = (frame["method"] == "mps") & (frame["block"] == 3)
    frame.loc[odd, column] = value
    claim = Claim(id="C1", text="t", sources=["SUIT25"], tests=[MORE])
    result = judge(claim, gather(views_of_runs(frame), reported.read(REPORTED)))
    assert result.verdict == Verdict.NOT_COMPARABLE
    assert said in result.why


def test_a_baseline_that_differs_is_a_difference_of_what_refers_to_it():
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9})
    frame = made.frame()
    frame.loc[frame["n"] == 1, "digest"] = "d0"
    claim = Claim(id="C1", text="t", sources=["SUIT25"], tests=[MORE])
    result = judge(claim, gather(views_of_runs(frame), reported.read(REPORTED)))
    assert "trainer digest differs: d0" in result.why


NEEDS = [{"of": "gract", "workload": DLRM, "below": 0.15}]
NEEDS += [{"of": "memory", "workload": DLRM, "above": 27, "below": 31}]
TIME = {"rule": "less", "of": "time", "work": "SLIDES", "mix": {DLRM: 1, L: 1}, "bound": 0.92}
TIME |= {"methods": ["mps"]}


def test_a_pair_unlike_the_paper_s_is_not_comparable(values):
    like = decide(pair(Made()), TIME, needs=NEEDS, values=values, sources=["SLIDES"])
    assert like.verdict == Verdict.HOLDS
    busy = decide(pair(Made(), gract=0.3), TIME, needs=NEEDS, values=values)
    assert busy.verdict == Verdict.NOT_COMPARABLE
    assert busy.why == f"GRACT of 1× {DLRM}, naive is 0.3, and must be below 0.15"
    unread = decide(pair(Made(), gract=None), TIME, needs=NEEDS, values=values)
    assert unread.verdict == Verdict.NOT_COMPARABLE
    assert unread.why.startswith("needed to compare: ")
    nothing = decide(Made(), TIME, needs=NEEDS, values=values)
    assert nothing.verdict == Verdict.NOT_TESTABLE


def test_time_for_fixed_work_in_closed_form(values):
    """DLRM's work is 5.36 h, ResNet152's 1.05 h; what DLRM has left runs at its rate alone, but
    not in a MIG instance.
    """
    made = pair(Made(noise=0.0))
    left = 5.36 - 0.8 * 1.05 / 0.95
    result = decide(made, TIME, values=values, sources=["SLIDES"])
    assert result.deciding.estimate.mean == pytest.approx((1.05 / 0.95 + left) / 6.41)
    assert result.deciding.reported[0].value == pytest.approx(5.57 / 6.41)
    made = pair(Made(noise=0.0), method="mig_shared", progress=(0.957, 0.75))
    result = decide(made, TIME | {"methods": ["mig_shared"]}, values=values, sources=["SLIDES"])
    assert result.deciding.estimate.mean == pytest.approx(5.36 / 0.957 / 6.41)


def departure(made, method, before, after):
    """R26 alone survives; the columns are windows of the same cells."""
    made.turn = itertools.count(3)
    made.cell(MIX, method, [before, before], window="before")
    made.turn = itertools.count(3)
    made.cell(MIX, method, [None, after], window="after")
    # The survivor is the second member in both windows.
    return made


def test_what_survivors_reclaim(shipped, values):
    made = Made()
    for method, before, after in (("naive", 0.6, 0.99), ("mps", 0.98, 1.0), ("mig", 0.7, 0.7)):
        departure(made, method, before, after)
    evidence = gather(views_of_runs(made.frame()), values)
    found = {name: judge(shipped[name], evidence) for name in ("C10a", "C10b", "C10c", "C10d")}
    assert found["C10a"].verdict == Verdict.HOLDS
    assert found["C10a"].deciding.estimate.mean == pytest.approx(0.99 / 0.6)
    assert found["C10b"].verdict == Verdict.NOT_COMPARABLE  # nobody was slowed down
    assert "slowdown" in found["C10b"].why
    assert found["C10c"].verdict == Verdict.HOLDS
    assert found["C10d"].verdict == Verdict.NOT_TESTABLE


def test_members_alike_run_alike(shipped, values):
    for slowest, verdict in ((0.99, Verdict.HOLDS), (0.85, Verdict.CONTRADICTED)):
        made = Made()
        for name, n in ((S, 3), (S, 7), (L, 2), (L, 3)):
            made.cell(f"{n}x_{name}", "mig", [0.6] * (n - 1) + [0.6 * slowest])
        result = judge(shipped["C9"], gather(views_of_runs(made.frame()), values))
        assert result.verdict == verdict
        assert result.deciding.estimate.mean == pytest.approx(1 / slowest)


WHERE = MORE | {"workloads": [S, L, R26], "bound": 1.1, "where": {"of": "smact", "below": 0.8}}


def test_a_test_may_be_about_some_workloads_only():
    made = Made().cell(f"1x_{S}", smact=0.1).cell(f"1x_{L}", smact=0.9)
    made.ladder(S, "mps", {2: 1.9}).ladder(L, "mps", {2: 1.0})
    result = decide(made, WHERE)
    assert result.verdict == Verdict.NOT_TESTABLE
    assert result.why == f"the study has no cell 1× {R26}, naive"
    assert [f.verdict for f in result.findings] == [Verdict.HOLDS, Verdict.NOT_TESTABLE]
    assert result.notes == (f"left out: 1× {L}, naive reads 0.9 SMACT",)
    two = WHERE | {"workloads": [S, L]}
    assert decide(made, two).verdict == Verdict.HOLDS
    full = two | {"where": {"of": "smact", "at_least": 0.95}}
    assert decide(made, full).verdict == Verdict.NOT_TESTABLE


def test_a_workload_that_a_test_is_about_must_have_been_measured():
    """What is excluded must be so by its reading; what only was not measured leaves it open."""
    made = Made().cell(f"1x_{S}", smact=0.1).cell(f"1x_{L}", smact=0.3)
    made.ladder(S, "mps", {2: 1.9})
    made.cell(f"2x_{L}", "mps", status="out_of_memory", reason="no memory left")
    result = decide(made, WHERE | {"workloads": [S, L]})
    assert result.verdict == Verdict.NOT_TESTABLE
    assert "no memory left" in result.why and not result.notes


def flagged(flags: str, only: int | None = None):
    """The claim MORE where cells of 2 jobs under MPS (of block `only`) carry flags."""
    frame = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}).frame()
    odd = (frame["method"] == "mps") & ((only is None) | (frame["block"] == only))
    frame.loc[odd, "flags"] = flags
    claim = Claim(id="C1", text="t", sources=["SUIT25"], tests=[MORE])
    return judge(claim, gather(views_of_runs(frame), SILENT))


def test_a_card_that_somebody_else_used_compares_to_nothing():
    result = flagged("shared_gpu", only=2)
    assert result.verdict == Verdict.NOT_COMPARABLE
    assert "somebody else's process was on the GPU in 1 of 10 cells" in result.why


@pytest.mark.parametrize(
    ("flag", "said", "among", "mark"),
    [
        ("throttled", "GPU throttled", 10, "↓"),
        ("suspect_baseline", "suspect baseline", 5, "!"),  # the jobs alone cannot be it
    ],
)
def test_marks_stand_beside_the_numbers_and_suspects_are_told(flag, said, among, mark):
    result = flagged(f"{flag};unsteady")
    assert result.verdict == Verdict.HOLDS
    [note] = result.notes
    assert said in note and f"in 5 of {among} cells" in note
    text = claims_page.markdown([result], HEAD)
    overview, paragraph = text.split("## C1")
    assert f"] ~{mark} |" in overview and f"] ~{mark} |" in paragraph
    assert said in overview  # what the marks mean
    row = claims_page.csv_table([result], HEAD).iloc[0]
    assert row["flags"] == f"{flag};unsteady"
    (finding,) = claims_page.as_json([result], HEAD)["claims"][0]["findings"]
    assert finding["flags"] == [flag, "unsteady"]
    plain = claims_page.markdown([flagged("")], HEAD)
    assert mark not in plain and "~" not in plain


def test_the_job_alone_that_a_gain_is_over_is_among_its_cells():
    frame = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}).frame()
    frame.loc[frame["n"] == 1, "flags"] = "throttled"
    claim = Claim(id="C1", text="t", sources=["SUIT25"], tests=[MORE])
    result = judge(claim, gather(views_of_runs(frame), SILENT))
    assert "in 5 of 10 cells" in result.notes[0]


def test_a_compound_is_as_good_as_its_worst_part():
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9, 3: 1.3})
    both = MORE | {"counts": [2, 3]}
    result = decide(made, both)
    assert [f.verdict for f in result.findings] == [Verdict.HOLDS, Verdict.DIRECTION]
    assert result.verdict == Verdict.DIRECTION
    assert result.deciding.where == f"3× {S}, mps"
    assert decide(made, MORE | {"counts": [2, 7]}).verdict == Verdict.NOT_TESTABLE


def test_intervals_are_those_of_the_summary():
    made = Made(noise=0.02).ladder(S, "naive", {2: 1.8, 7: 2.7}).ladder(S, "mps", {2: 1.9, 7: 5})
    made.cell(f"7x_{S}", "mig", 0.6, blocks=[1, 3])
    table = summarise(load_study(made.frame()).cells).set_index(["scenario", "method"])
    measured = Measurements(views_of_runs(made.frame()))
    for (scenario, method), row in table.iterrows():
        key = Key.of(parse_scenario(scenario).parts, method)
        found = measured.estimate(quantities.quantity("gain"), key)
        assert found.mean == pytest.approx(row["stp"])
        assert (found.low is None) == pd.isna(row["low"])
        if found.low is not None:
            assert (found.low, found.high) == pytest.approx((row["low"], row["high"]))


def test_a_ratio_of_cells_is_estimated_within_blocks():
    """What all cells of a block share cancels."""
    made = Made(noise=0.01).ladder(S, "naive", {7: 2.7}).ladder(S, "mps", {7: 5.4})
    frame = made.frame()
    wave = frame["block"].map(lambda block: 1 + 0.2 * block)
    frame["samples_per_s"] *= wave
    measured = Measurements(views_of_runs(frame))
    gain = quantities.quantity("gain")
    seven = [Key.of({S: 7}, method) for method in ("mps", "naive")]
    found = measured.estimate(gain, *seven)
    assert found.mean == pytest.approx(2)
    assert found.high / found.low < 1.06
    wide = measured.estimate(gain, seven[0])
    assert wide.high / wide.low > 1.3


# What ships


HEAD = claims_page.Head("made", ("Test GPU",), "faithful", 5, (), "claims.yaml", "c", "0" * 64, "r")


def test_most_of_what_can_be_saved_is_half_of_it_or_more(shipped, values):
    """At most the short job's share of serial can be saved."""
    short, long = sorted(reported.work(values)["SLIDES"].values())[-2:]
    for name in ("C11b", "C11c"):
        [test] = shipped[name].tests
        assert 1 - test.bound >= 0.5 * short / (short + long)


def test_the_paper_s_own_values_meet_every_rule(shipped, values):
    """The first source of each claim; where it has a value."""
    evidence = gather([], values)
    told = {}
    for name, claim in shipped.items():
        for finding in judge(claim, evidence).findings:
            if finding.reported:
                first = finding.reported[0]
                told.setdefault(name, []).append((finding.where, first.value, first.verdict))
    for name, found in told.items():
        assert {verdict for *_, verdict in found} == {Verdict.HOLDS}, (name, found)
    # The others have no numbers in what is known of the paper.
    silent = {"C7a", "C7b", "C8a", "C8b", "C8c", "C10a", "C10b", "C10c", "C10d", "C13c", "C14b"}
    assert set(shipped) - set(told) == silent | {"C15a", "C15b"}


def test_every_claim_of_the_paper_has_a_rule_and_known_workloads(shipped):
    numbers = {int(name[1:].rstrip("abcdefgh")) for name in shipped}
    assert numbers == set(range(1, 17))
    catalogue = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
    for claim in shipped.values():
        used = {
            name for test in claim.tests for name in [*test.workloads, *getattr(test, "mix", ())]
        }
        used |= {name for need in claim.needs for name, _ in need.key().parts}
        assert used <= catalogue.keys(), claim.id


def test_a_study_with_the_paper_s_numbers_reproduces_the_paper(shipped, values):
    made = Made(noise=0.003, gpu_memory_total=42.9 * GB)
    table = reported.conclusions(values)
    own = table[(table["source"] == "SUIT25") & (table["method"] != "serial")]
    for row in own.to_dict("records"):
        scenario, ended = f"{row['n']}x_{row['workload']}", row["status"]
        # LEC22 has the readings.
        gract = {"naive": 0.99, "mps": 0.95}.get(row["method"])
        progress = 1.0 if ended != "completed" else row["gain"] / row["n"]
        options = {"gract": gract, "smact": 0.3}
        options |= {"gpu_memory_used": (8.47 if row["workload"] == L else 1.2) * GB}
        made.cell(scenario, row["method"], progress, status=ended, **options)
    found = claims.results(list(shipped.values()), values, made.frame())
    told = {result.claim.id: result.verdict for result in found}
    testable = {name for name, verdict in told.items() if verdict != Verdict.NOT_TESTABLE}
    assert {told[name] for name in testable} == {Verdict.HOLDS}
    lacking = {"C7a", "C7b", "C8a", "C8b", "C8c", "C10a", "C10b", "C10c", "C10d"}
    lacking |= {"C11a", "C11b", "C11c", "C11d", "C12a", "C12b", "C12c", "C16a", "C16b", "C16c"} | {
        "C15a",
        "C15b",
    }
    assert set(told) - testable == lacking


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rule: equal", "rule: equals"), "C1a: tests.0: rule: 'equals' is not allowed; allowed:"),
        (("margin: 0.05", "margn: 0.05"), "C1a: tests.0.margn: unknown key; allowed: workloads,"),
        (("methods: [mps]", "methods: [mpss]"), "C1a: tests.0.methods.0: 'mpss' is not allowed"),
        (("sources: [SUIT25]", "sources: [SUIT]"), "C1a: sources.0: 'SUIT' is not allowed"),
        (("counts: [1], ", ""), "C1a: tests.0: give workloads with counts, or a mix"),
        (("id: C1b", "id: C1a"), "claims: an id stands there twice: C1a"),
        (("below: 0.15", "beneath: 0.15"), "C11a: needs.0.beneath: unknown key; allowed: of,"),
        (("bound: 0.8, neutral: 0.95", "bound: 2"), "C2b: tests.0: bound 2.0 must not be above"),
        (("where: {of: smact, below: 0.8}", "where: {of: smact}"), "C15a: tests.0.where: give one"),
        (("text: A single", "txt: A single"), "C1a: txt: unknown key; allowed: id, text,"),
        (("claims:\n", "claim:\n"), "claim: unknown key; allowed: claims"),
        (("claims:\n", "claims: [\n"), "line "),
    ],
)
def test_a_mistake_in_the_rules_is_one_line(tmp_path, change, said):
    path = tmp_path / "claims.yaml"
    text = CLAIMS.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(ClaimError) as error:
        load(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}: ") or said == "line "
    assert "\n" not in str(error.value)


def test_growth_that_counts_as_saturation():
    test = Claims.model_validate(
        {"claims": [{"id": "C1", "text": "t", "sources": ["SUIT25"], "tests": [SATURATES]}]}
    )
    assert test.claims[0].tests[0].growth(0.2) == pytest.approx(1 + 0.2 * 4 / 3)


def paper_study(tmp_path):
    made = Made().ladder(S, "naive", {2: 1.9, 3: 2.4, 7: 2.7})
    made.ladder(S, "mps", {2: 1.97, 3: 2.9, 7: 5.4})
    for n in (3, 7):
        made.cell(f"{n}x_{S}", "mig", status="unsupported", reason="MIG mode is off")
    return made.write(tmp_path / "runs.parquet")


def test_the_command_writes_page_table_and_json(tmp_path):
    runs, stem = paper_study(tmp_path), tmp_path / "out" / "claims"
    arguments = ["--runs", str(runs), "--claims", str(CLAIMS), "--reported", str(REPORTED)]
    assert claims.main([*arguments, "--output", str(stem)]) == 0
    page = stem.with_suffix(".md").read_text()
    everything = json.loads(stem.with_suffix(".json").read_text())
    table = pd.read_csv(stem.with_suffix(".csv"))
    assert len(everything["claims"]) == len(set(table["claim"])) == len(load(CLAIMS))
    by_id = {claim["id"]: claim for claim in everything["claims"]}
    assert by_id["C3c"]["verdict"] == "holds"
    assert by_id["C4b"]["verdict"] == "not testable here"
    row = table[table["claim"] == "C3c"].iloc[0]
    assert (row["mean"], row["reported"]) == pytest.approx((5.4, 5.377), rel=1e-3)
    assert f"7x_{S}/faithful/mps/r1" in row["cells"].split()
    assert "**holds**" in page
    assert f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in page
    assert "MIG mode is off" in page
    assert "0.894 (LEC22: by this rule contradicted)" in page
    # Nothing in it depends on when or where it was written.
    claims.main([*arguments, "--output", str(tmp_path / "again")])
    assert (tmp_path / "again.md").read_text() == page
    with pytest.raises(SystemExit, match="cannot be read"):
        claims.main([*arguments[:2], "--claims", "no.yaml", *arguments[4:], "--output", str(stem)])


def test_a_study_on_two_cards_needs_one_to_be_chosen(tmp_path):
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9})
    other = Made(hardware="Other GPU").ladder(S, "naive", {}).ladder(S, "mps", {2: 1.2})
    for row in other.rows:
        row["block"] += 5
    made.rows += other.rows
    runs = made.write(tmp_path / "runs.parquet")
    arguments = ["--runs", str(runs), "--claims", str(CLAIMS), "--reported", str(REPORTED)]
    arguments += ["--output", str(tmp_path / "claims")]
    for chosen, verdict in (([], "not comparable"), (["--hardware", "Test GPU"], "holds")):
        claims.main([*arguments, *chosen])
        found = json.loads((tmp_path / "claims.json").read_text())["claims"]
        assert next(claim for claim in found if claim["id"] == "C3a")["verdict"] == verdict


def test_an_empty_study_gives_a_page(tmp_path):
    runs = Made().write(tmp_path / "runs.parquet")
    frame = read_runs(runs)
    found = claims.results(load(CLAIMS), reported.read(REPORTED), frame)
    assert {result.verdict for result in found} == {Verdict.NOT_TESTABLE}
    page = claims_page.markdown(found, claims.head(frame, CLAIMS, REPORTED))
    assert "nothing measured" in page
    assert "no cell" in guidelines.markdown(load_study(frame))[0]


def test_the_commit_of_the_rules(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text("claims: []\n")
    assert claims.commit_of(path) == claims.UNKNOWN
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=n@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "rules"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    found = claims.commit_of(path)
    assert len(found) >= 7
    assert head.stdout.startswith(found)
    path.write_text("claims: [1]\n")
    assert claims.commit_of(path) == f"{found}, changed since"


# Guidelines


def guide(made: Made, **options) -> str:
    return guidelines.markdown(load_study(made.frame()), **options)[0]


def advised(page: str, about: str) -> str:
    """The first line about something."""
    return next(line for line in page.splitlines() if line.startswith(f"- **{about}"))


def rich(seven_mps=5.4, **options):
    made = Made().ladder(S, "naive", {2: 1.8, 7: 2.7}, energy_per_sample=0.08)
    made.ladder(S, "mps", {2: 1.95, 3: 2.8}, gpu_memory_used=3 * GB, energy_per_sample=0.06)
    made.ladder(S, "mps", {7: seven_mps}, gpu_memory_used=9 * GB, energy_per_sample=0.03, **options)
    for row in made.rows:
        row["serial_energy_per_sample"] = 0.1
    return made


def test_guidelines_follow_the_numbers():
    page = guide(rich())
    assert "Much to gain" in page
    assert advised(page, "Throughput").startswith("- **Throughput:** 7 under MPS: gain 5.40 [")
    slow = advised(page, "Slowdown")
    assert "at most 1.1 times: 3 under MPS, gain 2.80" in slow
    assert "at most 1.5 or 2 times: 7 under MPS, gain 5.40" in slow
    assert "within 8 GB: 3 under MPS (3 GB)" in advised(page, "Memory")
    assert "7 under MPS: 0.30 of serial's energy, 0.03 J per sample" in advised(page, "Energy")
    assert "mig is not in the study" in page


def test_on_an_altered_study_the_recommendation_changes():
    page = guide(rich(seven_mps=2.5))
    assert advised(page, "Throughput").startswith("- **Throughput:** 3 under MPS: gain 2.80")
    assert "at most 2 times: 3 under MPS" in advised(page, "Slowdown").replace("1.1 or 1.5 or ", "")
    costly = rich()
    for row in costly.rows:
        row["energy_per_sample"] = 0.2 if row["method"] == "mps" else 0.08
    assert "naive): 0.80 of serial's energy" in advised(guide(costly), "Energy")
    bad = Made().ladder(L, "naive", {2: 0.93}).ladder(L, "mps", {2: 0.95})
    assert "run one job after the other" in advised(guide(bad), "Throughput")
    assert "Nothing to gain" in guide(bad)


def test_bounds_can_be_chosen():
    page = guide(rich(), slowdowns=[1.01], memory=[2.0])
    assert (
        "at most 1.01 times: no set that gains keeps within it, run one job after the other" in page
    )
    assert "within 2 GB: no set, the smallest takes 3 GB" in page


def test_a_set_that_loses_wins_for_no_method_and_unlike_samples_are_not_counted_together():
    made = Made().ladder(S, "naive", {2: 0.9})
    mix = f"1x_{S}+1x_{L}"
    made.cell(f"1x_{L}").cell(mix, "mps", 0.9, energy_per_sample=0.05)
    for row in made.rows:
        row["serial_energy_per_sample"] = 0.1
    page = guide(made)
    won = next(line for line in page.splitlines() if line.startswith("- **Method**"))
    assert "under MPS for 1 of 1." in won
    energies = [line for line in page.splitlines() if line.startswith("- **Energy")]
    assert any("0.50 of serial's energy." in line for line in energies), energies


def test_guidelines_say_what_they_lack():
    page = guide(Made(blocks=1, noise=0.0).ladder(S, "naive", {}).ladder(S, "mps", {2: 1.9}))
    assert "2 under MPS: gain 1.90 (a hint: one replicate); " in advised(page, "Throughput")
    assert "was not recorded for these sets: no advice" in advised(page, "Memory")
    assert "was not recorded for these sets: no advice" in advised(page, "Energy")
    refused = Made().ladder(S, "naive", {2: 1.8})
    refused.cell(f"2x_{S}", "mig", status="unsupported").cell(f"7x_{S}", status="out_of_memory")
    page = guide(refused)
    assert "mig was not measured (5 unsupported, of two jobs or more)" in page
    assert "No set of two jobs or more has a gain: 5 failed." in guide(
        Made().cell(f"1x_{S}").cell(f"2x_{S}", status="failed")
    )


def test_guidelines_name_sets_that_were_not_told_apart_and_sets_out_of_memory():
    made = Made().cell(f"1x_{S}", memory_peak_reserved=GB)
    made.ladder(S, "mps", {2: 1.9, 3: 1.9}, memory_peak_reserved=GB)
    made.cell(f"7x_{S}", "mps", status="out_of_memory")
    page = guide(made)
    assert "Not told apart from it: 3 under MPS (1.90)" in page
    assert "reserves 2 GB" in page
    assert "out of memory: 7 under MPS" in page
    assert "2*" in page


def test_more_memory_than_the_window_took_is_told():
    made = Made().cell(f"1x_{S}", gpu_memory_used=GB, memory_peak_reserved=GB)
    made.ladder(S, "mps", {2: 1.9}, gpu_memory_used=3 * GB, memory_peak_reserved=5 * GB)
    page, options = guidelines.markdown(load_study(made.frame()))
    assert "takes 3 GB, 10 GB reserved at most" in advised(page, "Memory")
    assert "3 (10)" in page and "was not tried" in page
    made.ladder(S, "naive", {2: 1.5}, gpu_memory_used=3 * GB, memory_peak_reserved=2 * GB)
    page = guide(made, memory=[2.0, 4.0])
    assert "within 2 GB: no set, the smallest takes 3 GB" in advised(page, "Memory")
    made.ladder(S, "mps", {7: 5.4}, gpu_memory_used=9 * GB, memory_peak_reserved=5 * GB)
    said = advised(guide(made, memory=[4.0]), "Memory")
    assert "within 4 GB: 2 as plain processes (naive) (3 GB, 4 GB reserved at most), gain" in said
    assert "perhaps 2 under MPS (3 GB, 10 GB reserved at most), gain 1.90" in said
    assert options["peak_reserved_gb"].tolist() == pytest.approx([10])


def test_what_shares_no_gpu_with_the_best_is_told_apart_from_nothing():
    made = Made().ladder(S, "naive", {}).ladder(S, "mps", {2: 1.2, 3: 1.9})
    made.cell(f"4x_{S}", "mps", 0.3, device="GPU-2").cell(f"5x_{S}", "mps", 0.2, blocks=[1])
    page = guide(made)
    assert "Not told apart" not in page
    assert "Compared with it once only, so without an interval: 5 under MPS (1.00)." in page
    assert "Not compared with it on one GPU: 4 under MPS (1.20)." in page


def test_one_replicate_is_a_hint_wherever_it_is_advised():
    made = Made(blocks=1, noise=0.0).ladder(S, "naive", {2: 1.8, 7: 2.4})
    made.ladder(S, "mps", {2: 1.9}, gpu_memory_used=3 * GB, energy_per_sample=0.06)
    made.ladder(S, "mps", {7: 5.4}, gpu_memory_used=9 * GB, energy_per_sample=0.07)
    for row in made.rows:
        row["serial_energy_per_sample"] = 0.1
    page, hint = guide(made), "(a hint: one replicate)"
    assert f"7 under MPS, gain 5.40 {hint}" in advised(page, "Much to gain")
    assert "without an interval: all others." in advised(page, "Throughput")
    assert f"at most 1.1 times: 2 under MPS, gain 1.90 {hint}" in advised(page, "Slowdown")
    assert f"(3 GB), gain 1.90 {hint}" in advised(page, "Memory")
    assert f"0.06 J per sample {hint}." in advised(page, "Energy")
    assert "a hint" not in guide(rich())


@pytest.mark.parametrize("flag", flags.KNOWN)
def test_no_replicate_is_left_out_for_a_flag(flag):
    """Replicates differ by a tenth, so that leaving one out would move every number of its cell."""
    frame = Made(noise=0.1).ladder(S, "naive", {7: 2.7}).ladder(S, "mps", {2: 1.9, 7: 7.2}).frame()

    def told(flags_of):
        study = frame.assign(flags=flags_of)
        page, options = guidelines.markdown(load_study(study))
        plain = re.sub(f" {re.escape(flags.marks(flag))}(?=[;.])", "", page)
        advices = [line for line in plain.splitlines() if line.startswith("- **")]
        evidence = gather(views_of_runs(study), SILENT)
        claim = {"id": "C1", "text": "t", "sources": ["SUIT25"]}
        judged = [judge(Claim(**claim, tests=[test]), evidence) for test in (MORE, LESS, SAME)]
        numbers = [finding.estimate for result in judged for finding in result.findings]
        return advices, options.to_dict(), numbers, [result.verdict for result in judged]

    without = told("")
    for cell in frame["cell"].unique():
        *numbers, verdicts_of_it = told(frame["cell"].map({cell: flag}).fillna(""))
        assert numbers == [*without[:-1]], cell
        # Not what the cell's name says: its method, or its GPU alone. It still counts as a number.
        if flag not in (flags.UNVERIFIED, flags.SHARED_GPU):
            assert verdicts_of_it == without[-1], cell


def test_guidelines_keep_arms_apart_and_list_what_differs(tmp_path):
    made = rich().ladder(S, "naive", {2: 1.1}, arm="tuned").ladder(S, "mps", {2: 1.2}, arm="tuned")
    made.rows[-1]["digest"] = "d2"
    runs, stem = made.write(tmp_path / "runs.parquet"), tmp_path / "guidelines"
    arguments = ["--runs", str(runs), "--output", str(stem)]
    assert guidelines.main([*arguments, "--slowdown", "3", "--memory", "4"]) == 0
    faithful, tuned = stem.with_suffix(".md").read_text().split("## Arm `tuned`")
    assert "gain 5.40" in faithful
    assert "gain 5.40" not in tuned
    assert "2 under MPS: gain 1.20" in tuned
    assert "trainer digest differs" in tuned
    assert "trainer digest differs" not in faithful
    table = pd.read_csv(stem.with_suffix(".csv"))
    assert set(table["arm"]) == {"faithful", "tuned"}


@given(st.lists(st.floats(0.3, 3), min_size=2, max_size=5), st.floats(1.0, 3.0))
@settings(max_examples=50)
def test_the_advised_option_is_the_best_that_the_bound_allows(gains, bound):
    made = Made(blocks=1, noise=0.0).ladder(S, "mps", dict(enumerate(gains, 2)))
    (subject,) = advice.subjects(Measurements(views_of_runs(made.frame())))
    assert [option.gain.mean for option in subject.options] == pytest.approx(gains)
    found = advice.most_gain(subject.options, lambda option: option.worst_slowdown <= bound)
    for option in subject.options:
        if option.worst_slowdown <= bound:
            assert found.gain.mean >= option.gain.mean
        else:
            assert found != option
