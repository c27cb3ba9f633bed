"""One cell's record: budget, refusals, methods that do not end well, errors that nobody foresaw.

Where members run they are torch-free, on the CPU, under a method that is made up.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from tests.studio import SHORT, study, workload
from workflow.collocation import ROOT
from workflow.collocation.gpu.nvml_subprocess import DriverSilent
from workflow.collocation.record.run_json import Record
from workflow.collocation.run import cell as run
from workflow.collocation.run import conductor, waiting
from workflow.collocation.run.progress import Display
from workflow.collocation.run.task import Task
from workflow.collocation.sharing.evidence import (
    GpuBusy,
    NotInForce,
    Unsupported,
    WrongProducts,
)
from workflow.collocation.study.definition import Sampling, Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.workloads import VisionWorkload

DIES = {"die": {"phase": "window", "signal": int(signal.SIGKILL)}}
WORKLOADS = {
    "plain": workload(),
    "dies": workload(**DIES),
    "hangs": workload(hang="window"),
    "hangs_late": workload(hang="stop"),
    "raises": workload(error="warm"),
}
MIXES = [["plain", other] for other in WORKLOADS if other != "plain"]
MIXES += [["dies", "hangs_late"]]
STUDY = Study.model_validate(
    study(
        measure=SHORT,
        ladders=[{"workloads": ["plain"], "counts": {2: ["naive", "mps"]}}],
        mixes=[{"members": dict.fromkeys(mix, 1), "methods": ["naive"]} for mix in MIXES],
    )
)
CELLS = {
    (cell.scenario, cell.method): cell
    for cell in expand(STUDY, {name: VisionWorkload(**entry) for name, entry in WORKLOADS.items()})
}


class Method:
    """Takes the place of all methods: what it is to do, and what was asked of it."""

    def __init__(self):
        self.refuses = self.on_enter = self.on_leave = None
        self.witness = lambda reports: {"verified": True, "pids": [r.pid for r in reports.values()]}
        self.released: list[tuple[int, str]] = []  # PID and its state at that time
        self.place = lambda member: ""

    def refusal(self, spec, device):
        return self.refuses

    def release(self, pid):
        self.released.append((pid, psutil.Process(pid).status()))

    @contextmanager
    def enter(self, spec, device, log):
        if self.on_enter:
            raise self.on_enter
        try:
            yield SimpleNamespace(
                environment=lambda member: {"CUDA_VISIBLE_DEVICES": self.place(member)},
                instances=dict,
                nvml_pids=set,
                entity_of=lambda member: "gpu",
                evidence=lambda reports: self.witness(reports),
                release=self.release,
            )
        finally:
            if self.on_leave:
                raise self.on_leave


def run_of(folder: Path, planned: Cell, **told) -> run.CellRun:
    """Of a cell whose dataset is said to be ready, in a folder of its own; told: of its task."""
    (folder / "manifest.json").touch()
    ready = folder / "ready.json"
    ready.write_text(json.dumps({"dataset": "digits", "path": str(folder)}))
    which = {"study": "s", "cell": planned.id, "spec": planned.spec, "data": [ready]}
    how = {"gpu": "cpu", "trainer": "tests.torchfree", "telemetry": Sampling(source="off")}
    task = Task(**which, **how, output=folder / "a1" / "run.json").model_copy(update=told)
    (folder / "a1" / "log").mkdir(parents=True)
    display = Display(planned.id, folder / "a1" / "log" / "conductor.log")
    return run.CellRun(task, display, time.monotonic())


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """A function that gives the CellRun of a cell."""
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))

    def prepared(method: str = "naive", scenario: str = "2x_plain", **told) -> run.CellRun:
        return run_of(tmp_path, CELLS[scenario, method], **told)

    return prepared


@pytest.fixture
def method(monkeypatch) -> Method:
    made = Method()
    for asking in (run, waiting):
        monkeypatch.setattr(asking, "methods", made)
    return made


def ending(record: Record) -> tuple:
    return record.status, record.phase, record.reason


@pytest.mark.parametrize(
    ("places", "visited"),
    [
        (("MIG-0", "MIG-1"), ["MIG-0", "MIG-1"]),
        (("1", "GPU-1"), ["GPU-1"]),  # one card: a member by itself, and a client of MPS
    ],
)
def test_a_visit_goes_to_each_place_once_between_warm_up_and_barrier(
    cell, method, monkeypatch, places, visited
):
    """The last place cannot be visited."""
    asked = []

    def visit(environment: dict) -> str | None:
        asked.append((environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_MPS_PIPE_DIRECTORY"]))
        is_last = environment["CUDA_VISIBLE_DEVICES"] == places[-1]
        return "cuInit: CUDA_ERROR_X" if is_last else None

    def witness(reports: dict) -> dict:
        asked.append("witness")
        return {"verified": True}

    monkeypatch.setattr(conductor, "second_context", visit)
    method.witness, method.place = witness, places.__getitem__
    task = cell()
    measure = task.spec.measure.model_copy(update={"second_context": True})
    task.spec = task.spec.model_copy(update={"measure": measure})
    record = task.record()
    assert record.status == "completed" and record.flags == ["no_second_context"]
    assert record.host["no_second_context"] == "cuInit: CUDA_ERROR_X"
    visits = [(place, "/proc/no-mps") for place in visited]
    assert asked == [*visits, "witness", "witness"]
    assert "cuInit: CUDA_ERROR_X" in (task.folder / "log" / "conductor.log").read_text()


# -- the file of a job -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no file of a job"),
        ({"specs": 1}, "specs: "),
        ({"spec": {"members": []}}, "spec.implementation: Field required"),
        ({}, "remove it to have it measured again"),  # it is measured: nothing is deleted
    ],
)
def test_a_mistake_in_the_file_of_a_job_is_one_line(cell, tmp_path, capsys, content, said):
    path, output = tmp_path / "job.json", tmp_path / "a1" / "run.json"
    told = json.loads(cell().task.model_dump_json())
    path.write_text(content if isinstance(content, str) else json.dumps(told | content))
    output.write_text('{"status": "failed"}')
    assert run.main([str(path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert said in line and output.read_text() == '{"status": "failed"}'


@pytest.mark.parametrize(("name", "status"), [("plain", "completed"), ("raises", "failed")])
def test_neither_the_locale_nor_a_closed_stdout_costs_a_record(cell, tmp_path, name, status):
    """ASCII only, as under LC_ALL=C, and started with `>&-`; the member's error has an umlaut."""
    job = tmp_path / "job.json"
    cell("naive", f"1x_plain+1x_{name}" if name == "raises" else "2x_plain").task.write(job)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "workflow.collocation.run.cell", str(job)]
    quiet = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    ended = subprocess.run(quiet, cwd=ROOT, env=os.environ | ascii_only, stderr=subprocess.PIPE)
    record = json.loads((tmp_path / "a1" / "run.json").read_text(encoding="utf-8"))
    assert (ended.returncode, record["status"]) == (0, status), ended.stderr
    assert status == "completed" or "größer" in record["reason"]


