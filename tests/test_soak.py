"""The soak itself: its seed decides what happens, its reader finds lies, and a round of it passes.

Two hours of it: `make soak SEED=7 MINUTES=120`.
"""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.soak import plan, reader
from tests.soak.__main__ import main
from tests.studio import REPOSITORY

PAUSE = plan.Fault(0.0, "member", "STOP", seconds=1.0)
ROUND = plan.Round(1, 1, ("turns",), None, ((PAUSE,),))


def test_what_happens_follows_from_seed_and_number_alone():
    rounds = [plan.draw(7, number) for number in range(1, 60)]
    assert rounds == [plan.draw(7, number) for number in range(1, 60)]
    assert rounds != [plan.draw(8, number) for number in range(1, 60)]
    found = {(f.victim, f.what) for each in rounds for faults in each.runs for f in faults}
    assert found == {(victim, what) for victim in plan.FAULTS for what in plan.FAULTS[victim]}


@pytest.fixture
def handlers():
    """The soak gives its children Ctrl-C and hang-up back."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_round_with_a_fault_ends_complete_and_without_a_lie(
    tmp_path_factory, data, handlers, monkeypatch
):
    """A member is stopped in a cell of turns, and goes on."""
    monkeypatch.setattr(plan, "draw", lambda *_: ROUND)
    tmp_path = tmp_path_factory.mktemp("s")  # short, for the sockets of an MPS daemon
    (tmp_path / "data").symlink_to(data)
    code = main(["--seed", "1", "--round", "1", "--folder", str(tmp_path)])
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (code, told["violations"]) == (0, [])
    assert told["faults"] == {"member STOP": 1} and told["records"]["completed"] == 1


SHIPPED = REPOSITORY / "results/h200/cells/2x_resnet152_imagenet_b32/paper_step/naive/r1/a1"


def test_the_reader_finds_a_lie_and_none_in_an_honest_cell(tmp_path):
    assert reader.lies(SHIPPED / "run.json") == []
    path = tmp_path / Path(*SHIPPED.parts[-6:]) / "run.json"
    shutil.copytree(SHIPPED, path.parent)
    record = json.loads(path.read_text())
    record["members"][0]["windows"]["window"]["samples_per_s"] *= 1.001
    path.write_text(json.dumps(record))
    assert any("samples_per_s" in what for what in reader.lies(path))


@pytest.mark.parametrize("what", ["KILL", "STOP", "HANG"])
def test_the_reader_finds_what_a_record_denies(what):
    path, record = SHIPPED / "run.json", json.loads((SHIPPED / "run.json").read_text())
    assert reader.denied(path, record, []) == []
    [window] = record["windows"]
    at = (window["start_ns"] + window["end_ns"]) // 2
    deed = {"victim": "member", "what": what, "pid": record["members"][1]["pid"], "t_ns": at}
    assert reader.denied(path, record, [deed | {"until_ns": window["end_ns"]}])
    later = {"t_ns": 10**19, "until_ns": None}
    assert not reader.denied(path, record, [deed | later])
