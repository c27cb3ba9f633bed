"""`trace`: some steps of one member under torch.profiler, which can spoil nothing that is measured.

Real training on the CPU; and trainers without torch that know no trace, die or hang in it.
"""

import gzip
import hashlib
import json
from types import SimpleNamespace

import pytest
import yaml

from tests.studio import PLAIN, REPOSITORY, study
from workflow.collocation.cell import run
from workflow.collocation.cell.progress import Display
from workflow.collocation.cell.task import Task
from workflow.collocation.schema.study import Sampling, Study
from workflow.collocation.schema.workloads import VisionWorkload
from workflow.collocation.study.grid import expand

STEPS = 3
CATALOGUE = REPOSITORY / "config" / "workloads.yaml"
CELL = "2x_it/faithful/naive/r1"
DRILL = study(ladders=[{"workloads": ["it"], "counts": {2: ["naive"]}}])
# Members of torchfree that say they can trace.
TRACER = """
import os, signal
from tests import torchfree
from tests.torchfree import preload

class Channel:
    def __init__(self, channel):
        self.channel, self.asked = channel, False
        self.wait, self._events = channel.wait, channel._events

    def emit(self, event, **fields):
        more = {"commands": ["trace"]} if event == "built" else {}
        self.channel.emit(event, **fields, **more)

    def poll(self):
        command = self.channel.poll()
        self.asked = command == "trace 3"
        return "stop" if self.asked else command

def main(spec, channel):
    ours = Channel(channel)
    code = torchfree.main(spec, ours)
    if ours.asked:
        BEHAVIOUR
    return code
"""
BEHAVIOURS = {
    "is not known": (None, "the trainer knows no such command"),
    "dies": ("os.kill(os.getpid(), signal.SIGSEGV)", "member 0 gave none"),
    "hangs": ("signal.pause()", "member 0 gave none"),
    "fails": ('channel.emit("traced", message="RuntimeError: no CUPTI")', "no CUPTI"),
    "loses": ('channel.emit("traced", file="trace.json.gz", seconds=1.0)', "No such file"),
}


def test_a_trace_of_real_training(studio):
    pytest.importorskip("torch")
    entry = yaml.safe_load(CATALOGUE.read_text())["tiny_resnet_digits_b32"]
    studio.write({"it": entry}, drill=DRILL)
    done = studio.measure(f"{CELL}/a1", config={"trainer": "models.train", "trace": STEPS})
    assert done.code == 0, done.output
    record = studio.record(f"{CELL}/a1")
    require_measured(record)
    folder = (studio.folder / studio.path(f"{CELL}/a1")).parent
    content = (folder / "trace.json.gz").read_bytes()
    found = record["files"]["trace.json.gz"]
    assert found == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    names = [event["name"] for event in json.loads(gzip.decompress(content))["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == STEPS and "aten::conv2d" in names
    assert record["timing"]["trace_s"] > 0 and "trace" not in json.dumps(record["spec"])


def require_measured(record: dict) -> None:
    assert record["status"] == "completed", record["reason"]
    ended = [(m["status"], m["error"]) for m in record["members"]]
    assert ended == [("completed", None)] * 2
    assert all(m["windows"]["window"]["steps"] > 2 for m in record["members"])


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_what_comes_of_tracing_fails_no_cell(tmp_path, monkeypatch, behaviour):
    does, said = BEHAVIOURS[behaviour]
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tracer.py").write_text(TRACER.replace("BEHAVIOUR", does or "pass"))
    (tmp_path / "manifest.json").touch()
    (tmp_path / "ready.json").write_text(json.dumps({"dataset": "digits", "path": str(tmp_path)}))
    cells = expand(Study.model_validate(DRILL), {"it": VisionWorkload(**PLAIN)})
    [spec] = [cell.spec for cell in cells if cell.id == CELL]
    task = Task(
        study="s",
        cell=CELL,
        output=tmp_path / "a1" / "run.json",
        spec=spec,
        gpu="cpu",
        trainer="tracer" if does else "tests.torchfree",
        timeout={"stop": 2} if behaviour == "hangs" else {},
        telemetry=Sampling(source="off"),
        trace=STEPS,
        data=[tmp_path / "ready.json"],
    )
    (tmp_path / "a1" / "log").mkdir(parents=True)
    log = tmp_path / "a1" / "log" / "conductor.log"
    record = run.Run(task, Display(CELL, log)).record().model_dump()
    require_measured(record)
    assert said in log.read_text().partition("no trace: ")[2]
    assert "trace.json.gz" not in record["files"]


def test_a_profiler_that_fails_says_so_and_the_member_waits_for_its_end(monkeypatch):
    torch = pytest.importorskip("torch")
    from models import member

    def refuse(**_):
        raise RuntimeError("no room\nfor what it found")

    monkeypatch.setattr(member, "profile", refuse)
    told, commands = [], ["what?", "stop"]
    channel = SimpleNamespace(
        emit=lambda event, **fields: told.append((event, fields)), wait=lambda: commands.pop(0)
    )
    member = member.Member({"sync": True}, channel)
    member.device, member.trace_steps = torch.device("cpu"), STEPS
    member.trace()
    assert told == [("traced", {"message": "RuntimeError: no room"})] and not commands
