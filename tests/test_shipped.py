"""A sealed study, shipped with its folder: no command that needs its figures plans a GPU job."""

import shutil
import subprocess
from pathlib import Path

import pytest

from release.contents import MANIFEST
from tests.studio import STUDY, Studio, alone, study, workload
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


def test_both_rooms_know_it_by_the_same_file():
    assert sitting.MANIFEST == MANIFEST


def test_measuring_it_has_to_be_asked_for(shipped):
    assert shipped.snakemake("--dry-run", config={"measure": "true"}).planned == 3
