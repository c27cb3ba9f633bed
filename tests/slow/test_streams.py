"""Method `streams`: several jobs in one process, driven by one thread or by one each.

What only a GPU shows (streams that overlap, graphs that are replayed) is in test_gpu_models.py.
"""

import time
from pathlib import Path

import pytest

from tests.cell.test_faults import real_gpu
from tests.fakes.members import member_spec
from tests.studio import PATIENCE, study, workload
from workflow.collocation import sharing
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.sharing.evidence import NotInForce, Report
from workflow.collocation.sharing.streams import require_own_streams
from workflow.collocation.study.definition import Study
from workflow.collocation.study.grid import expand
from workflow.collocation.study.workloads import VisionWorkload

TURNS = {"kind": "interleaved", "slices": 4, "slice_s": 0.15, "drop_s": 0.05, "warmup_s": 0}
WINDOW = {"window_s": 0.5, "min_steps": 3, "warmup_s": 0, "settle_s": 0}
WORKLOADS = {"a": workload(), "errs": workload(error="window")}


# -- one thread for several jobs -------------------------------------------------------------------


class Job:
    """One that takes `steps` steps, each as soon as it may, and then fails or ends."""

    def __init__(self, name: str, steps: int, log: list[str], room=lambda: True, error=None):
        self.spec = member_spec("", cuda_graph=True)
        self.name, self.steps, self.log = name, steps, log
        self.room, self.error, self.stream, self.phase, self.told = room, error, None, "window", []
        self.channel = self

    def ready(self, seconds=0.0):
        return self.room()

    def run(self):
        for _ in range(self.steps):
            self.log.append(self.name)
            yield self
        if self.error:
            raise self.error

    def failed(self, error):
        self.told.append(str(error))
        return 1

    def emit(self, event, **how):
        self.told.append((event, how["code"]))


def driven(*jobs: Job) -> list:
    pytest.importorskip("torch")
    from models import streams

    streams.drive(jobs)
    return [job.told for job in jobs]


def test_jobs_take_turns_and_one_that_must_wait_holds_up_nobody():
    log = []
    quick = Job("quick", 6, log)
    slow = Job("slow", 2, log, room=lambda: log.count("quick") >= 5)
    assert driven(quick, slow) == [[("exited", 0)], [("exited", 0)]]
    assert log == ["quick", "slow", *["quick"] * 4, "slow", "quick"]


def test_one_that_fails_leaves_the_others():
    log = []
    told = driven(Job("bad", 1, log, error=RuntimeError("no")), Job("good", 3, log))
    assert told == [["no", ("exited", 1)], [("exited", 0)]] and log.count("good") == 3


def trained(folder: Path, digits: Path, *members: int, **more) -> list[dict]:
    """Events and losses of jobs of one server, told to stop one after the other."""
    import numpy as np

    from tests.fakes.data import TINY

    specs, data = [], {"dataset": "digits", "dataset_folder": str(digits)}
    for member in members:
        own = folder / f"{member}-{len(members)}"
        own.mkdir()
        specs.append(member_spec(own, index=member, warmup_steps=3, **data, **TINY, **more))
    answers = {"built": "autotune", "autotuned": "warm", "warm": "go"}
    events, left = {member: {} for member in members}, list(members)
    with ForkServerClient(folder / "server.log") as server:
        server.start(specs, folder / "members.log")
        deadline = time.monotonic() + PATIENCE
        while left:
            assert time.monotonic() < deadline, (folder / "members.log").read_text()
            for event in server.wait(1):
                member, name = event["member"], event["event"]
                assert name != "error", event
                events[member][name] = event
                if name in answers:
                    server.send(member, answers[name])
                elif name == "progress" and member == left[0] and event["steps"] >= 20:
                    server.send(member, "stop")
                elif name == "exited":
                    left.remove(member)
    losses = [np.load(Path(spec.folder, "steps.npz"))["loss"] for spec in specs]
    return [{**events[m], "loss": loss} for m, loss in zip(members, losses, strict=True)]


