"""run.json: written whole or not at all, and found again only where it is sound."""

import json
import math
import os
from pathlib import Path

import pytest

from workflow.collocation.plan.attempts import scan
from workflow.collocation.record.run_json import NoRecord, Record, read, write

CELL = "2x_a/paper_step/naive/r1"


def make(cell: str = CELL, attempt: int = 1, **changes) -> Record:
    scenario, arm, method, replicate = cell.split("/")
    name = {"id": cell, "scenario": scenario, "arm": arm, "method": method, "attempt": attempt}
    fields = {"study": "a_test", "cell": name | {"replicate": int(replicate[1:])}}
    fields |= {"spec": {"members": []}, "status": "out_of_memory"}
    return Record(**{**fields, "method": {"name": method}, **changes})


@pytest.fixture
def put(tmp_path):
    """Puts a record below tmp_path."""

    def put(cell=CELL, attempt=1, **changes) -> Path:
        path = tmp_path / cell / f"a{attempt}" / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, make(cell, attempt, **changes))
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
        write(path, make())
    assert (path.read_text() if path.exists() else None) == before
    assert len([*path.parent.iterdir()]) == len(scan(tmp_path)) == earlier


def test_numbers_that_are_none_become_null(put):
    evidence = {"list": [1.5, math.inf], "pair": (-math.inf, {"deep": math.nan})}
    method = {"name": "naive", "evidence": evidence}
    path = put(timing={"total_s": math.nan, "build_s": 3.5}, method=method, reason="König")
    assert read(path).reason == "König"
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["timing"] == {"total_s": None, "build_s": 3.5} == read(path).timing
    assert content["method"]["evidence"] == {"list": [1.5, None], "pair": [None, {"deep": None}]}


# -- finding --------------------------------------------------------------------------------------


def test_scan_finds_attempts_oldest_first(tmp_path, put):
    gpu = {"uuid": "GPU-a", "name": "a card", "memory_bytes": 1, "driver": "1"}
    for number in (10, 2, 1):
        put(attempt=number, reason=str(number), gpu=gpu if number == 2 else None)
    other = put("1x_b--files/bf16/mig_7g/r12")
    other.rename(other.with_name("stored"))
    other.symlink_to("stored")  # as git-annex lays it
    found = scan(tmp_path)
    told = [(a.number, a.content["reason"], a.status, a.device) for a in found[CELL]]
    devices = {1: "cpu", 2: "GPU-a", 10: "cpu"}
    assert told == [(n, str(n), "out_of_memory", device) for n, device in devices.items()]
    [attempt] = found.pop("1x_b--files/bf16/mig_7g/r12")
    assert (attempt.path, attempt.status) == (other, "out_of_memory") and found.keys() == {CELL}


def test_folders_without_a_record_are_nothing(tmp_path):
    for name in ("a1/.run.json.123", "notes/run.json", "afternoon/run.json", "a1.bak/run.json"):
        for cell in (CELL, f"{CELL}.bak"):
            (tmp_path / cell / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / cell / name).write_text("{}")
    assert scan(tmp_path) == {}


DAMAGES = {
    "cut short": lambda text: text[:-40],
    "emptied": lambda text: "",
    "bytes": lambda text: "\udcff\udcfe",
    "a list": lambda text: "[]",
    "other schema": {"schema_version": 2},
    "another key": {"surroundings": {}},
    "status": {"status": "fine"},
    "gpu": {"gpu": {"name": "some card"}},
    "other cell": lambda text: make("2x_a/paper_step/mps/r1").model_dump_json(),
    # Copied by hand: it would count as a second measurement.
    "other attempt": lambda text: make(attempt=7).model_dump_json(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_unsound_records_are_corrupt(tmp_path, put, damage):
    path, done = put(), DAMAGES[damage]
    text = path.read_text()
    damaged = json.dumps(json.loads(text) | done) if isinstance(done, dict) else done(text)
    path.write_bytes(damaged.encode(errors="surrogateescape"))
    [attempt] = scan(tmp_path)[CELL]
    assert (attempt.content, attempt.status, attempt.number) == (None, "corrupt", 1)


MEMBER = {"member": 0, "workload": "a", "status": "completed"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "completed"}, "nothing was measured"),
        ({"members": [MEMBER | {"member": 1}]}, "1 is none of spec"),
        ({"members": [MEMBER | {"windows": {"x": {"steps": 1, "samples_per_s": 1}}}]}, "x is none"),
        ({"members": [MEMBER | {"windows": {"x": {"steps": 1, "samples_per_s": -1}}}]}, "greater"),
        ({"cell": {"scenario": "a"}}, "cell.scenario: .* is not <count>x_<workload>"),
        ({"windows": [{"name": "naive"}]}, "windows.0.start_ns: Field required"),
        ({"spec": {}}, "spec.members is no list"),
    ],
)
def test_a_record_that_does_not_hold_together_says_why(put, changes, said):
    path = put(spec={"members": [{}]})
    content = json.loads(path.read_text())
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) and value else value
    path.write_text(json.dumps(content))
    with pytest.raises(NoRecord, match=said):
        read(path)
