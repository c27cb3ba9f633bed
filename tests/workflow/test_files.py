"""Files as others leave them: of the future, of any age, missing, or no files at all."""

import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from analysis import files
from analysis.estimates.records.read import read_records
from analysis.report.pages import FIGURES, listed
from paper.reported import read_reported
from paper.rules import read_rules
from release import manifest
from tests.studio import REPOSITORY, Studio, study, workload
from tests.workflow.test_command import merged
from workflow.collocation.gpu.lock import device_lock, folder_lock
from workflow.collocation.plan.attempts import scan_attempts
from workflow.collocation.record import run_json
from workflow.collocation.run.task import Task
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.load import read_yaml
from workflow.collocation.study.regular_files import read_bytes, read_json

DAY_S = 86_400
SET = "2x_plain/paper_step/naive"
LADDER = {"workloads": ["plain"], "counts": {1: ["naive"], 2: ["naive"]}}


def drill(replicates: int) -> dict:
    return study(ladders=[LADDER], replicates=replicates)


@pytest.fixture(scope="module")
def measured(module_studio) -> Studio:
    """A study of two cells after its first run, which nobody changes."""
    studio = module_studio().write({"plain": workload()}, drill=drill(1))
    run = studio.snakemake()
    assert run.code == 0, run.output
    return studio


@pytest.fixture
def copied(measured, tmp_path):
    """Makes a copy of it, all times as they were; `known`: with what Snakemake noted."""
    made = []

    def make(known: bool) -> Studio:
        ignored = shutil.ignore_patterns("output-*", ".lock", *[".snakemake"] * (not known))
        shutil.copytree(measured.folder, tmp_path / "copy", ignore=ignored)
        made.append(Studio(tmp_path / "copy", measured.data, measured.locks))
        return made[-1]

    yield make
    for studio in made:
        studio.kill_all()


# -- times -----------------------------------------------------------------------------------------


def dated(days: int, *paths: Path) -> None:
    for path in paths:
        os.utime(path, (time.time() + days * DAY_S,) * 2)


# Name → whether Snakemake's notes are there, and files of the study → days from now.
TIMES = {
    "clock set back": (True, {"**/*": 1}),
    "copied with other times": (False, {"**/run.json": -9, "*.*": 1, "ready/*": 1}),
    "unpacked in the future": (False, {"**/run.json": 1}),
}


@pytest.mark.parametrize("name", TIMES)
def test_whatever_the_times_no_measured_cell_is_lost_and_tables_are_of_all(copied, name):
    known, times = TIMES[name]
    studio = copied(known)
    for pattern, days in times.items():
        dated(days, *studio.results.glob(pattern))
    before = {path: path.read_bytes() for path in studio.results.rglob("run.json")}
    studio.write_study("drill", drill(2))
    run = studio.snakemake()
    assert run.code == 0 and "2 to run now" in run.output, run.output
    assert {path: path.read_bytes() for path in before} == before
    assert len(studio.records()) == 4
    assert {f"{cell}/a1" for cell in merged(studio.results)} == {*studio.records()}
    assert studio.snakemake().nothing_to_do


def test_cells_that_were_measured_elsewhere_come_into_tables_that_are_newer(copied):
    """A folder brought here from where `make cells` ran, over tables of an earlier day."""
    studio = copied(known=True)
    studio.write_study("drill", drill(2))
    assert studio.measure().code == 0
    shutil.rmtree(studio.folder / ".snakemake")
    dated(-1, *studio.results.rglob("run.json"))
    run = studio.snakemake("--", "figures", config={"measure": "false"})
    assert run.code == 0, run.output
    assert {f"{cell}/a1" for cell in merged(studio.results)} == {*studio.records()}


def test_a_clock_that_is_set_back_in_mid_cell_loses_nothing(copied):
    """What is read is then newer than what is measured, and Snakemake removes such an output."""
    studio = copied(known=True)
    studio.write_study("drill", drill(2))
    with studio.held(f"{SET}/r2/a1", *studio.only(f"{SET}/r2/a1")) as (running, hold):
        dated(1, *studio.results.glob("ready/*"))
        hold.unlink()
        run = running.end()
    assert run.code == 0, run.output
    assert studio.record(f"{SET}/r2/a1")["status"] == "completed"


def house(folder: Path) -> Path:
    """The repository under another path, with a config of its own."""
    folder.mkdir()
    for name in ("workflow", "analysis", "paper", "models", "profiles"):
        (folder / name).symlink_to(REPOSITORY / name)
    shutil.copy(REPOSITORY / "Snakefile", folder)
    shutil.copytree(REPOSITORY / "config", folder / "config")
    return folder


def test_rules_and_printed_values_of_the_future_do_not_stop_a_study(copied, tmp_path):
    studio, made = copied(known=True), house(tmp_path / "house")
    dated(1, *(made / "config").glob("*.*"))
    figures = {"config": {"measure": "false"}, "snakefile": made / "Snakefile"}
    run = studio.snakemake("--", "figures", **figures)
    assert run.code == 0, run.output
    assert studio.snakemake("--", "figures", **figures).nothing_to_do