@pytest.mark.parametrize("needs_gpu", [False, True])
@pytest.mark.parametrize("in_set_up", [False, True])
def test_a_driver_that_falls_silent_spends_no_attempt_of_a_gpus_cell(
    cell, method, tmp_path, in_set_up, needs_gpu
):
    silent = DriverSilent("the NVIDIA driver does not answer")
    if in_set_up:
        method.on_enter = silent
    else:
        method.refusal = Mock(side_effect=silent)
    prepared = cell(given_up=tmp_path / "given_up")
    prepared.task = prepared.task.model_copy(update={"needs_gpu": needs_gpu})
    prepared.device = SimpleNamespace(uuid="GPU-1", numa_node=None)
    record = prepared.record()
    how = ("postponed", None) if needs_gpu else ("failed", "setup")
    assert ending(record) == (*how, "the NVIDIA driver does not answer")
    assert prepared.task.ended == (record.reason if needs_gpu else None)


# -- where nothing is measured ---------------------------------------------------------------------


def test_an_error_that_nobody_foresaw_is_a_failed_cell_not_the_end_of_the_study(
    cell, method, monkeypatch
):
    method.refusal = Mock(side_effect=RuntimeError("the GPU\nis lost"))  # as it was asked
    prepared = cell()
    record = prepared.record()
    assert ending(record) == ("failed", "setup", "RuntimeError: the GPU is lost")
    assert "Traceback" in (prepared.folder / "log" / "conductor.log").read_text()
    assert Record.model_validate(record.model_dump()) == record


