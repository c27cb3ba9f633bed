"""Snakemake's Slurm executor on a real Slurm of one node (tests/slurm.py): `make test-slurm`."""

import importlib.util
import json
import os
import signal
import subprocess

import pytest

from analysis.advice.recipes import Recipe, script_of
from tests import slurm
from tests.studio import REPOSITORY, Studio, alone, study, until, workload

PLUGIN = "snakemake_executor_plugin_slurm"
PROFILE = ["--workflow-profile", str(REPOSITORY / "profiles" / "slurm"), "--cores", "2"]
PROFILE += ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]
WHY_NOT = (
    "COLLOCATION_SLURM=1 asks for it (make test-slurm)"
    if not os.environ.get("COLLOCATION_SLURM")
    else slurm.missing() or (importlib.util.find_spec(PLUGIN) is None and f"no {PLUGIN}")
)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def gpus(cluster, tmp_path, data):
    """The cards that jobs find on the node; the login node, which is this machine, has none."""
    cards = [Studio(tmp_path / f"gpu{i}", data, tmp_path).with_card() for i in range(slurm.GPUS)]
    cluster.install(cards)
    yield [json.loads((card.card / "state.json").read_text())["uuid"] for card in cards]
    for left in cluster.folder.glob("gpu*"):
        left.unlink()


def planned(studio: Studio) -> list[dict]:
    """The job files, in their order."""
    files = studio.results.glob("jobs/*/*/*/*/*.json")
    return sorted(
        (json.loads(f.read_text()) for f in files), key=lambda j: int(j["place"].split("/")[0])
    )


def test_replicates_run_condition_by_condition_each_on_the_gpu_that_slurm_gave(
    studio, cluster, gpus
):
    studio.gpu = "auto"
    ladder = {"workloads": ["tiny"], "counts": {1: ["naive"], 2: ["naive", "mps"]}}
    studio.write({"tiny": workload()}, drill=study(replicates=2, ladders=[ladder]))
    first = [f"1x_tiny/paper_step/naive/r{replicate}/a1" for replicate in (1, 2)]
    arguments = [*PROFILE, "--until", "collocate"]
    refused = studio.snakemake(*arguments, config={"gpu": 0})
    assert refused.code == 1 and "allowed: auto, cpu" in refused.output
    with studio.held(first[0], *arguments) as (run, hold):
        # Both stand in their windows at once, whichever cell of a replicate is its first.
        until(lambda: all(_started(studio, replicate) for replicate in (1, 2)), lambda: run.output)
        assert [state for _, state in cluster.queue()] == ["RUNNING", "RUNNING"]
        assert all(job["needs_gpu"] for job in planned(studio))
        hold.unlink()
        assert run.end().code == 0
    on = {cell.split("/")[3]: set() for cell in first}
    for cell, record in studio.records().items():
        assert record["status"] == "completed", record["reason"]
        on[cell.split("/")[3]].add(record["gpu"]["uuid"])
    assert len(studio.records()) == 6 and set(map(len, on.values())) == {1}
    assert set.union(*on.values()) == set(gpus)
    assert not cluster.queue()
    again = studio.snakemake(*arguments)
    assert again.code == 0 and "6 measured, 0 to run now" in again.output
    studio.assert_no_orphans()


def cut_short(studio: Studio, cluster: slurm.Slurm, done: int, happen) -> None:
    """Run until so many cells are measured, and the next one stands in its window."""
    hold = studio.folder / "hold"
    run = studio.start(*PROFILE, "--until", "collocate", COLLOCATION_HOLD=str(hold))
    until(
        lambda: len(studio.records()) == done or run.process.poll() is not None,
        lambda: run.output,
    )
    hold.touch()  # the next one takes seconds to begin
    [(job, _)] = cluster.queue()
    path = next(p for j in planned(studio) if (p := f"{j['cell']}/a1") not in studio.records())
    until(lambda: "started:" in studio.log(path), lambda: run.output)
    happen(run, job)
    assert run.end().code != 0
    until(lambda: not cluster.queue(), lambda: str(cluster.queue()))
    until(lambda: not studio.alive(), lambda: str(studio.alive()))
    hold.unlink()


def _started(studio: Studio, replicate: int) -> bool:
    logs = studio.results.glob(f"cells/*/*/*/r{replicate}/a1/log/conductor.log")
    return any("started:" in log.read_text() for log in logs)


def test_whatever_ends_a_replicate_early_costs_no_cell_and_no_attempt(studio, cluster, gpus):
    """One cell of the replicate is measured, the next one stands in its window when it happens."""
    del gpus
    studio.gpu = "auto"
    names = [f"job{index}" for index in range(5)]
    studio.write(
        {name: workload() for name in names},
        drill=study(ladders=[alone(name)[0] for name in names]),
    )
    happens = {
        "drained": lambda run, job: (cluster.node("DRAIN"), run.signal_group(signal.SIGINT)),
        "Ctrl-C": lambda run, job: run.signal_group(signal.SIGINT),
        "scancel": lambda run, job: cluster.ask("scancel", job),
        "limit": lambda run, job: cluster.ask(
            "scontrol", "update", f"JobId={job}", "TimeLimit=0:01"
        ),
    }
    for done, (how, happen) in enumerate(happens.items(), 1):
        before = studio.records()
        cut_short(studio, cluster, done, happen)
        assert len(studio.records()) == done and before.items() <= studio.records().items(), how
        if how == "drained":
            cluster.node("RESUME")
    assert studio.snakemake(*PROFILE, "--until", "collocate").code == 0
    assert {cell.rpartition("/")[2] for cell in studio.records()} == {"a1"}
    assert [record["status"] for record in studio.records().values()] == ["completed"] * len(names)


def test_a_recipe_runs_all_its_jobs_in_one_allocation(cluster, gpus, tmp_path):
    del gpus
    command = ["sh", "-c", "echo $RECIPE_JOB $SLURM_JOB_ID $SLURM_CPUS_PER_TASK; exit $RECIPE_JOB"]
    asked = Recipe(run=command, jobs=3, method="naive", folder=str(tmp_path))
    (tmp_path / "start.sh").write_text(script_of(asked, "slurm"))
    submit = ["sbatch", "--parsable", "--wait", f"--chdir={tmp_path}", str(tmp_path / "start.sh")]
    ended = subprocess.run(submit, capture_output=True, text=True, timeout=60)
    output = (tmp_path / f"slurm-{ended.stdout.strip()}.out").read_text()
    assert ended.returncode == 1 and "job 3 ended with status 3" in output, (ended, output)
    logs = [path.read_text().split() for path in sorted(tmp_path.glob("recipe-*/job-*.log"))]
    assert logs == [[str(job), ended.stdout.strip(), "3"] for job in (1, 2, 3)]
    assert not cluster.queue()
