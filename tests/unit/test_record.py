"""run.json: written whole or not at all, and found again only where it is sound."""

import json
import math
import os
from pathlib import Path

import pytest

from workflow.collocation.plan.attempts import scan_attempts
from workflow.collocation.record.run_json import NoRecord, Record, read_record, write_record

CELL = "2x_a/paper_step/naive/r1"


def make(cell: str = CELL, attempt: int = 1, **changes) -> Record:
    scenario, implementation, method, replicate = cell.split("/")
    name = {
        "id": cell,
        "scenario": scenario,
        "implementation": implementation,
        "method": method,
        "attempt": attempt,
    }
    fields = {"study": "a_test", "cell": name | {"replicate": int(replicate[1:])}}
    fields |= {"spec": {"members": []}, "status": "out_of_memory"}
    return Record(**{**fields, "method": {"name": method}, **changes})


@pytest.fixture
def put(tmp_path):
    """Puts a record below tmp_path."""

    def put(cell=CELL, attempt=1, **changes) -> Path:
        path = tmp_path / cell / f"a{attempt}" / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, make(cell, attempt, **changes))
        return path

    return put


# -- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["fsync", "replace"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_crash_while_writing_leaves_no_record_or_the_earlier_one(
    tmp_path, put, monkeypatch, fails, earlier
):
    path = put(status="postponed")
    before = path.read_text() if earlier else path.unlink()

    def crash(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(os if fails == "fsync" else Path, fails, crash)
    with pytest.raises(OSError, match="No space"):
        write_record(path, make())
    assert (path.read_text() if path.exists() else None) == before
    assert len([*path.parent.iterdir()]) == len(scan_attempts(tmp_path)) == earlier


def test_numbers_that_are_none_become_null(put):
    evidence = {"list": [1.5, math.inf], "pair": (-math.inf, {"deep": math.nan})}
    method = {"name": "naive", "evidence": evidence}
    path = put(timing={"total_s": math.nan, "build_s": 3.5}, method=method, reason="König")
    assert read_record(path).reason == "König"
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["timing"] == {"total_s": None, "build_s": 3.5} == read_record(path).timing
    assert content["method"]["evidence"] == {"list": [1.5, None], "pair": [None, {"deep": None}]}


# -- finding --------------------------------------------------------------------------------------


def test_scan_finds_attempts_oldest_first(tmp_path, put):
    gpu = {"uuid": "GPU-a", "name": "a card", "memory_bytes": 1, "driver": "1"}
    for number in (10, 2, 1):
        put(attempt=number, reason=str(number), gpu=gpu if number == 2 else None)
    other = put("1x_b--files/bf16/mig_7g/r12")
    other.rename(other.with_name("stored"))
    other.symlink_to("stored")  # as git-annex lays it
    found = scan_attempts(tmp_path)
    told = [(a.number, a.record.reason, a.status, a.device) for a in found[CELL]]
    devices = {1: "cpu:None", 2: "GPU-a", 10: "cpu:None"}
    assert told == [(n, str(n), "out_of_memory", device) for n, device in devices.items()]
    [attempt] = found.pop("1x_b--files/bf16/mig_7g/r12")
    assert (attempt.path, attempt.status) == (other, "out_of_memory") and found.keys() == {CELL}


def test_folders_without_a_record_are_nothing(tmp_path):
    for name in ("a1/.run.json.123", "notes/run.json", "afternoon/run.json", "a1.bak/run.json"):
        for cell in (CELL, f"{CELL}.bak"):
            (tmp_path / cell / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / cell / name).write_text("{}")
    assert scan_attempts(tmp_path) == {}


MEMBER = {"member": 0, "workload": "a", "status": "completed"}
RATE = {"steps": 1, "samples_per_s": 1}
UNSOUND = {  # what a record says instead, or what it becomes → what is said of it
    "cut short": (lambda text: text[:-40], "Invalid JSON"),
    "bytes": (lambda text: "\udcff\udcfe", "Invalid JSON"),
    "a list": (lambda text: "[]", "an object"),
    "nested": (lambda text: "[" * 100_000 + "]" * 100_000, None),
    "other cell": (lambda text: make("2x_a/paper_step/mps/r1").model_dump_json(), None),
    # Copied by hand: it would count as a second measurement.
    "other attempt": (lambda text: make(attempt=7).model_dump_json(), None),
    "another key": ({"surroundings": {}}, "surroundings: Extra inputs"),
    "gpu": ({"gpu": {"name": "some card"}}, "gpu.uuid: Field required"),
    "nothing measured": ({"status": "completed"}, "nothing was measured"),
    "nobody's job": ({"members": [MEMBER | {"member": 1}]}, "1 is none of spec"),
    "no window": ({"members": [MEMBER | {"windows": {"x": RATE}}]}, "x is none"),
    "rate": ({"members": [MEMBER | {"windows": {"x": RATE | {"samples_per_s": -1}}}]}, "greater"),
    "scenario": ({"cell": make().cell.model_dump() | {"scenario": "a"}}, "not <count>x_<workload>"),
    "spec": ({"spec": {}}, "spec.members is no list"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_records_are_corrupt(tmp_path, put, name):
    """One line says why, where it is not that it is of another cell."""
    (done, said), path = UNSOUND[name], put(spec={"members": [{}]})
    text = path.read_text()
    damaged = json.dumps(json.loads(text) | done) if isinstance(done, dict) else done(text)
    path.write_bytes(damaged.encode(errors="surrogateescape"))
    [attempt] = scan_attempts(tmp_path)[CELL]
    assert (attempt.record, attempt.status, attempt.number) == (None, "corrupt", 1)
    if said:
        with pytest.raises(NoRecord, match=f"^.*{said}.*$"):
            read_record(path)
