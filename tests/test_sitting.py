"""What one invocation finds, and leaves, beside the cells that it runs."""

import json
import os
from pathlib import Path

import pytest

from tests.studio import STUDY, alone, study, workload
from workflow.collocation.plan import expand, pending
from workflow.collocation.sitting import Sitting
from workflow.collocation.study import Config, Study
from workflow.collocation.workloads import VisionWorkload

WORKLOADS = {"plain": VisionWorkload(**workload())}
PLANNED = Study.model_validate(study(ladders=alone("plain"), replicates=2))


@pytest.fixture
def sitting(tmp_path) -> Sitting:
    """One with two cells to run, in a folder of its own."""
    cells = expand(PLANNED, WORKLOADS)
    config = Config(results=str(tmp_path))
    made = Sitting(config, STUDY, "as asked for", PLANNED, cells, device=None, attempts={})
    made.jobs = pending(cells, {}, "cpu", lambda cell: None)
    return made


def ends(sitting: Sitting, *statuses: str) -> list[Path]:
    """Write run.json of the jobs, in order."""
    paths = [sitting.cells_folder / job.path / "run.json" for job in sitting.jobs]
    for path, status in zip(paths, statuses, strict=False):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"status": status}))
    return paths


@pytest.mark.parametrize(
    ("statuses", "complete"),
    [
        (["completed", "completed"], True),
        (["completed", "failed"], True),  # of that, the last job has its say
        (["completed", "postponed"], False),
        (["completed"], True),
    ],
)
def test_a_marker_of_a_cell_that_was_put_off_goes_and_the_study_is_not_complete(
    sitting, statuses, complete
):
    paths = ends(sitting, *statuses)
    (sitting.folder / "complete").touch()
    sitting.sweep_postponed()
    left = [path.exists() for path in paths]
    assert left == [status != "postponed" for status in statuses] + [False] * (2 - len(statuses))
    assert (sitting.folder / "complete").exists() == complete


def test_a_study_of_which_the_budget_left_cells_for_later_is_not_complete(sitting):
    ends(sitting, "completed")
    sitting.later = [sitting.jobs.pop()]
    (sitting.folder / "complete").touch()
    sitting.sweep_postponed()
    assert not (sitting.folder / "complete").exists()


def test_what_was_merged_is_shown_unless_cells_were_measured_since(sitting):
    runs = sitting.folder / "runs.parquet"
    first, second = ends(sitting, "completed", "completed")
    assert not sitting.merged
    runs.touch()
    assert sitting.merged
    os.utime(second, ns=(0, runs.stat().st_mtime_ns + 1))
    assert not sitting.merged
    second.unlink()
    assert sitting.merged and first.exists()
