"""A step that ends badly, a clock that is wrong, code that changes: nothing stale is published."""

import json
import os
import re
import subprocess
import sys
import time

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


def cells_published(studio) -> int:
    table = pyarrow.parquet.read_table(studio.results / "estimates.parquet").to_pylist()
    [row] = [row for row in table if row["id"] == f"rate:{CELL}"]
    return row["n"]


@pytest.mark.parametrize("step", ["estimate", "pages"])
def test_what_a_killed_step_makes_is_made_by_the_next_run(measured, tmp_path, step):
    """Also where tables, figures and pages of an earlier state are there."""
    studio = measured.copy(tmp_path / "copy")
    run = studio.start()

    def killed() -> bool:
        found = [p for p in run.descendants("analysis") if step in p.cmdline()]
        for process in found[:1]:
            process.kill()
        return bool(found) or run.process.poll() is not None

    until(killed, lambda: run.output)
    ended = run.end()
    assert ended.code == 1 and not (studio.results / "complete").exists(), ended.output
    assert re.search(rf"ended by SIGKILL: results/drill/log/\w*{step}.log", ended.output)
    again = studio.snakemake()
    assert again.code == 0 and (studio.results / "complete").exists(), again.output
    assert cells_published(studio) == 2
    assert "2 of 2" in (studio.results / "results.md").read_text()


def test_a_clock_that_was_set_back_costs_no_cell(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain"), replicates=2))
    assert studio.snakemake("--until", "dataset").code == 0
    ahead = time.time() + 7200
    for path in studio.results.glob("ready/*.json"):
        os.utime(path, (ahead, ahead))
    assert studio.measure(f"{CELL}/r1/a1").code == 0
    os.utime(studio.folder / studio.path(f"{CELL}/r1/a1"), (ahead, ahead))
    run = studio.snakemake()
    assert run.code == 0 and cells_published(studio) == 2, run.output
    assert len(studio.records()) == 2


def test_a_step_with_other_code_than_the_run_began_with_is_refused(tmp_path):
    output = tmp_path / "explorer.html"
    command = [sys.executable, "-m", "analysis", "--code", "of yesterday", "explorer"]
    command += ["--folder", "results/h200", "--output", str(output)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 1 and "has changed since this run began" in run.stderr
    assert len(run.stderr.splitlines()) == 1 and not output.exists()


def test_a_cell_longer_than_the_budget_is_measured_and_the_rest_is_left(studio):
    """As after a record that says that a cell took eight hours."""
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain"), replicates=3))
    assert studio.measure(f"{CELL}/r1/a1").code == 0
    path = studio.folder / studio.path(f"{CELL}/r1/a1")
    record = json.loads(path.read_text())
    for seconds in (8 * 3600, -259_193):
        record["timing"]["total_s"] = seconds
        path.write_text(json.dumps(record))
        before = len(studio.records())
        run = studio.measure(config={"budget": "10m"})
        assert run.code == 0 and len(studio.records()) == before + 1, run.output


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"results": "gs:there"}, "results: "),
        ({"data": "br{ace}"}, "data: "),
    ],
)
def test_a_folder_whose_name_others_read_in_another_way_is_refused(studio, settings, said):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    run = studio.plan(config=settings)
    assert run.code == 2 and said in run.output and len(run.output.splitlines()) == 1, run.output


def test_a_tilde_is_the_home_folder(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    home = studio.folder / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(studio.folder / "cache")}
    run = studio.snakemake(config={"results": "~/mine"}, **environment)
    assert run.code == 0 and (home / "mine/drill/complete").exists(), run.output
    assert not (studio.folder / "~").exists()


@pytest.mark.parametrize("arguments", [["--no-hooks"], ["--", "nosuch"]])
def test_what_cannot_be_done_is_told_before_anything_runs(studio, arguments):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    run = studio.snakemake(*arguments)
    assert run.code == 1 and arguments[-1] in run.output and not studio.records(), run.output
    assert "Traceback" not in run.output


def test_a_yaml_file_that_is_too_deep_is_one_line(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    (studio.folder / "studies/drill.yaml").write_bytes(b"a: " + b"[" * 20_000)
    run = studio.plan()
    assert run.code == 2 and run.output.startswith("studies/drill.yaml: "), run.output[-300:]
    assert len(run.output.splitlines()) == 1


def test_a_home_that_may_not_be_written_is_no_obstacle(studio):
    """Of `make study`; Snakemake alone cannot be told before it looks."""
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    command = [sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake", "-n"]
    command += ["--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "1"]
    home = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": ""}
    run = subprocess.run(
        [*command, "--config", *studio.config()],
        cwd=studio.folder,
        env=studio.environment(**home),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and "collocate" in run.stdout, run.stderr


def test_numbers_that_are_older_than_cells_are_not_given_in_silence(measured):
    command = [sys.executable, "-m", "analysis", "explain", "--folder", str(measured.results)]
    command += [f"rate:{CELL}"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0 and "1 cells are newer than these numbers" in run.stderr


def test_a_study_with_a_measured_cell_that_the_tables_lack_is_not_complete(measured, tmp_path):
    studio = measured.copy(tmp_path / "copy")
    run = studio.plan("--check")
    assert run.code == 1 and f"{CELL}/r2" in run.output, run.output
    assert len(run.output.splitlines()) == 1
