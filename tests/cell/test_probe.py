"""Probes on a GPU that is not there: what is loaded when, what does not fit, what MPS lacks."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from analysis.advice.job.numbers import alone_numbers, step_ends, together_numbers
from tests.studio import PATIENCE
from workflow.collocation.record.probe import ProbeRecord


@pytest.fixture
def short():
    """A folder for sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


def probe(studio, short, *groups: list, **changes) -> tuple[ProbeRecord, Path]:
    asked = {"memory_mb": 1000, "max_jobs": 4, "seconds": 20, "groups": groups} | changes
    folder = studio.folder / "probe"
    run = subprocess.run(
        [sys.executable, "-m", "tests.probing", str(folder), json.dumps(asked)],
        cwd=studio.folder,
        env=studio.environment(TMPDIR=short),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert run.returncode == 0, run.stderr
    assert not studio.alive() and not studio.held_locks()
    return ProbeRecord.model_validate_json(run.stdout.splitlines()[-1]), folder


def test_copies_are_loaded_as_memory_allows(studio, short):
    """Two groups: separate processes with the lone copy, then clients of MPS without it."""
    groups = [[True, [2, "naive"]], [False, [3, "mps"]]]
    record, folder = probe(studio.with_card(), short, *groups, memory_mb=40_000)
    assert record.problem is None and record.no_mps is None
    assert [window.name for window in record.windows][:1] == ["alone"]
    members = {window.name: window.members for window in record.windows}
    assert members["2xnaive"] == [0, 1] and members["3xmps"] == [4, 5, 6]
    assert members["alone in turns"] == [0]
    assert {each.name for each in record.sets} == {"2xnaive", "3xmps"}
    assert all(proof["verified"] for proof in record.evidence.values()), record.evidence
    assert 40e9 < record.peak_bytes < 45e9
    ends = step_ends(folder)
    for job_set in record.sets:  # they sleep, so none is slowed
        window = record.window(job_set.name)
        alone = alone_numbers(record, ends, 0, beside=window)
        together = together_numbers(window, ends, [alone] * job_set.n)
        assert together.stp.value == pytest.approx(job_set.n, rel=0.15)


def test_a_copy_that_has_no_room_is_left_out(studio, short):
    record, _ = probe(studio.with_card(), short, [True, [4, "naive"]], memory_mb=40_000)
    assert [each.name for each in record.sets] == ["3xnaive"] and record.problem is None
    statuses = [member.status for member in record.members]
    assert sorted(statuses) == ["completed"] * 3 + ["out_of_memory"]


def test_without_mps_separate_processes_are_measured_and_it_is_told(studio, short):
    studio.with_card()
    path = [p for p in studio.surroundings["PATH"].split(os.pathsep) if "fakes" not in p]
    studio.surroundings["PATH"] = os.pathsep.join(path)
    record, _ = probe(studio, short, [True, [2, "naive"]])
    assert "nvidia-cuda-mps-control" in record.no_mps
    assert [each.name for each in record.sets] == ["2xnaive"]
