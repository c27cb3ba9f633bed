"""The one command: a whole study, what is planned again and what is not, what is refused."""

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.report.pages import FIGURES, files
from release import manifest
from tests.studio import REPOSITORY, Result, Studio, alone, study, workload
from workflow.collocation.gpu.lock import device_lock

PLAIN = "1x_plain/paper_step/naive/r1"


def merged(results: Path) -> list[str]:
    """The cell of each row of runs.csv."""
    with (results / "runs.csv").open(encoding="utf-8", newline="") as file:
        return [row["cell"] for row in csv.DictReader(file)]


LADDERS = [
    {
        "workloads": ["plain"],
        "counts": {1: ["naive", "mps", "mig_7g"], 2: ["naive", "mig"], 3: ["naive"]},
    },
    {"workloads": ["plain"], "implementations": ["graph"], "counts": {1: ["naive"]}},
]
STATUSES = {
    "1x_plain/paper_step/naive/r1/a1": "completed",
    "1x_plain/paper_step/mps/r1/a1": "unsupported",
    "1x_plain/paper_step/mig_7g/r1/a1": "unsupported",
    "1x_plain/graph/naive/r1/a1": "unsupported",
    "2x_plain/paper_step/naive/r1/a1": "completed",
    "2x_plain/paper_step/mig/r1/a1": "unsupported",
    "3x_plain/paper_step/naive/r1/a1": "completed",
    "1x_other/paper_step/naive/r1/a1": "completed",
    "1x_other+1x_plain/paper_step/naive/r1/a1": "completed",
    "1x_other+2x_plain--departure/paper_step/naive/r1/a1": "completed",
    "1x_other+1x_plain--completion/paper_step/naive/r1/a1": "completed",
}
WORK = {"other": 60, "plain": 40}
CATALOGUE = {"plain": workload(), "other": workload(step_s=0.012)}


OWN_CELL = "1x_my_net/paper_step/naive/r1/a1"
OWN_NET = """from torch import nn


def net(num_classes, width=8):
    body = nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(width * 15 * 15, num_classes))
"""

OWN_KIND = """import torch

from models.jobs.base import Job


class Rows:  # of a digit's pixels
    def __init__(self, arrays, spec, device):
        images = torch.tensor(arrays["images"], dtype=torch.float32, device=device)
        self.rows, self.size = images.flatten(1) / 255, spec.batch_size
        self.labels = torch.tensor(arrays["labels"], device=device)
        self.bytes = self.rows.nbytes

    def batch(self, step):
        numbers = torch.arange(step * self.size, (step + 1) * self.size) % len(self.rows)
        return self.rows[numbers], self.labels[numbers]


class Toy(Job):
    resident = Rows

    def build(self, spec, device):
        self.model = torch.nn.Linear(3 * 38 * 38, spec.job.model_args["outputs"], device=device)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
"""


