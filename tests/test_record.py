"""run.json: written whole or not at all, and found again only where it is sound."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workflow.collocation.plan.attempts import scan
from workflow.collocation.record.run_json import (
    CellName,
    Gpu,
    MethodEvidence,
    NoRecord,
    Record,
    read,
    write,
)
from workflow.collocation.spec.errors import ConfigError

CELL = "2x_a/paper_step/naive/r1"


def make(cell: str = CELL, attempt: int = 1, **changes) -> Record:
    scenario, arm, method, replicate = cell.split("/")
    name = {"id": cell, "scenario": scenario, "arm": arm, "method": method, "attempt": attempt}
    fields = {"study": "a_test", "cell": CellName(**name, replicate=int(replicate[1:]))}
    fields |= {"spec": {"members": []}, "status": "out_of_memory"}
    return Record(**{**fields, "method": MethodEvidence(name=method), **changes})


@pytest.fixture
def cells(tmp_path):
    """The cells folder, and a way to put a record into it."""

    class Cells:
        folder = tmp_path / "cells"

        def path(self, cell=CELL, attempt=1):
            path = self.folder / cell / f"a{attempt}" / "run.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            return path

        def put(self, cell=CELL, attempt=1, **changes):
            path = self.path(cell, attempt)
            write(path, make(cell, attempt, **changes))
            return path

        def edit(self, path, **changes):
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return Cells()


# -- writing --------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(cells):
    path = cells.put(reason="because", timing={"total_s": 3.5})
    assert Record.model_validate_json(path.read_text()) == make(
        reason="because", timing={"total_s": 3.5}
    )
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_crash_while_writing_leaves_no_record_or_the_earlier_one(
    cells, monkeypatch, fails, earlier
):
    path = cells.put(status="postponed") if earlier else cells.path()
    before = path.read_text() if earlier else None

    def crash(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(os if fails == "fsync" else Path, fails, crash)
    with pytest.raises(OSError, match="No space"):
        write(path, make())
    assert (path.read_text() if path.exists() else None) == before
    assert len(scan(cells.folder)) == earlier


def test_numbers_that_are_none_become_null(cells):
    evidence = {"list": [1.5, math.inf], "pair": (-math.inf, {"deep": math.nan})}
    method = MethodEvidence(name="naive", evidence=evidence)
    path = cells.put(timing={"total_s": math.nan}, method=method)
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["timing"] == {"total_s": None}
    assert content["method"]["evidence"] == {"list": [1.5, None], "pair": [None, {"deep": None}]}


# -- finding --------------------------------------------------------------------------------------


def test_scan_finds_attempts_oldest_first(cells):
    gpu = Gpu(uuid="GPU-a", name="a card", memory_bytes=1, driver="1")
    for number in (10, 2, 1):
        cells.put(attempt=number, reason=str(number), gpu=gpu if number == 2 else None)
    other = cells.put("1x_b--files/bf16/mig_7g/r12")
    found = scan(cells.folder)
    told = [(a.number, a.content["reason"], a.status, a.device) for a in found[CELL]]
    devices = {1: "cpu", 2: "GPU-a", 10: "cpu"}
    assert told == [(n, str(n), "out_of_memory", device) for n, device in devices.items()]
    [attempt] = found.pop("1x_b--files/bf16/mig_7g/r12")
    assert attempt.path == other and found.keys() == {CELL}


def test_folders_without_a_record_are_nothing(cells):
    path = cells.path()
    (path.parent / ".run.json.123").write_text("{}")
    (path.parent / "steps.parquet").write_text("")
    (cells.folder / CELL / "notes" / "run.json").mkdir(parents=True)
    (cells.folder / CELL / "afternoon").mkdir()
    (cells.folder / CELL / "afternoon" / "run.json").write_text("{}")
    for copied in (f"{CELL}/a1.bak", f"{CELL}.bak/a1"):
        (cells.folder / copied).mkdir(parents=True)
        (cells.folder / copied / "run.json").write_text("{}")
    assert scan(cells.folder) == {}


DAMAGES = {
    "cut short": lambda cells, path: path.write_text(path.read_text()[:-40]),
    "emptied": lambda cells, path: path.write_text(""),
    "bytes": lambda cells, path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda cells, path: path.write_text("[]"),
    "a word": lambda cells, path: path.write_text('"run"'),
    "other schema": lambda cells, path: cells.edit(path, schema_version=0),
    "status": lambda cells, path: cells.edit(path, status="fine"),
    "spec": lambda cells, path: cells.edit(path, spec="the usual"),
    "gpu": lambda cells, path: cells.edit(path, gpu={"name": "some card"}),
    "other cell": lambda cells, path: path.write_text(
        make("2x_a/paper_step/mps/r1").model_dump_json()
    ),
    # Copied by hand: it would count as a second measurement.
    "other attempt": lambda cells, path: path.write_text(make(attempt=7).model_dump_json()),
    "a folder": lambda cells, path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_unsound_records_are_corrupt(cells, damage):
    DAMAGES[damage](cells, cells.put())
    [attempt] = scan(cells.folder)[CELL]
    assert (attempt.content, attempt.status, attempt.number) == (None, "corrupt", 1)


def test_a_record_of_a_newer_version_is_said_to_be_one_and_is_not_measured_again(cells):
    path = cells.put()
    cells.edit(path, schema_version=2, surroundings={})
    with pytest.raises(ConfigError, match="schema_version is 2, .* knows 1: use a newer"):
        scan(cells.folder)


def test_a_record_is_utf8_whatever_the_locale(tmp_path):
    path = tmp_path / "run.json"
    code = "import sys; from pathlib import Path; from tests.test_record import make, write, read\n"
    code += f"path = Path({str(path)!r}); write(path, make(reason='K\\xf6nig'))\n"
    code += "assert read(path).reason == 'K\\xf6nig'"
    surroundings = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=surroundings)
    assert read(path) == make(reason="König")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "completed"}, "nothing was measured"),
        ({"members": [{"member": 1, "workload": "a", "status": "failed"}]}, "1 is none of spec"),
        ({"cell": {"scenario": "a"}}, "cell.scenario: .*'a' is not <count>x_<workload>"),
        ({"windows": [{"name": "naive"}]}, "windows.0.start_ns: Field required"),
        ({"spec": {}}, "spec.members is no list"),
    ],
)
def test_a_record_that_does_not_hold_together_says_why(cells, changes, said):
    path = cells.put()
    content = json.loads(path.read_text())
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) and value else value
    path.write_text(json.dumps(content))
    with pytest.raises(NoRecord, match=said):
        read(path)


def test_a_link_to_a_record_is_one(cells):
    """As git-annex lays it."""
    path = cells.put()
    path.rename(path.with_name("stored"))
    path.symlink_to("stored")
    assert scan(cells.folder)[CELL][0].status == "out_of_memory" and read(path) == make()
