"""What members do when asked: tune, each in its turn; and `trace`, some steps of one member under
torch.profiler, which can spoil nothing that is measured.

Real training on the CPU; and trainers without torch that know no trace, die or hang in it.
"""

import gzip
import hashlib
import json
from types import SimpleNamespace

import pytest

from tests.studio import PLAIN, REPOSITORY, study
from tests.test_run import run_of
from workflow.collocation.cell.progress import Display
from workflow.collocation.schema.load import load_workloads
from workflow.collocation.schema.study import Study
from workflow.collocation.schema.workloads import VisionWorkload
from workflow.collocation.study.grid import expand

STEPS, ENTRY = 3, VisionWorkload(**PLAIN)
CATALOGUE = REPOSITORY / "config" / "workloads.yaml"
CELL = "2x_it/paper_step/naive/r1"
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
        self.channel.emit(event, **fields | more)

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
# Members of torchfree that tune, and write down beside how many; the greedy one then fails.
TUNER = """
import time
from pathlib import Path
from types import SimpleNamespace
from tests import torchfree
from tests.torchfree import preload

FOLDER = Path(__file__).parent

def main(spec, channel):
    def emit(event, **fields):
        channel.emit(event, **fields | ({"commands": ["tune"]} if event == "built" else {}))
        if event == "built":
            tune()

    def tune():
        assert channel.wait() == "tune"
        mine, until, beside = FOLDER / f"{spec['member']}.tunes", time.monotonic() + WAIT_S, 0
        mine.touch()
        while beside < 2 and time.monotonic() < until:
            beside = max(beside, len(list(FOLDER.glob("*.tunes"))) - 1)
        with (FOLDER / "beside").open("a") as file:
            file.write(f"{beside}")
        if not beside:
            mine.unlink()
        if spec["workload"] == "greedy":
            raise torchfree.OutOfMemory("warm")
        channel.emit("tuned", seconds=0.25)
        assert channel.wait() == "warm" and len((FOLDER / "beside").read_text()) == 3

    kept = {name: getattr(channel, name) for name in ("error", "wait", "poll", "_events")}
    return torchfree.main(spec, SimpleNamespace(emit=emit, **kept))
"""
BEHAVIOURS = {
    "is not known": (None, "the trainer knows no such command"),
    "dies": ("os.kill(os.getpid(), signal.SIGSEGV)", "member 0 gave none"),
    "hangs": ("signal.pause()", "member 0 gave none"),
    "fails": ('channel.emit("traced", message="RuntimeError: no CUPTI")', "no CUPTI"),
    "loses": ('channel.emit("traced", file="trace.json.gz", seconds=1.0)', "No such file"),
}


def test_a_trace_of_real_training(tmp_path, monkeypatch, data):
    pytest.importorskip("torch")
    real = {"trainer": None, "entry": load_workloads(CATALOGUE)["tiny_resnet_digits_b32"]}
    real["digits"] = next(data.rglob("manifest.json")).parent
    record, _ = run_cell(tmp_path, monkeypatch, drill=DRILL, cell=CELL, trace=STEPS, **real)
    require_measured(record)
    content = (tmp_path / "a1" / "trace.json.gz").read_bytes()
    found = record["files"]["trace.json.gz"]
    assert found == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    names = [event["name"] for event in json.loads(gzip.decompress(content))["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == STEPS and "aten::conv2d" in names
    assert all(member["build_s"]["tune"] > 0 for member in record["members"])
    assert record["timing"]["trace_s"] > 0 and "trace" not in json.dumps(record["spec"])


def require_measured(record: dict) -> None:
    assert record["status"] == "completed", record["reason"]
    ended = [(m["status"], m["error"]) for m in record["members"]]
    assert ended == [("completed", None)] * 2
    assert all(m["windows"]["window"]["steps"] > 2 for m in record["members"])


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_what_comes_of_tracing_fails_no_cell(tmp_path, monkeypatch, behaviour):
    does, said = BEHAVIOURS[behaviour]
    trainer = TRACER.replace("BEHAVIOUR", does or "pass")
    trainer = trainer if does else "from tests.torchfree import *"
    told = {"timeout": {"stop": 2} if behaviour == "hangs" else {}, "trace": STEPS}
    record, log = run_cell(tmp_path, monkeypatch, trainer, DRILL, CELL, **told)
    require_measured(record)
    assert said in log.partition("no trace: ")[2]
    assert "trace.json.gz" not in record["files"]


@pytest.mark.parametrize(
    ("tune", "beside", "wait"), [("turn", "000", 0.2), ("together", "222", 60)]
)
def test_members_tune_in_turn_and_warm_up_together(tmp_path, monkeypatch, tune, beside, wait):
    mix = {"members": {"it": 2, "greedy": 1}, "methods": ["naive"], "measure": {"tune": tune}}
    cell = "2x_it+1x_greedy/paper_step/naive/r1"
    trainer, shown = TUNER.replace("WAIT_S", str(wait)), []
    monkeypatch.setattr(Display, "show", lambda _, what: shown.append(what()))
    record, _ = run_cell(tmp_path, monkeypatch, trainer, study(mixes=[mix]), cell)
    assert (tmp_path / "beside").read_text() == beside
    greedy, *others = sorted(record["members"], key=lambda member: member["workload"])
    assert (record["status"], greedy["phase"]) == ("out_of_memory", "warm")
    assert [(m["status"], m["build_s"]["tune"]) for m in others] == [("completed", 0.25)] * 2
    assert any(line.startswith("tuning ") for line in shown)
    assert record["spec"]["measure"]["tune"] == tune and record["timing"]["tune_s"] > 0


def run_cell(
    tmp_path, monkeypatch, trainer, drill: dict, cell: str, entry=ENTRY, digits=None, **task
):
    """One cell of a study with this trainer's text, or the real one: its record, and the log."""
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "the_trainer.py").write_text(trainer or "")
    workloads = dict.fromkeys(("it", "greedy"), entry)
    [planned] = [it for it in expand(Study.model_validate(drill), workloads) if it.id == cell]
    task["trainer"] = "the_trainer" if trainer else "models.train"
    record = run_of(tmp_path, planned, digits, **task).record()
    log = (tmp_path / "a1" / "log" / "conductor.log").read_text()
    return record.model_dump(mode="json"), log


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