@pytest.fixture(scope="module")
def whole(module_studio):
    """The tiny study after its first run, which nobody changes, and that run."""
    mix = {"members": {"other": 1, "plain": 1}, "methods": ["naive"]}
    leave = {"measure": {"kind": "departure"}, "leaving_workload": "plain"}
    leave |= {"members": {"other": 1, "plain": 2}, "methods": ["naive"]}
    fixed = mix | {"measure": {"kind": "completion"}, "work": WORK}
    mixes = [mix, leave, fixed]
    studio = module_studio().write(CATALOGUE, drill=study(ladders=LADDERS, mixes=mixes))
    return studio, studio.snakemake()


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it, with new modification times and without what Snakemake noted."""
    studio = whole[0].copy(tmp_path / "copy")
    yield studio
    studio.kill_all()


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"results": "/dev/zero"}, r"results: /dev/zero is no folder"),
        ({"budgte": "1h"}, r"config\.yaml or the command line: budgte: .*allowed: .*budget"),
        ({"measure": "false"}, "drill holds no results; there are: none"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_written(studio, config, expected):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    bundle = studio.results.with_name("somebody-else-s")  # contributed: no results of ours
    (bundle / "cells").mkdir(parents=True)
    plan, result = studio.plan(config=config), studio.snakemake(config=config)
    assert len(plan.output.splitlines()) == 1
    for said in (plan, result):
        assert said.code != 0 and re.search(expected, said.output), said.output
        assert "Traceback" not in said.output
    assert not studio.results.exists()


# -- the plan, before anything is measured ---------------------------------------------------------


def test_the_plan_says_what_fits_a_budget(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain"), replicates=3))
    plan = studio.plan("--budget", "6.5s")
    assert plan.code == 0, plan.output
    shown = " ".join(plan.output.split())
    assert "3 cells, 0 measured, 2 to run now, 1 left for later (budget)" in shown
    assert shown.count("won't fit") == 1


def test_an_import_by_another_workflow_is_refused_in_one_line(studio):
    studio.folder.mkdir()
    lines = ["module study:", f'    snakefile: "{REPOSITORY / "Snakefile"}"', ""]
    (studio.folder / "Snakefile").write_text("\n".join([*lines, "use rule * from study", ""]))
    command = [sys.executable, "-m", "snakemake", "-n"]
    run = subprocess.run(command, cwd=studio.folder, capture_output=True, text=True)
    assert run.returncode == 1 and "no module of another one" in run.stderr
    assert run.stderr.count("\n") == 1


# -- runs that do not go to the end ----------------------------------------------------------------


def test_snakemake_alone_plans_a_thousand_cells(studio):
    """Without --cores, which stand in the profile."""
    names = [f"plain{index}" for index in range(50)]
    ladders = [{"workloads": names, "counts": {1: ["naive"], 2: ["naive"], 3: ["naive", "mps"]}}]
    studio.write(dict.fromkeys(names, workload()), drill=study(ladders=ladders, replicates=5))
    command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", "-n"]
    plain = subprocess.run(
        [*command, "--config", *studio.config()],
        cwd=studio.folder,
        env=studio.environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert Result(plain.returncode, plain.stdout).planned == 1000, plain.stdout


def test_a_budget_that_is_over_sooner_than_planned_puts_the_rest_off(studio, monkeypatch):
    """Somebody else holds the device all the time; no marker of what was put off stays."""
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    assert studio.measure().code == 0
    studio.write_study("drill", study(ladders=alone("plain"), replicates=2))
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(studio.locks))
    with device_lock("cpu", {"pid": 1}, pytest.fail):
        over = studio.snakemake("--until", "merge", config={"budget": "10s"})
    assert "waiting for the CPU, held by pid 1" in over.output
    assert over.code == 0 and "postponed: the time budget is used up" in over.output, over.output
    assert "1 cells are left for later (budget)" in over.output
    assert [r["status"] for r in studio.records().values()] == ["completed"]
    assert studio.snakemake("--until", "merge").code == 0
    assert [r["status"] for r in studio.records().values()] == ["completed"] * 2


@pytest.mark.parametrize("how", ["stuck", "left behind", "stopped"])
def test_a_device_whose_lock_may_never_be_free_is_given_up(studio, monkeypatch, how):
    """A process is stuck, as the holder says; a cell left one behind; somebody stopped a cell."""
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain"), replicates=2))
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(studio.locks))
    sleeper = subprocess.Popen(["sleep", "600"])
    words = {"pid": sleeper.pid} | ({"stuck": "PID 7"} if how == "stuck" else {})
    with contextlib.ExitStack() as held:
        lock = held.enter_context(device_lock("cpu", words, pytest.fail))
        stray = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
        if how == "left behind":
            held.close()
        elif how == "stopped":
            sleeper.send_signal(signal.SIGSTOP)
        run = studio.measure(config={"wait": "0.5s"})
        for process in (sleeper, stray):
            process.kill()
            process.wait()
    said = {"stuck": ", stuck PID 7", "left behind": ", stuck a process that it started lives on"}
    held_by = f"held by pid {sleeper.pid}{said.get(how, '')}"
    left = f"2 cells are left: waited 0.5s for the CPU, {held_by}; the same command"
    assert run.code == 1 and left in run.output, run.output
    assert not studio.records()


def test_a_workload_and_a_kind_of_ones_own_train_for_real(studio):
    """A catalogue entry with module:function, and one of a kind that is a module; measured by the
    real trainer on the CPU.
    """
    ladders = [*alone("toy"), *alone("my_net")]
    toy = {"kind": "toy:Toy", "dataset": "digits", "input_size": 32, "batch_size": 32}
    toy |= {"model_args": {"outputs": 10}, "input": {"samples": 1437}}
    own = workload() | {"model": "mine:net", "model_args": {"width": 4}}
    studio.write({"my_net": own, "toy": toy}, drill=study(ladders=ladders))
    (studio.folder / "mine.py").write_text(OWN_NET)
    (studio.folder / "toy.py").write_text(OWN_KIND)
    path = os.pathsep.join([str(studio.folder), str(REPOSITORY)])
    config = {"trainer": "models.train"}
    cells = OWN_CELL, "1x_toy/paper_step/naive/r1/a1"
    run = studio.measure(*cells, config=config, PYTHONPATH=path)
    assert run.code == 0, run.output
    net, toy = map(studio.record, cells)
    assert (net["status"], toy["status"]) == ("completed",) * 2, (net["reason"], toy["reason"])
    assert net["members"][0]["parameters"] == 4 * 3 * 9 + 4 + (4 * 15 * 15 + 1) * 10
    assert net["members"][0]["loss"]["value"][-1] < 2.3  # of ten digits
    assert net["data"][0]["source"] == "real"
    (member,) = toy["members"]
    assert member["parameters"] == 3 * 38 * 38 * 10 + 10 and member["loss"]["value"][-1] < 1.5
    assert "source" in toy["spec"]["members"][0]  # of toy.py: it changes, the cell runs again
    studio.assert_no_orphans()


MISTAKES = {  # workload → what it says otherwise than a right one, and what is said of it
    "near": ({"model": "test_resnett"}, "model: 'test_resnett' is no model of timm; did you"),
    "module": ({"model": "absent:net"}, "model: there is no module 'absent'"),
    "function": ({"model": "mine:nett"}, "model: 'mine' has no 'nett'; did you mean 'net'"),
    "kind": ({"kind": "mine:Nett"}, "kind: 'mine' has no 'Nett'"),
    "script": ({"run": ["python", "trian.py"]}, "run: 'trian.py' is not in '.'; did you mean 't"),
    "program": ({"run": ["no-such-program"]}, "run: 'no-such-program' is not in '.'"),
    "folder": ({"run": ["python", "a.py"], "folder": "nowhere"}, "folder: 'nowhere' is no"),
}


def test_mistakes_in_models_and_scripts_are_told_before_anything_runs(studio):
    """All at once, and nobody's code is run for it."""
    trained = {"dataset": "digits", "input_size": 32, "classes": 10}
    catalogue = {}
    for name, (changes, _) in MISTAKES.items():
        kind = {"kind": "command"} if "run" in changes else trained
        catalogue[name] = kind | {"model": "mine:net", "batch_size": 8} | changes
        if "run" in changes:
            del catalogue[name]["model"]
        elif "kind" in changes:
            del catalogue[name]["classes"]
    studio.write(catalogue, drill=study(ladders=alone(*catalogue)))
    (studio.folder / "mine.py").write_text(OWN_NET)
    (studio.folder / "train.py").touch()
    path = os.pathsep.join([str(studio.folder), str(REPOSITORY)])
    run = studio.measure(config={"trainer": "models.train"}, PYTHONPATH=path)
    assert run.code == 1 and not studio.records(), run.output
    said = [line for line in run.output.splitlines() if "workloads.yaml: " in line]
    for name, (_, expected) in MISTAKES.items():
        assert sum(f"workloads.yaml: {name}.{expected}" in line for line in said) == 1, run.output
    assert len(said) == len(MISTAKES), run.output


