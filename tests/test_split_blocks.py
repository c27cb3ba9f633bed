"""A block that goes on on another GPU, where its jobs alone are measured anew: what was measured on
the first one is still held against the jobs alone there.
"""

import pytest

from analysis import reported
from analysis.cells import load
from analysis.claims.judge import gather, judge
from analysis.claims.rules import Claim
from analysis.figures import arms, decomposition_data
from analysis.quantities import Measurements, quantity
from analysis.tables import pair_table
from analysis.views import Key, alone, views_of_runs
from tests.records import merged, record, telemetry
from tests.studio import REPOSITORY

BLOCKS = (1, 2, 3)
LONG, SHORT = "dlrm_criteo_b2048", "resnet152_imagenet_b32"
PAIR = f"1x_{LONG}+1x_{SHORT}"


def seen(gb: float, members: int) -> dict:
    return {"telemetry": telemetry(members=members, card={"memory_used": gb * 1e9})}


@pytest.fixture(scope="module")
def runs():
    """Tier 1 on GPU-1, tier 2 on GPU-2, which is twice as fast and takes more memory."""
    found = []
    for block in BLOCKS:
        for attempt, (gpu, factor) in enumerate((("GPU-1", 1.0), ("GPU-2", 2.0)), 1):
            place = {"gpu": gpu, "attempt": attempt}
            for name, gb in ((LONG, 20.0), (SHORT, 10.0)):
                more = seen(gb * factor, 1) | place
                found.append(record(f"1x_{name}", "naive", block, [100.0 * factor], **more))
        first = {"gpu": "GPU-1"}
        for method, rate in (("naive", 60.0), ("mps", 90.0)):
            found.append(record(f"2x_{SHORT}", method, block, [rate] * 2, **first, **seen(20, 2)))
            found.append(record(PAIR, method, block, [70.0, 80.0], **first, **seen(30, 2)))
        found.append(record(f"3x_{SHORT}", "mps", block, [150.0] * 3, gpu="GPU-2", **seen(40, 3)))
        # The tuned job alone was measured on the first GPU only.
        found.append(record(f"1x_{SHORT}", "naive", block, [300.0], arm="tuned", **first))
        found.append(record(f"2x_{SHORT}", "mps", block, [200.0] * 2, arm="tuned", **first))
    return merged(*found)


@pytest.fixture(scope="module")
def study(runs):
    return load(runs)


def test_no_reference_is_a_replicate(runs):
    measured = Measurements(views_of_runs(runs))
    for name in (LONG, SHORT):
        assert [view.device for view in measured.at(alone(name))] == ["GPU-2"] * 3
        assert len(measured.references(alone(name))) == 6
    assert len(load(runs).runs) == runs["current"].sum() < len(runs)


def test_a_sum_of_parts_is_that_of_the_jobs_alone_there(runs):
    adds = {"rule": "additive", "mix": {LONG: 1, SHORT: 1}, "methods": ["mps"], "margin": 0.05}
    claim = {"id": "C1", "text": "It adds up.", "sources": ["SUIT25"], "tests": [adds]}
    silent = reported.read(REPOSITORY / "config" / "reported.csv").iloc[:0]
    result = judge(Claim.model_validate(claim), gather(views_of_runs(runs), silent))
    assert result.deciding.estimate.replicates == 3
    assert result.deciding.estimate.mean == pytest.approx(1)
    assert {view.device for view in result.deciding.views} == {"GPU-1"}
    assert len(result.deciding.views) == 9


def test_a_number_over_the_job_alone_is_over_that_on_its_gpu(runs):
    measured = Measurements(views_of_runs(runs))
    memory, single = quantity("memory"), alone(SHORT)
    for n, method, ratio in ((2, "mps", 2.0), (3, "mps", 2.0)):
        found = measured.estimate(memory, Key.of({SHORT: n}, method), single)
        assert (found.replicates, found.mean) == (3, pytest.approx(ratio))


def test_the_decomposition_has_every_block(study):
    table, blocks = decomposition_data.table(study, "faithful")
    row = table.set_index(["workload", "n"]).loc[(SHORT, 2)]
    assert row["blocks"] == 3 and row["status"] == "completed"
    assert blocks["block"].tolist() == [1, 2, 3]


def test_t1_has_its_hours_from_every_block(study):
    values = reported.read(REPOSITORY / "config" / "reported.csv")
    table = pair_table.build(study, [], values)
    row = table.rows.set_index("method").loc["mps"]
    assert row["saving"] == pytest.approx(1 - row["total_h"] / _serial_hours(table))
    assert row["replicates"] == 3


def _serial_hours(table) -> float:
    """Of the jobs alone on the GPU that the pair was measured on."""
    epoch = 50_000 / 100.0 / 3600
    return epoch * (1 + table.jobs.ratio)


def test_an_arm_alone_is_held_against_the_other_one_there(study):
    figure, table = arms.draw(study)
    found = table[(table["quantity"] == "alone_ratio") & (table["arm"] == "tuned")]
    assert found["value"].tolist() == pytest.approx([3.0] * 3)
    assert figure is not None