def test_a_refused_method_waits_for_nobody(cell, monkeypatch):
    monkeypatch.setattr(run, "device_lock", pytest.fail)
    record = cell("mps").record()
    assert record.status == "unsupported" and "MPS needs an NVIDIA GPU" in record.reason
    assert record.provenance["started_at"] and record.timing["total_s"] > 0


@pytest.mark.parametrize(
    ("error", "status"), [(NotInForce, "failed"), (Unsupported, "unsupported")]
)
def test_a_method_that_cannot_be_set_up_after_all_says_why(cell, method, error, status):
    method.on_enter = error("no rights to partition the card")
    record = cell().record()
    assert ending(record) == (status, "setup", "no rights to partition the card")
    assert record.members == []


def test_a_fault_beside_others_is_no_fault_of_the_cell(cell, method, monkeypatch):
    """Nothing of it is kept; it is tried again, and left for later if they come each time."""

    def others(device):
        seen.append(device)
        raise GpuBusy("others compute on it")

    seen = []
    monkeypatch.setattr(run, "require_free", others)
    monkeypatch.setattr(waiting, "require_free", lambda device: None)  # gone again
    prepared = cell("naive", "1x_plain+1x_dies")
    prepared.device = SimpleNamespace(uuid="GPU-1", numa_node=None, sm_count=None)
    record = prepared.record()
    assert ending(record) == ("postponed", None, "others compute on it")
    assert len(seen) == run.MAX_ATTEMPTS > 1
    assert not record.members and not record.files
    assert not list(prepared.folder.glob("*.parquet"))


# -- the way out -----------------------------------------------------------------------------------


def test_a_method_that_does_not_end_well_fails_the_cell_and_keeps_what_was_measured(cell, method):
    method.on_leave = NotInForce("MPS: PIDs [7] outlived SIGKILL")
    record = cell().record()
    assert ending(record) == ("failed", "stop", "MPS: PIDs [7] outlived SIGKILL")
    assert record.method.verified is True
    assert list(record.method.evidence) == ["barrier", "end"]
    assert all(member.windows["window"].samples_per_s > 0 for member in record.members)
    assert list(record.files) == ["steps.parquet"]
    assert (record.telemetry.status, record.flags) == ("off", [])


def test_an_interrupted_cell_leaves_no_record_even_if_it_does_not_end_well(cell, method):
    method.on_leave = NotInForce("MPS: PIDs [7] outlived SIGKILL")

    def interrupted(reports):
        raise run.Interrupted(signal.SIGINT)

    method.witness = interrupted
    prepared = cell()
    with pytest.raises(run.Interrupted) as caught:
        prepared.record()
    assert caught.value.args == (signal.SIGINT,)
    assert "outlived SIGKILL" in (prepared.folder / "log" / "conductor.log").read_text()