# -- what is gone ----------------------------------------------------------------------------------


TABLES = {"merge", "estimate", "draw", "write_pages", "explore"}


def drawn(studio: Studio, ending: str) -> str:
    name = next(row["figure"] for row in listed(studio.results) if row["title"])
    return f"figures/{name}{ending}"


# What is gone → which rules run.
GONE = {
    "a picture": (lambda studio: drawn(studio, ".png"), {"draw", "write_pages"}),
    "the list of figures": (lambda studio: FIGURES, {"draw", "write_pages"}),
    "merged rows": (lambda studio: "runs.parquet", TABLES),
    "estimates": (lambda studio: "estimates.parquet", TABLES - {"merge"}),
    "a page": (lambda studio: "advice.md", {"write_pages"}),
    "a page as HTML": (lambda studio: "report/advice.html", {"write_pages"}),
    "the explorer": (lambda studio: "explorer.html", {"explore"}),
}


@pytest.mark.parametrize("name", GONE)
def test_of_what_is_gone_only_that_is_planned_again(copied, name):
    studio, (path, expected) = copied(known=True), GONE[name]
    (studio.results / path(studio)).unlink()
    plan = studio.snakemake("-n")
    rules_to_run = {*re.findall(r"^(\w+) +1$", plan.output, re.MULTILINE)}
    assert rules_to_run == expected | {"all", "complete"}


def test_what_is_gone_is_made_again_byte_by_byte_and_then_nothing_is_to_do(copied):
    studio = copied(known=True)
    gone = [studio.results / path for path in (drawn(studio, ".png"), "advice.md", "explorer.html")]
    before = [path.read_bytes() for path in gone]
    for path in gone:
        path.unlink()
    run = studio.snakemake()
    assert run.code == 0, run.output
    assert [path.read_bytes() for path in gone] == before
    assert studio.snakemake().nothing_to_do


# -- what is no file -------------------------------------------------------------------------------


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name is short
        server.bind(path.name)
        os.chdir(here)


PLANTED = {
    "pipe": os.mkfifo,
    "socket": listen,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


def locked(path: Path) -> None:
    with folder_lock(path.parent, {}):
        pass


def device_locked(path: Path) -> None:
    os.environ["COLLOCATION_LOCK_DIR"] = str(path.parent)
    try:
        with device_lock("cpu", {}, pytest.fail):
            pass
    finally:
        del os.environ["COLLOCATION_LOCK_DIR"]


def planned(path: Path) -> None:
    scan_attempts(path.parents[5])


READERS = {
    "any": ("x", read_bytes),
    "YAML": ("x.yaml", read_yaml),
    "JSON": ("advice.json", read_json),
    "table": ("steps.parquet", files.read_table),
    "record": ("run.json", run_json.read_record),
    "plan": ("cells/1x_a/i/naive/r1/a1/run.json", planned),
    "job": ("job.json", Task.read),
    "list": ("runs.txt", lambda path: read_records("drill", path)),
    "figures": (FIGURES, lambda path: listed(path.parents[1])),
    "folder's lock": (".lock", locked),
    "device's lock": ("cpu.lock", device_locked),
    "claims": ("claims.yaml", read_rules),
    "printed": ("reported.csv", read_reported),
    "hashes": ("MANIFEST.sha256", manifest.read_list),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_by_its_name_and_never_waited_for(tmp_path, reader, what):
    name, read = READERS[reader]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    PLANTED[what](path)

    def waited(*_):
        pytest.fail(f"waits for {path}")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    try:
        with pytest.raises((OSError, ValueError, ConfigError)) as caught:
            read(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


IN_A_STUDY = (f"cells/{SET}/r1/a1/run.json", "datasets/*", FIGURES)


@pytest.mark.parametrize("pattern", IN_A_STUDY)
def test_a_pipe_in_a_study_is_named_before_anything_runs(copied, pattern):
    studio = copied(known=True)
    [path] = [*studio.results.glob(pattern)] or [studio.results / pattern]
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    studio.write_study("drill", drill(2))
    run = studio.snakemake()
    assert run.code == 1 and "Traceback" not in run.output
    assert sum(path.name in line for line in run.output.splitlines()) == 1, run.output
    assert len([*studio.results.rglob("run.json")]) == 2


# -- homes and resources ---------------------------------------------------------------------------


def test_a_home_that_cannot_be_written_is_not_needed(copied):
    studio = copied(known=True)
    studio.cold = True
    shutil.rmtree(studio.results / "figures")
    run = studio.snakemake(HOME="/proc/nobody", XDG_CACHE_HOME="")
    assert run.code == 0, run.output
    assert (studio.results / FIGURES).exists()


@pytest.mark.parametrize("value", ["0.5", "2"])
def test_a_cell_takes_one_gpu_whatever_is_asked(copied, value):
    run = copied(known=False).snakemake("-n", "--set-resources", f"collocate:gpu={value}")
    assert run.code == 1 and "Traceback" not in run.output
    assert "--set-resources collocate:gpu=" in run.output and "allowed: 1" in run.output