# -- a whole study ---------------------------------------------------------------------------------


def test_a_whole_study_and_then_nothing_to_do(whole):
    studio, run = whole
    assert run.code == 0, run.output
    studio.assert_no_orphans()
    records = studio.records()
    assert {cell: record["status"] for cell, record in records.items()} == STATUSES
    trained = [record for record in records.values() if record["members"]]
    assert {record["provenance"]["server"] for record in trained} == {"zygote"}
    assert max(record["timing"]["server_s"] for record in trained[1:]) == 0
    for cell, record in records.items():
        if STATUSES[cell] == "unsupported":
            assert "needs an NVIDIA GPU" in record["reason"] and not record["members"]
    assert "study 'drill' (as asked for) on CPU" in run.output
    assert "11 cells, 0 measured, 11 to run now" in run.output
    again = studio.snakemake()
    assert (studio.results / "complete").exists() and again.nothing_to_do, again.output
    assert "results.md" in again.output


def test_a_damaged_or_removed_cell_is_named_when_there_is_nothing_to_do(copied):
    """Also by a run that draws: Snakemake knows of run.json alone."""
    first, second = (copied.results / f"cells/{n}x_plain/paper_step/naive/r1/a1" for n in (1, 2))
    (first / "steps.parquet").write_bytes(b"PAR1")
    (second / "steps.parquet").unlink()
    (copied.results / "runs.parquet").unlink()
    drawn, again = copied.snakemake(), copied.snakemake()
    for done in (drawn, again):
        assert done.code == 0 and "damaged, 2 of the measured attempts" in done.output
        assert "1/a1 (steps.parquet has changed), " in done.output
        assert "1/a1 (steps.parquet is gone); collocate seal drill" in done.output
    assert "collocate seal drill" in drawn.output.splitlines()[-1], drawn.output
    assert again.nothing_to_do
    manifest.write_lists(copied.results, manifest.digests(copied.results))
    shutil.rmtree(first)
    done = copied.snakemake("--", "figures")
    assert done.code == 0 and "damaged, 1 of the measured" in done.output
    assert "1x_plain/paper_step/naive/r1/a1 (" in done.output
    assert "collocate verify drill" in done.output, done.output


