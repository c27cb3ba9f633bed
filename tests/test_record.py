"""run.json: written whole or not at all, and found again only where it is sound."""

import json
import math
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from workflow.collocation.cell.record import CellName, Gpu, MethodEvidence, Record, write
from workflow.collocation.study.attempts import scan

CELL = "2x_a/paper_step/naive/r1"


def make(cell: str = CELL, attempt: int = 1, **changes) -> Record:
    scenario, arm, method, replicate = cell.split("/")
    fields = {
        "study": "a_test",
        "cell": CellName(
            id=cell,
            scenario=scenario,
            arm=arm,
            method=method,
            replicate=int(replicate[1:]),
            attempt=attempt,
        ),
        "spec": {"members": []},
        "status": "out_of_memory",
        "method": MethodEvidence(name=method),
    }
    return Record(**{**fields, **changes})


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
def test_a_crash_while_writing_leaves_no_record(cells, monkeypatch, fails):
    path = cells.path()

    def crash(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(os if fails == "fsync" else Path, fails, crash)
    with pytest.raises(OSError, match="No space"):
        write(path, make())
    assert not path.exists()
    assert scan(cells.folder) == {}


def test_a_crash_while_writing_leaves_the_earlier_record(cells, monkeypatch):
    path = cells.put(status="postponed")
    before = path.read_text()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write(path, make())
    assert path.read_text() == before


def test_numbers_that_are_none_become_null(cells):
    path = cells.put(
        timing={"total_s": math.nan},
        method=MethodEvidence(
            name="naive",
            evidence={"list": [1.5, math.inf], "pair": (-math.inf, {"deep": math.nan})},
        ),
    )
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["timing"] == {"total_s": None}
    assert content["method"]["evidence"] == {"list": [1.5, None], "pair": [None, {"deep": None}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "done"},
        {"phase": "lunch"},
        {"weather": "fine"},
        {"schema_version": 2},
        {"members": [{"member": 0, "workload": "a", "status": "happy"}]},
    ],
)
def test_the_schema_refuses_what_it_does_not_know(changes):
    with pytest.raises(ValidationError):
        make(**changes)


# -- finding --------------------------------------------------------------------------------------


def test_scan_finds_attempts_oldest_first(cells):
    for number in (10, 2, 1):
        cells.put(attempt=number, reason=str(number))
    other = cells.put("1x_b--files/bf16/mig_7g/r12")
    found = scan(cells.folder)
    assert {cell: [a.number for a in attempts] for cell, attempts in found.items()} == {
        CELL: [1, 2, 10],
        "1x_b--files/bf16/mig_7g/r12": [1],
    }
    assert [a.content["reason"] for a in found[CELL]] == ["1", "2", "10"]
    assert found["1x_b--files/bf16/mig_7g/r12"][0].path == other
    assert {a.status for a in found[CELL]} == {"out_of_memory"}


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


def damage_cut_short(cells, path):
    path.write_text(path.read_text()[:-40])


def damage_emptied(cells, path):
    path.write_text("")


def damage_bytes(cells, path):
    path.write_bytes(b"\xff\xfe\x00")


def damage_a_list(cells, path):
    path.write_text("[]")


def damage_a_word(cells, path):
    path.write_text('"run"')


def damage_other_schema(cells, path):
    cells.edit(path, schema_version=2)


def damage_status(cells, path):
    cells.edit(path, status="fine")


def damage_spec(cells, path):
    cells.edit(path, spec="the usual")


def damage_gpu(cells, path):
    cells.edit(path, gpu={"name": "some card"})


def damage_other_cell(cells, path):
    path.write_text(make("2x_a/paper_step/mps/r1").model_dump_json())


def damage_other_attempt(cells, path):
    """Copied by hand: it would count as a second measurement."""
    path.write_text(make(attempt=7).model_dump_json())


def damage_a_folder(cells, path):
    path.unlink()
    path.mkdir()


DAMAGES = {name[7:]: call for name, call in globals().items() if name.startswith("damage_")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_unsound_records_are_corrupt(cells, damage):
    DAMAGES[damage](cells, cells.put())
    [attempt] = scan(cells.folder)[CELL]
    assert (attempt.content, attempt.status, attempt.number) == (None, "corrupt", 1)


def test_the_device_of_an_attempt(cells):
    gpu = Gpu(uuid="GPU-a", name="a card", memory_bytes=1, driver="1")
    cells.put(attempt=1, gpu=gpu)
    cells.put(attempt=2)
    assert [a.device for a in scan(cells.folder)[CELL]] == ["GPU-a", "cpu"]
