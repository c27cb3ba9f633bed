"""Fixed work for each member, to the end of the last."""

import pyarrow.parquet as pq
import pytest

from analysis.estimates import build, runs
from analysis.estimates.table import Estimates
from tests.studio import Studio, study, workload

CELL = "1x_plain+1x_slow--completion/paper_step/naive/r1/a1"
WORK = {"plain": 40, "slow": 60}


@pytest.fixture(scope="module")
def studio(module_studio) -> Studio:
    mix = {"members": {"plain": 1, "slow": 1}, "methods": ["naive"], "work": WORK}
    mixes = [mix | {"measure": {"kind": "completion"}}]
    made = module_studio().write(
        {"plain": workload(), "slow": workload(step_s=0.012)}, drill=study(mixes=mixes)
    )
    result = made.snakemake("--", "results/drill/runs.parquet")
    assert result.code == 0, result.output
    return made


def test_everybody_does_its_work_and_the_window_ends_with_the_last_step(studio):
    record = studio.record(CELL)
    assert record["status"] == "completed" and record["method"]["verified"] is not False
    [window] = record["windows"]
    assert window["name"] == "completion"
    assert 60 * 0.012 <= window["seconds"] < 10
    steps = studio.folder / studio.path(CELL).with_name("steps.parquet")
    done = pq.read_table(steps)["member"].to_pylist()
    for member in record["members"]:
        rate, work = member["windows"]["completion"], WORK[member["workload"]]
        assert done.count(member["member"]) == work and member["status"] == "completed"
        # The window opens when the last has started: on a busy machine others have begun by then.
        assert work - 10 < rate["steps"] <= work and rate["drift"] is None


def test_its_time_is_held_against_the_jobs_alone_and_it_has_no_gain_of_its_own(studio):
    rows = runs.read(studio.results / "runs.parquet")
    estimates = Estimates(build.build(rows, [], {}))
    place = {"scenario": "1x_plain+1x_slow--completion", "arm": "paper_step", "method": "naive"}
    took = estimates.get("makespan", **place, window="completion")
    assert took.value == studio.record(CELL)["windows"][0]["seconds"]
    serial = sum(
        work * 32 / estimates.get("rate", **place | {"scenario": f"1x_{name}"}).value
        for name, work in WORK.items()
    )
    saving = estimates.get("saving", **place, window="completion")
    # What the window counts of a member's steps may be a few less than its work.
    assert saving.value == pytest.approx(1 - took.value / serial, abs=0.15)
    assert not estimates.of("stp", **place, window="completion")


def test_a_member_killed_before_its_work_is_done_fails_the_cell(studio):
    mix = {
        "members": {"plain": 1, "dies": 1},
        "methods": ["naive"],
        "work": {"plain": 5, "dies": 90},
    }
    mixes = [mix | {"measure": {"kind": "completion"}}]
    studio.write(
        {"plain": workload(), "dies": workload(die={"phase": "window", "signal": 9})},
        drill=study(mixes=mixes),
    )
    cell = "1x_dies+1x_plain--completion/paper_step/naive/r1/a1"
    studio.measure(cell)
    record = studio.record(cell)
    assert record["status"] == "failed" and "signal 9" in record["reason"]