@pytest.mark.parametrize("how", ["cpu", "eager", "graph", "compile"])
def test_jobs_in_one_process_learn_what_each_learns_alone(tmp_path, data, how):
    """Of real training: a thread for all graphs, else one each. One that stops leaves the other."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    more = {"cpu": {}, "eager": {"backward": "caller"}}.get(how, {"cuda_graph": True})
    if how != "cpu":
        here = {"CUDA_VISIBLE_DEVICES": real_gpu().uuid}
        more |= {"device": "cuda", "sync": False, "environment": here}
        more |= {"compile": how == "compile", "launched_ahead_s": 0.0}
    [ready] = data.glob("prepared/digits-*/manifest.json")
    [alone] = trained(tmp_path, ready.parent, 0, **more)
    one, two = trained(tmp_path, ready.parent, 0, 1, on_stream=True, **more)
    if how != "cpu":
        assert one["built"]["stream"] and one["built"]["stream"] != two["built"]["stream"]
    assert one["forked"]["pid"] == two["forked"]["pid"] != alone["forked"]["pid"]
    assert one["exited"]["code"] == two["exited"]["code"] == 0
    assert two["stopped"]["t"] > one["exited"]["t"]
    for each in (one, two):
        same = min(len(each["loss"]), len(alone["loss"]))
        assert same > 3
        np.testing.assert_allclose(each["loss"][:same], alone["loss"][:same], rtol=1e-3)


# -- what a study may ask, and what proves it ------------------------------------------------------


def planned(*methods: str, count: int = 2, **extra):
    ladder = {"workloads": ["a"], "counts": {count: list(methods)}}
    checked = Study.model_validate(study(ladders=[ladder], **extra))
    known = {name: VisionWorkload(**entry) for name, entry in WORKLOADS.items()}
    return [cell for cell in expand(checked, known) if cell.n > 1]


def test_a_set_in_one_process_is_one_context():
    [graphs] = planned("streams", implementations=["graph"])
    assert graphs.spec.measure.second_context and graphs.spec.methods == ["streams"] * 2
    assert sharing.method_class("streams")(graphs.spec, None).process_count() == 1
    words = ["alone", "naive", "mps", "2xstreams", "streams"]
    [turns] = planned(*words, count=3, implementations=["graph"], measure=TURNS)
    assert turns.spec.measure.second_context is None
    assert turns.spec.methods == ["naive"] * 4 + ["mps"] * 3 + ["streams"] * 3
    assert sharing.method_class(turns.method)(turns.spec, None).process_count() == 4 + 1 + 1
    with pytest.raises(ValueError, match="1 to 32 members, not 33"):
        planned("streams", count=33)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({1: Report(7, "GPU-x", 132, 1, stream=11)}, None),
        ({1: Report(7, "GPU-x", 132, 1, stream=10)}, "no CUDA stream of its own"),
        ({1: Report(7, "GPU-x", 132, 1)}, "no CUDA stream of its own"),
        ({1: Report(8, "GPU-x", 132, 1, stream=11)}, "in 2 processes"),
    ],
    ids=["proven", "one_stream", "none", "two_processes"],
)
def test_each_job_has_a_stream_of_the_one_process(others, why):
    reports = {0: Report(7, "GPU-x", 132, 1, stream=10), **others}
    if why is None:
        assert require_own_streams(reports, object()) == {0: 10, 1: 11}
        return
    with pytest.raises(NotInForce, match=why):
        require_own_streams(reports, object())


# -- cells, by the command line, on a card that is not there ---------------------------------------
# Assumed of the real one: NVML lists a process once, however many streams it has.


def test_cells_of_one_process(studio):
    ladders = [
        {"workloads": ["a"], "counts": {2: ["streams"]}},
        {
            "workloads": ["a"],
            "counts": {3: ["alone", "naive", "mps", "2xstreams", "streams"]},
            "measure": TURNS,
        },
    ]
    studio.with_card().write(WORKLOADS, drill=study(ladders=ladders, measure=WINDOW))
    cells = [
        "2x_a/paper_step/streams/r1/a1",
        "3x_a--interleaved/paper_step/alone-naive-mps-2xstreams-streams/r1/a1",
    ]
    run = studio.measure(*cells)
    assert run.code == 0, run.output
    own, turns = map(studio.record, cells)
    assert own["status"] == "completed" and own["method"]["verified"] is True
    assert len({member["pid"] for member in own["members"]}) == 1
    proof = own["method"]["evidence"]["end"]
    assert len(proof["members"]) == 1 and len(set(proof["streams"].values())) == 2
    assert turns["status"] == "completed", turns["reason"]
    assert turns["method"]["verified"] is True
    assert len({member["pid"] for member in turns["members"][-3:]}) == 1
    assert len({member["pid"] for member in turns["members"]}) == 1 + 3 + 3 + 1
    sets = {window["name"]: window["members"] for window in turns["windows"]}
    assert sets["2xstreams"] == sets["streams"][:2] and len(sets["streams"]) == 3
