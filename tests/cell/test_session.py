"""What one invocation finds, and leaves, beside the cells that it runs."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.studio import PLAIN, STUDY, alone, study, workload
from tests.unit.test_record import make
from workflow.collocation.plan import jobs, show
from workflow.collocation.plan import session as session_module
from workflow.collocation.plan.session import Session, open_posted, open_session
from workflow.collocation.record.run_json import GpuRecord, write_record
from workflow.collocation.run.task import Task
from workflow.collocation.study.errors import ConfigError

TURNS = {"kind": "interleaved", "slices": 10, "slice_s": 1.0}
TURNS = {"workloads": ["plain"], "counts": {2: ["alone", "naive"]}, "measure": TURNS}


@pytest.fixture
def place(tmp_path, monkeypatch) -> dict:
    """Config of a study in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("studies").mkdir()
    Path("workloads.yaml").write_text(yaml.safe_dump({"plain": PLAIN}))
    plan()
    files = {"workloads": "workloads.yaml", "studies": "studies"}
    return {"study": STUDY, "gpu": "cpu", "session": "visit", **files}


def plan(**content) -> None:
    content = {"ladders": alone("plain")} | content
    Path("studies", f"{STUDY}.yaml").write_text(yaml.safe_dump(study(**content)))


def ends(session: Session, status: str) -> list[Path]:
    """Write run.json of the jobs; the study was complete before."""
    paths = [*map(Path, session.planned_records)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"status": status, "reason": "busy"}))
    (session.folder / "complete").touch()
    return paths


def test_conditions_without_room_for_all_leave_the_study_incomplete(place):
    plan(ladders=[TURNS])
    session = open_session(place)
    ends(session, "out_of_memory")
    said, hindered = jobs.sweep_postponed(session)
    assert "measures their sets in cells of their own" in said and not hindered
    assert not (session.folder / "complete").exists()


def test_what_was_merged_is_shown_unless_cells_were_measured_since(place):
    plan(replicates=2)
    session = open_session(place)
    first, second = ends(session, "completed")
    assert not session.tables_current
    for listed, merged in (([second, first], True), ([first], False)):
        (session.folder / "runs.txt").write_text("".join(f"{path}\n" for path in listed))
        assert session.tables_current == merged


# -- config → session ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "wanted", "gpu", "words"),
    [
        ({}, "auto", None, "is made for a GPU"),
        ({}, "cpu", None, None),
        ({"cpu": True}, "auto", None, None),
        ({"cpu": True}, "auto", "GPU-1", "holds cells of a GPU"),
        ({}, "cpu", "GPU-1", "holds cells of a GPU"),
    ],
)
def test_a_study_for_a_gpu_is_not_measured_without_unless_that_is_asked_for(
    place, monkeypatch, content, wanted, gpu, words
):
    """It can be planned; and what was measured on a GPU counts in that plan."""
    plan(replicates=2, **content)
    monkeypatch.setattr(session_module, "find_devices", lambda *_: ([], "no CUDA machine"))
    first = open_session(place | {"gpu": wanted}).jobs[0]
    if gpu:
        card = GpuRecord(uuid=gpu, name="a GPU", memory_bytes=None, driver="580")
        path = Path("results", STUDY, "cells", first.path, "run.json")
        path.parent.mkdir(parents=True)
        told = {"spec": first.cell.spec.to_json(), "status": "out_of_memory", "gpu": card}
        write_record(path, make(first.cell.id, **told))
    session = open_session(place | {"gpu": wanted})
    assert len(session.jobs) == (1 if gpu else 2)
    assert words in session.forbidden if words else session.forbidden is None
    assert not words or words in show.plan_table(session), "a plan says it, too"


@pytest.mark.parametrize(
    ("refusing", "used"),
    [("", "abc"), ("b", "ac"), ("a", "a")],  # one that its replicate's GPU refuses stays there
)
def test_a_gpu_that_refuses_a_cell_is_asked_in_time(place, monkeypatch, refusing, used):
    plan(ladders=[TURNS | {"counts": dict.fromkeys(range(2, 8), ["alone", "naive"])}])
    found = [SimpleNamespace(uuid=name, name="a GPU", driver="580") for name in "abc"]
    says = lambda spec, device: "MIG" if device.uuid == refusing else None  # noqa: E731
    monkeypatch.setattr(session_module, "find_devices", lambda *_: (found, ""))
    monkeypatch.setattr(session_module, "refusal", says)
    session = open_session(place | {"gpu": "auto"}, max_gpus=3)
    assert {job.device for job in session.jobs} == {*used} and len(session.jobs) == 6
    refused = {session.refusal(job.cell) for job in session.jobs}
    assert refused == ({"MIG"} if refusing == "a" else {None})


def test_a_sealed_study_plans_no_cell_but_where_that_is_asked_for(place):
    folder = open_session(place).folder
    folder.mkdir(parents=True)
    (folder / "MANIFEST.sha256").touch()
    for settings, planned in (({}, 0), ({"measure": True}, 1)):
        session = open_session(place | settings)
        assert session.sealed and len(session.planned_records) == planned


