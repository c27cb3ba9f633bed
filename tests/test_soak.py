"""The soak itself: its seed decides what happens, its reader finds lies, and a round of it passes.

Two hours of it: `make soak SEED=7 MINUTES=120`.
"""

import json
import signal
import time

import pyarrow.parquet as pq
import pytest

from tests.soak import plan, reader
from tests.soak.__main__ import main
from tests.studio import SHORT, study, workload

CELL = "2x_plain/paper_step/naive/r1/a1"
# Of this seed: a member is stopped and goes on, a foreign MPS daemon comes and goes.
SEED = 90


def test_what_happens_follows_from_seed_and_number_alone():
    rounds = [plan.draw(7, number) for number in range(1, 60)]
    assert rounds == [plan.draw(7, number) for number in range(1, 60)]
    assert rounds != [plan.draw(8, number) for number in range(1, 60)]
    faults = {(f.kind, f.what) for each in rounds for act in each.acts for f in act.faults}
    kinds = {kind for kind, _ in faults}
    assert kinds == {*plan.SIGNALS, "disk", "company"}
    assert {what for kind, what in faults if kind == "company"} == set(plan.COMPANY)


@pytest.fixture
def handlers():
    """The soak gives its children Ctrl-C and hang-up back."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_round_with_faults_ends_complete_and_without_a_lie(tmp_path_factory, handlers):
    tmp_path = tmp_path_factory.mktemp("s")  # short, for the sockets of an MPS daemon
    code = main(["--seed", str(SEED), "--round", "1", "--folder", str(tmp_path)])
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (code, told["violations"]) == (0, [])
    assert told["faults in all"] >= 1 and told["records"]["completed"] >= 3
    assert told["rates computed once more"] >= 6


@pytest.fixture(scope="module")
def measured(module_studio):
    """A cell of two, its path and record."""
    ladder = {"workloads": ["plain"], "counts": {2: ["naive"]}}
    content = study(ladders=[ladder], measure=SHORT | {"window_s": 1.0})
    studio = module_studio().write({"plain": workload()}, drill=content)
    assert studio.measure().code == 0
    return studio.folder / studio.path(CELL), studio.record(CELL)


def test_an_honest_cell_is_none_to_the_reader(measured):
    path, record = measured
    assert reader.lies(path, record) == ([], 2)
    assert reader.denied(path, record, []) == []


def told(record: dict, **changes) -> dict:
    """The record with other values in what member 0 did in the window, or in itself."""
    record = json.loads(json.dumps(record))
    member = record["members"][0]
    for key, value in changes.items():
        (member if key in member else member["windows"]["window"])[key] = value
    return record


LIES = {
    "a rate": lambda r: told(r, samples_per_s=1.001 * rate(r)["samples_per_s"]),
    "a rate from more steps": lambda r: told(r, steps=rate(r)["steps"] + 1),
    "no rate": lambda r: told(r, samples_per_s=None),
    "a death": lambda r: told(r, exit_code=None, signal=9),
    "a failure": lambda r: told(r, status="failed"),
    "a window": lambda r: told(r, windows={}),
}


def rate(record: dict) -> dict:
    return record["members"][0]["windows"]["window"]


@pytest.mark.parametrize("name", LIES)
def test_the_reader_finds_a_lie(measured, name):
    path, record = measured
    wrong, _ = reader.lies(path, LIES[name](record))
    assert wrong


def test_the_reader_finds_other_steps(measured, tmp_path):
    path, record = measured
    table = pq.read_table(path.with_name("steps.parquet"))
    pq.write_table(table.take([*range(0, len(table), 2)]), tmp_path / "steps.parquet")
    wrong, _ = reader.lies(tmp_path / "run.json", record)
    assert any("not the file" in what for what in wrong)
    assert any("samples/s" in what for what in wrong)


@pytest.mark.parametrize("what", ["KILL", "STOP", "HANG"])
def test_the_reader_finds_what_a_record_denies(measured, what):
    path, record = measured
    [window] = record["windows"]
    at = (window["start_ns"] + window["end_ns"]) // 2
    deed = {"victim": "member", "what": what, "pid": record["members"][1]["pid"], "t_ns": at}
    assert reader.denied(path, record, [deed | {"until_ns": window["end_ns"]}])
    later = {"t_ns": time.monotonic_ns(), "until_ns": None}
    assert not reader.denied(path, record, [deed | later])
