"""A step that ends badly, code that changes: nothing stale is published."""

import subprocess
import sys

import pyarrow.parquet
import pytest

from tests.studio import REPOSITORY, alone, study, until, workload

CELL = "1x_plain/paper_step/naive"


@pytest.fixture(scope="module")
def measured(module_studio):
    """A study of two replicates: one was measured and published, and then the other's cell."""
    studio = module_studio()
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    assert studio.snakemake().code == 0
    studio.write_study("drill", study(ladders=alone("plain"), replicates=2))
    assert studio.measure().code == 0
    return studio


def test_what_a_killed_step_makes_is_made_by_the_next_run(measured, tmp_path):
    """Also where tables, figures and pages of an earlier state are there."""
    studio = measured.copy(tmp_path / "copy")
    run = studio.start()

    def killed() -> bool:
        found = [p for p in run.descendants("collocate") if "estimates" in p.cmdline()]
        for process in found[:1]:
            process.kill()
        return bool(found) or run.process.poll() is not None

    until(killed, lambda: run.output)
    ended = run.end()
    assert ended.code == 1 and not (studio.results / "complete").exists(), ended.output
    assert "SIGKILL" in ended.output and "estimate.log" in ended.output
    again = studio.snakemake()
    assert again.code == 0 and (studio.results / "complete").exists(), again.output
    table = pyarrow.parquet.read_table(studio.results / "estimates.parquet").to_pylist()
    [row] = [row for row in table if row["id"] == f"rate:{CELL}"]
    assert row["n"] == 2
    assert "2 of 2" in (studio.results / "results.md").read_text()


def test_older_numbers_are_not_given_in_silence(measured):
    words = ["explain", str(measured.results), f"rate:{CELL}"]
    asked = [sys.executable, "-m", "collocate", *words]
    run = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0 and "1 measurements are newer than these numbers" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_records_of_another_version_are_not_measured_again(measured, tmp_path):
    studio = measured.copy(tmp_path / "copy")
    path = studio.folder / studio.path(f"{CELL}/r1/a1")
    text = path.read_text()
    path.write_text(text.replace('"schema_version": 2', '"schema_version": 1'))
    assert path.read_text() != text
    run = studio.snakemake()
    assert run.code == 1 and "schema_version is 1" in run.output, run.output
    assert len(studio.records()) == 2


def test_an_unknown_target_is_told(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    for words in (["--", "nosuch"], ["--no-hooks"]):
        unknown = studio.snakemake(*words)
        assert (
            unknown.code == 1 and words[-1] in unknown.output and "Traceback" not in unknown.output
        )
    assert not studio.records()