def test_a_plan_names_records_that_are_corrupt(place):
    [job] = open_session(place).jobs
    path = Path("results", STUDY, "cells", job.path, "run.json")
    path.parent.mkdir(parents=True)
    path.write_text('{"cell"')
    session = open_session(place)
    assert [job.attempt for job in session.jobs] == [2] and str(path) in show.plan_table(session)


def test_planning_writes_and_deletes_nothing(place):
    """Data that are gone are made ready again, under another name."""
    ready = Path(open_session(place).datasets.ready_file("digits"))
    ready.parent.mkdir(parents=True)
    ready.write_text(json.dumps({"path": "gone"}))
    before = sorted(path for path in Path().rglob("*") if "state" not in path.parts)
    session = open_session(place)
    assert session.datasets.ready_files() != [str(ready)] and session.measured_records == []
    assert sorted(path for path in Path().rglob("*") if "state" not in path.parts) == before
    Path("gone").mkdir()
    assert open_session(place).datasets.ready_files() == [str(ready)]


def test_jobs_say_what_follows_them_and_ask_for_memory_and_time_by_their_cell(place):
    plan(ladders=[], mixes=[{"members": {"plain": 4}, "methods": ["naive"]}])
    session = open_session(place)
    first, second = session.jobs
    jobs.write_job_files(session, None)
    read = [Task.read(Path("results", STUDY, "jobs", f"{job.path}.json")) for job in session.jobs]
    assert [task.place for task in read] == ["1/2", "2/2"]
    assert [task.left_s for task in read] == [round(second.estimate_s), 0]
    assert session.seconds == first.estimate_s + second.estimate_s
    small, large = sorted(session.jobs, key=lambda job: job.cell.n)
    assert small.memory_mb < large.memory_mb
    for job in (small, large):
        assert session.runtime_min(job.path) > 10 + job.estimate_s / 60


@pytest.mark.parametrize(
    ("config", "cpu", "said"),
    [
        ({"gpu": "auto"}, False, ("auto", True)),
        ({"gpu": "auto"}, True, ("cpu", False)),
        ({"gpu": "cpu"}, False, ("cpu", False)),
        ({"gpu": 0}, False, "gpu: 0 is for this machine; elsewhere allowed: auto, cpu"),
        ({"study": "auto"}, False, "study: auto looks at this machine, and the jobs run elsewhere"),
    ],
)
def test_on_a_login_node_without_a_gpu_jobs_are_planned_for_one(
    place, monkeypatch, config, cpu, said
):
    """Nothing is asked of this machine's devices; a job's file is all that its process reads."""
    monkeypatch.setattr(session_module, "find_devices", None)
    plan(cpu=cpu)
    if isinstance(said, str):
        with pytest.raises(ConfigError, match=said):
            open_session(place | config, remote=True)
        return
    session = open_session(place | config, remote=True)
    assert session.forbidden is None
    jobs.write_job_files(session, None)
    [job] = session.jobs
    task = Task.read(Path("results", STUDY, "jobs", f"{job.path}.json"))
    assert (task.gpu, task.needs_gpu) == said
    posted = open_posted(place | config).jobs_by_path[job.path]
    assert (posted.cell.id, posted.attempt, posted.rank) == (job.cell.id, 1, 1)


def test_all_cells_of_a_replicate_have_the_gpu_that_a_cluster_gives_it(place):
    plan(ladders=[TURNS | {"counts": {2: ["alone", "naive"], 3: ["alone", "naive"]}}], replicates=2)
    session = open_session(place | {"gpu": "auto"}, max_gpus=4, remote=True)
    devices = [(job.cell.replicate, job.device) for job in session.jobs]
    assert len(devices) == 4 and len({*devices}) == len({device for _, device in devices}) == 2


# -- a login node ----------------------------------------------------------------------------------


def contents(*folders: Path) -> dict[Path, bytes]:
    """Every file but what Snakemake, a test, the alias and the made-up card note of themselves."""
    own = {".snakemake", "card", "secret"}
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file()]
    return {
        path: path.read_bytes()
        for path in files
        if not own & set(path.parts) and not path.name.startswith("output-")
    }


def test_reading_the_snakefile_deletes_nothing_and_binds_no_device(studio):
    """The device is found by each job, where it runs."""
    studio.with_card().write({"plain": workload()}, drill=study(ladders=alone("plain")))
    log = "cells/1x_plain/paper_step/naive/r1/a1/log/conductor.log"
    for name in ("jobs/of/yesterday.json", "mig_layouts.json", "complete", log):
        path = studio.results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    studio.locks.mkdir(exist_ok=True)
    before = contents(studio.folder, studio.locks)
    run = studio.snakemake("-n", config={"data": "data"})
    assert (run.code, run.planned) == (0, 1), run.output
    assert contents(studio.folder, studio.locks) == before

    assert studio.prepare().code == 0
    [path] = (studio.results / "jobs").rglob("a*.json")
    job = Task.read(path)
    assert (job.gpu, job.needs_gpu) == ("auto", True)
    assert "GPU-" not in path.read_text()