def test_fixed_work_is_done_by_everybody_and_ends_with_the_last_step(whole):
    studio, _ = whole
    cell = next(cell for cell in STATUSES if "completion" in cell)
    record = studio.record(cell)
    [window] = record["windows"]
    assert window["name"] == "completion" and 60 * 0.012 <= window["seconds"] < 10
    steps = studio.folder / studio.path(cell).with_name("steps.parquet")
    done = pq.read_table(steps)["member"].to_pylist()
    for member in record["members"]:
        rate, work = member["windows"]["completion"], WORK[member["workload"]]
        assert done.count(member["member"]) == work and member["status"] == "completed"
        # The window opens when the last has started: on a busy machine others have begun by then.
        assert work - 10 < rate["steps"] <= work and rate["drift"] is None


def test_tables_and_figures_are_there(whole):
    results = whole[0].results
    assert {f"{cell}/a1" for cell in merged(results)} == set(STATUSES)
    for ending in ("png", "pdf", "svg", "csv"):
        assert (results / "figures" / f"rate_against_n.{ending}").stat().st_size > 0
    for page in (*files(), FIGURES, "explorer.html", "estimates.csv"):
        assert (results / page).stat().st_size > 0


# -- what is planned again -------------------------------------------------------------------------


def test_a_measured_cell_is_not_made_again_by_name_nor_by_force(whole):
    """One line says so, and names it; also of one of which nobody knows."""
    studio, _ = whole
    record = next(studio.results.glob("cells/*/*/*/*/*/run.json"))
    before, name = record.read_bytes(), record.relative_to(studio.folder).as_posix()
    for asked, words in ((name, "nothing to do"), (name.replace("/a1/", "/a2/"), "not to be meas")):
        run = studio.snakemake("-F", "--", asked)
        (said,) = (line for line in run.output.splitlines() if asked in line)
        assert run.code == 1 and words in said and "Exception" not in run.output, run.output
    assert studio.snakemake("--dry-run", "-F").planned == 0
    assert record.read_bytes() == before


def test_an_unpacked_zip_plans_no_cell_and_draws_its_figures(whole, tmp_path):
    """In another folder, with all files at another time: contents alone decide what is planned."""
    studio, _ = whole
    packed = shutil.make_archive(str(tmp_path / "study"), "zip", studio.folder)
    unpacked = Studio(tmp_path / "unpacked", tmp_path / "no-data", tmp_path / "locks")
    shutil.unpack_archive(packed, unpacked.folder)
    shutil.rmtree(unpacked.results / "figures")
    figure = f"results/drill/{FIGURES}"
    drawn = unpacked.snakemake("--", figure, config={"measure": "false"})
    assert drawn.code == 0, drawn.output
    assert (unpacked.folder / figure).exists()
    assert unpacked.snakemake("--dry-run").planned == 0


def test_a_changed_workload_reruns_its_cells_alone_and_none_without_measuring(copied):
    changed = CATALOGUE | {"other": workload(step_s=0.005)}
    copied.write(changed)
    assert copied.snakemake("--dry-run").planned == 4
    assert copied.snakemake("--dry-run", config={"measure": "false"}).planned == 0
    changed["other"]["description"] = "says nothing of what is trained"
    copied.write(changed | {"unused": workload()})
    plan = " ".join(copied.plan().output.split())  # lines are cut at 72 columns
    assert "4 to run now" in plan
    for cell in ("1x_other/paper_step/naive/r1", "1x_other+1x_plain/paper_step/naive/r1"):
        assert f"{cell} (its settings changed: " in plan


def test_a_figure_that_there_are_no_data_for_any_more_goes(copied):
    folder = copied.results / "figures"
    (folder / "serving.png").write_bytes(b"of a version that drew it")
    listed = (folder / "index.csv").read_text()
    assert "serving,," in listed
    (folder / "index.csv").write_text(listed.replace("serving,,", "serving,A finding,"))
    run = copied.snakemake(
        "--forcerun", "draw", "--", f"results/drill/{FIGURES}", config={"measure": "false"}
    )
    assert run.code == 0, run.output
    assert not (folder / "serving.png").exists()