def test_a_window_lasts_until_the_slowest_has_its_least_number_of_steps(cell, method):
    spec = CELLS["2x_plain", "naive"].spec
    more = spec.measure.model_copy(update={"window_s": 0.1, "min_steps": 100})
    record = cell(spec=spec.model_copy(update={"measure": more})).record()
    [window] = record.windows
    rates = [member.windows["window"] for member in record.members]
    assert window.seconds > 100 * 0.003 and min(rate.steps for rate in rates) >= 100
    for rate in rates:  # of batches of 32
        assert rate.samples_per_s >= 0.99 * 32 * (rate.steps - 1) / window.seconds


def stopped_for(method, began_s: float, ended_s: float) -> None:
    """Has the second member stand still for a while after the barrier."""

    def stopped_soon(reports):
        method.witness = lambda reports: {"verified": True}
        for after, number in ((began_s, signal.SIGSTOP), (ended_s, signal.SIGCONT)):
            threading.Timer(after, os.kill, (reports[1].pid, number)).start()
        return {"verified": True}

    method.witness = stopped_soon


def lasting(seconds: float):
    spec = CELLS["2x_plain", "naive"].spec
    longer = spec.measure.model_copy(update={"window_s": seconds})
    return spec.model_copy(update={"measure": longer})


def test_a_member_that_stands_still_at_the_end_of_the_window_is_waited_for_and_flagged(
    cell, method
):
    stopped_for(method, 1.0, 4.0)
    record = cell(spec=lasting(3.0)).record()
    assert (record.status, record.flags) == ("completed", ["stalled"])
    assert record.windows[0].seconds > 3.5
    well, still = (member.windows["window"] for member in record.members)
    assert still.steps < well.steps * 2 / 3


def test_a_member_that_stops_for_good_in_the_midst_of_its_window_fails_the_cell(cell, method):
    stopped_for(method, 1.0, 7.0)
    record = cell(spec=lasting(2.0)).record()
    why = "member 1 (plain), window: no step in the last half of 'window'"
    assert ending(record) == ("failed", "window", why)
    assert record.flags == ["stalled"] and 4 < record.windows[0].seconds < 6


# -- evidence, and the neighbours of a fault -------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotInForce, "failed"), (Unsupported, "failed"), (WrongProducts, "unsupported")],
)
@pytest.mark.parametrize("when", ["barrier", "end"])
def test_a_method_that_is_not_in_force_fails_the_cell(cell, method, error, status, when):
    """At once, or at the end if it is no longer; one that computes wrongly would fail again."""
    answers = iter([{"verified": True}] if when == "end" else [])

    def once(reports):
        for answer in answers:
            return answer
        raise error("MPS: nobody is a client")

    method.witness = once
    record = cell().record()
    phase = {"barrier": "warm", "end": "window"}[when]
    assert ending(record) == (status, phase, "MPS: nobody is a client")
    evidence = {} if when == "barrier" else {"barrier": {"verified": True}}
    evidence[when] = {"verified": False, "reason": "MPS: nobody is a client"}
    assert (record.method.verified, record.method.evidence) == (False, evidence)
    assert bool(record.windows) == (when == "end")


@pytest.mark.parametrize(
    ("scenario", "status", "other"),
    [
        ("1x_plain+1x_hangs", "timed_out", "completed"),
        ("1x_dies+1x_hangs_late", "failed", "killed"),
    ],
)
def test_a_member_that_hangs_is_dropped_by_the_method_before_it_is_ended(
    cell, method, monkeypatch, scenario, status, other
):
    """In its window, or when it is to stop because of another."""
    monkeypatch.setattr(conductor, "CUT_SHORT_S", 0.5)
    record = cell("naive", scenario, timeout={"window": 0.5}).record()
    first, late = record.members
    assert (record.status, first.status) == (status, other)
    # Its stacks are written while its threads run: once in hundreds this ends it by itself.
    assert late.status == "timed_out" and late.signal in (signal.SIGABRT, signal.SIGSEGV)
    assert method.released == [(late.pid, psutil.STATUS_SLEEPING)]
