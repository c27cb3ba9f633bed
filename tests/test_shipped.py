"""A sealed study, shipped with its folder: no command that needs its figures plans a GPU job."""

import shutil
import subprocess
from pathlib import Path

import pytest

from release import manifest, sealed
from release.contents import MANIFEST
from release.contents import shipped as files
from tests.studio import REPOSITORY, STUDY, Studio, alone, study, workload
from workflow.collocation import sitting

GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
TARGETS = ["all", "figures", "report"]


@pytest.fixture(scope="module")
def shipped(module_studio) -> Studio:
    """One measured cell of a study that is then sealed, with a cell that was never measured."""
    made: Studio = module_studio().write({"plain": workload()}, drill=study(ladders=alone("plain")))
    assert made.snakemake("--", f"results/{STUDY}/runs.parquet").code == 0
    more = [{"workloads": ["plain"], "counts": {1: ["naive"], 2: ["naive", "mps"]}}]
    # Today's catalogue is another one, too: what was measured stays what it is.
    catalogue = {"plain": workload(step_s=0.001)}
    made.write(catalogue, drill=study(ladders=more))
    (made.results / MANIFEST).touch()
    return made


def elsewhere(shipped: Studio, folder: Path) -> Studio:
    """The same study in another folder, where no data are and nobody planned anything."""
    return Studio(folder, folder.parent / "no-data", folder.parent / "locks")


def clone(shipped: Studio, folder: Path) -> None:
    """By git, which knows no times of files; without Snakemake's metadata."""
    kept = ["workloads.yaml", "studies", "results"]
    for command in (["init", "-q"], ["add", *kept], ["commit", "-q", "-m", "a study"]):
        subprocess.run([*GIT, *command], cwd=shipped.folder, check=True)
    subprocess.run([*GIT, "clone", "-q", str(shipped.folder), str(folder)], check=True)


def unzip(shipped: Studio, folder: Path) -> None:
    packed = shutil.make_archive(str(folder.parent / "study"), "zip", shipped.folder)
    shutil.unpack_archive(packed, folder)


def touch(shipped: Studio, folder: Path) -> None:
    """Every file, in an order that makes inputs newer than outputs."""
    shutil.copytree(shipped.folder, folder)
    for path in sorted(folder.rglob("*"), key=lambda p: p.name == "run.json"):
        if path.is_file():
            path.touch()


@pytest.mark.parametrize("way", [clone, unzip, touch])
def test_no_way_of_handing_it_on_plans_a_cell(shipped, tmp_path, way):
    folder = tmp_path / "there"
    way(shipped, folder)
    there = elsewhere(shipped, folder)
    run = there.snakemake("--dry-run", "--", *TARGETS)
    assert run.code == 0, run.output
    assert "draw" in run.output or run.nothing_to_do
    assert run.planned == 0 and "dataset" not in run.output, run.output


CELL = "1x_plain/faithful/naive/r1"


def seal(results: Path) -> None:
    """The manifest alone."""
    (results / MANIFEST).write_text(manifest.text(manifest.digests(results, files(results))))


def test_drawing_it_from_other_raw_files_is_said_and_done(shipped, tmp_path):
    """In one line; and none where there is nothing to do."""
    folder = tmp_path / "there"
    shutil.copytree(shipped.folder, folder)
    there = elsewhere(shipped, folder)
    draw = ["--", f"results/{STUDY}/runs.parquet"]
    seal(there.results)
    idle = there.snakemake(*draw)
    assert idle.nothing_to_do and "is sealed" not in idle.output
    record = there.results / "cells" / CELL / "a1" / "run.json"
    record.write_text(record.read_text() + "\n")
    before = (there.results / "runs.parquet").stat().st_mtime_ns
    run = there.snakemake(*draw)
    (line,) = [line for line in run.output.splitlines() if "is sealed" in line]
    # The plan is today's, by another catalogue.
    assert f"and not as it was: cell {CELL} a1: run.json, plan.json; what is made now" in line
    assert f"'make verify STUDY={STUDY}'" in line and f"'make seal STUDY={STUDY}'" in line
    assert run.code == 0 and (there.results / "runs.parquet").stat().st_mtime_ns > before


def test_what_other_code_of_the_analysis_made_is_made_anew(shipped, tmp_path):
    """Where the metadata of a run say so; cells are not."""
    code = shutil.ignore_patterns("results", ".*", "wheelhouse", "data", "tests", "__pycache__")
    shutil.copytree(REPOSITORY, tmp_path / "code", ignore=code)
    there = elsewhere(shipped, tmp_path / "there")
    there.repository = tmp_path / "code"
    shutil.copytree(shipped.folder, there.folder)
    merge = ["--dry-run", "--", f"results/{STUDY}/runs.parquet"]
    first = there.snakemake(*merge)
    assert first.nothing_to_do, first.output
    with (there.repository / "analysis" / "words.py").open("a") as module:
        module.write("# Other words.\n")
    then = there.snakemake(*merge)
    assert then.planned == 0 and "merge" in then.output, then.output


def test_what_is_said_of_a_sealed_study(tmp_path):
    results = tmp_path / "h200"
    results.mkdir()
    assert sealed.notice(results) == ""
    for name in ("plan.json", "runs.txt", "claims.md"):
        (results / name).write_text(name)
    seal(results)
    (results / "claims.md").write_text("derived")
    assert "may have other bytes than MANIFEST.sha256 lists; 'make" in sealed.notice(results)
    (results / "runs.txt").unlink()
    (results / "plan.json").write_text("another")
    assert "is sealed, and not as it was: plan.json, runs.txt; what" in sealed.notice(results)
    (results / MANIFEST).write_text("no digest")
    line = sealed.notice(results)
    assert "line 1: not a SHA-256 and a name" in line and "\n" not in line


def test_both_rooms_know_it_by_the_same_file():
    assert sitting.MANIFEST == MANIFEST


def test_measuring_it_has_to_be_asked_for(shipped):
    assert shipped.snakemake("--dry-run", config={"measure": "true"}).planned == 3
