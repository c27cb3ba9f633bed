"""Fixed work for each member, to the end of the last."""

import pyarrow.parquet as pq
import pytest

from analysis.cells import load, read_runs
from release import cells, manifest
from release.contents import Attempt, shipped
from tests.studio import Studio, study, workload

CELL = "1x_plain+1x_slow--completion/faithful/naive/r1/a1"
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


def test_it_is_merged_without_progress_and_no_figure_draws_it(studio):
    runs = read_runs(studio.results / "runs.parquet")
    rows = runs[runs["window"] == "completion"]
    assert len(rows) == 2 and rows["progress"].isna().all()
    left, drawn = load(runs).drawn("faithful")
    assert not left["scenario"].str.contains("completion").any()
    assert not drawn["scenario"].str.contains("completion").any()
    assert set(left["scenario"]) == {"1x_plain", "1x_slow"}


def test_its_record_follows_from_its_steps(studio):
    attempt, _ = Attempt.of(f"cells/{CELL}/run.json")
    found = manifest.digests(studio.results, shipped(studio.results))
    assert cells.check(studio.results, attempt, found) == []


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
    cell = "1x_dies+1x_plain--completion/faithful/naive/r1/a1"
    studio.measure(cell)
    record = studio.record(cell)
    assert record["status"] == "failed" and "signal 9" in record["reason"]
