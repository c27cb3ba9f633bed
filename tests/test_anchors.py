"""Sessions of a study that has anchors: cells alone that each of them begins with."""

import pytest

from analysis.estimates import runs
from tests.studio import Studio, alone, study, workload


@pytest.fixture(scope="module")
def sessions(module_studio) -> Studio:
    """Two of one study: one block, and after it another."""
    made: Studio = module_studio().write({"plain": workload()}, drill=planned(replicates=1))
    assert made.measure().code == 0
    made.write_study("drill", planned(replicates=2))
    run = made.snakemake("--", "results/drill/runs.parquet")
    assert run.code == 0, run.output
    return made


def planned(**content) -> dict:
    return study(**{"anchor": ["plain"], "ladders": alone("plain")} | content)


def test_each_begins_with_its_own(sessions):
    records = sessions.records()
    started = sorted(records, key=lambda cell: records[cell]["provenance"]["started_at"])
    assert started == [
        f"1x_plain{anchor}/paper_step/naive/r{number}/a1"
        for number in (1, 2)
        for anchor in ("--anchor", "")
    ]
    assert len({str(record["spec"]) for record in records.values()}) == 1
    of = [records[cell]["provenance"]["sitting"] for cell in started]
    assert of[0] == of[1] != of[2] == of[3]


def test_a_study_that_is_complete_begins_no_session(sessions):
    again = sessions.snakemake("-n", "--", "results/drill/runs.parquet")
    assert again.code == 0 and again.planned == 0, again.output
    plan = sessions.plan()
    assert "2 cells, 2 measured, 0 to run now" in plan.output


def test_they_are_merged_and_are_no_part_of_the_grid(sessions):
    rows = runs.read(sessions.results / "runs.parquet")
    anchors = [row for row in rows if row["scenario"] == "1x_plain--anchor"]
    assert len(anchors) == 2 and all(row["samples_per_s"] for row in anchors)
    assert {row["block"] for row in rows if row["scenario"] == "1x_plain"} == {1, 2}
    assert "anchor" not in (sessions.results / "plan.json").read_text()


def test_a_budget_for_an_anchor_alone_runs_nothing(sessions):
    sessions.write_study("drill", planned(replicates=3))
    for budget, to_run in (("1s", 0), ("1h", 2)):
        said = sessions.plan(config={"budget": budget}).output
        assert f"{to_run} to run now" in said, said
    sessions.write_study("drill", planned(replicates=2))
