"""One cell's record where nothing was trained: budget, refusals, and errors that nobody foresaw."""

import json
import time
from contextlib import contextmanager

import pytest

from tests.test_plan import SMALL, WORKLOADS, small_study
from workflow.collocation import run
from workflow.collocation.plan import expand
from workflow.collocation.progress import Display
from workflow.collocation.record import Record

CELLS = {cell.method: cell for cell in expand(small_study(), WORKLOADS) if SMALL in cell.scenario}


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """A function that gives the Run of a cell, whose dataset is said to be ready."""
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    ready = []
    for dataset in ("cifar10", "imagenet"):
        ready.append(tmp_path / f"{dataset}.json")
        ready[-1].write_text(json.dumps({"dataset": dataset, "path": "nowhere"}))

    def prepared(method: str) -> run.Run:
        planned = CELLS[method]
        specs = tmp_path / "specs.json"
        specs.write_text(json.dumps({planned.id: planned.spec}))
        arguments = ["--study", "s", "--cell", planned.id, "--specs", str(specs), "--gpu", "cpu"]
        arguments += ["--data", *map(str, ready), "--", str(tmp_path / "a1" / "run.json")]
        folder = tmp_path / "a1"
        (folder / "log").mkdir(parents=True)
        display = Display(planned.id, folder / "log" / "conductor.log")
        return run.Run(run._parse(arguments), folder, display)

    return prepared


def test_an_error_that_nobody_foresaw_is_a_failed_cell_not_the_end_of_the_study(cell, monkeypatch):
    def lost(*_):
        raise RuntimeError("the GPU is lost")

    monkeypatch.setattr(run, "device_lock", lost)
    prepared = cell("naive")
    record = prepared.record()
    assert (record.status, record.reason) == ("failed", "RuntimeError: the GPU is lost")
    assert "Traceback" in (prepared.folder / "log" / "conductor.log").read_text()
    assert Record.model_validate(record.model_dump()) == record


def test_a_budget_that_ends_while_others_hold_the_device_starts_nothing(cell, monkeypatch):
    @contextmanager
    def held_for_long(*_):
        time.sleep(0.3)
        yield 0.3

    monkeypatch.setattr(run, "device_lock", held_for_long)
    prepared = cell("naive")
    prepared.args.deadline = time.time() + 0.2
    record = prepared.record()
    assert (record.status, record.members) == ("postponed", [])
    assert record.timing["lock_wait_s"] == 0.3


def test_a_refused_method_waits_for_nobody(cell, monkeypatch):
    monkeypatch.setattr(run, "device_lock", pytest.fail)
    record = cell("mps").record()
    assert record.status == "unsupported" and "MPS needs an NVIDIA GPU" in record.reason
    assert record.provenance["started_at"] and record.timing["total_s"] > 0
