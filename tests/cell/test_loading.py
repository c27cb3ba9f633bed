"""One loader for all jobs of a cell: what TensorSocket hands over, and cells of it on the CPU."""

import json
import os
import signal
import sys
import time
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml

from analysis.estimates.formulas import LOADER_QUANTITIES
from analysis.estimates.replicates import replicates_of_runs
from analysis.estimates.runs import prepare_runs
from tests.fakes.members import member_spec
from tests.records import merged, record, telemetry
from tests.studio import REPOSITORY, study, until
from workflow.collocation.member.spec import InputSpec, SharedLoaderSpec
from workflow.collocation.record import step_times
from workflow.collocation.record.values import Window
from workflow.collocation.run import waiting
from workflow.collocation.run.loader import SharedLoader
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.run.task import free_ports
from workflow.collocation.sharing.evidence import NotInForce
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.grid import expand
from workflow.collocation.study.load import load_study, load_workloads

NAME = "tiny_resnet_digits_b32"
CATALOGUE = load_workloads(REPOSITORY / "config" / "workloads.yaml")
TINY = {NAME: yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())[NAME]}
MEASURE = {"kind": "window", "window_s": 1, "min_steps": 5, "warmup_s": 0.2, "settle_s": 0.2}
PORTS = [1, 2, 3, 4]
SET = f"2x_{NAME}--shared/paper_step/naive"
needs_package = pytest.mark.skipif(not find_spec("tensorsocket"), reason="no tensorsocket")

# -- what a study may ask ------------------------------------------------------------------------


def ladder(name=NAME, counts=None, **more) -> dict:
    counts = counts or {2: ["naive", "mps"]}
    return {"ladders": [{"workloads": [name], "counts": counts, "input": "shared"} | more]}


@pytest.mark.parametrize(
    "content",
    [
        ladder(counts={2: ["naive", "streams"]}),
        ladder(counts={2: ["mig"]}),
        ladder(counts={2: ["alone", "naive"]}, measure={"kind": "interleaved"}),
        ladder(counts={2: ["naive"]}, measure={"kind": "departure"}),
        ladder(implementations=["graph"]),
        ladder("dlrm_criteo_b2048"),
        ladder("resnet18_digits_b64_triggered"),
        {
            "mixes": [
                {"members": {NAME: 1, "resnet26_cifar10_b128": 1}, "methods": ["naive"]}
                | {"input": "shared"}
            ]
        },
    ],
)
def test_one_loader_is_for_copies_of_one_classifier_that_run_as_processes(tmp_path, content):
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(study() | content))
    with pytest.raises(ConfigError) as error:
        load_study(tmp_path, "x", CATALOGUE)
    assert "\n" not in str(error.value)


def test_its_jobs_alone_have_it_too_and_without_the_package_nothing_runs(monkeypatch):
    asked = load_study(REPOSITORY / "config" / "studies", "loading", CATALOGUE)
    cells = {cell.id: cell for cell in expand(asked, CATALOGUE)}
    fed = [cell for cell in cells.values() if "--shared" in cell.scenario]
    assert {job.job.input.mode for cell in fed for job in cell.spec.members} == {"shared"}
    assert all("--shared" in cells[need].scenario for cell in fed for need in cell.needs)
    monkeypatch.setattr(waiting, "find_spec", lambda name: None)
    assert "tensorsocket" in waiting.refusal(fed[0].spec, None)


# -- what is counted, who is told ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([[0, 1], [2, 3], [4, 5], [6, 7]], 4), ([[0, 1], [2, 3], [3, 2], [6, 7]], 2), ([], None)],
)
def test_distinct_samples_are_those_of_the_steps_in_the_window(samples, expected):
    arrays = {"end_ns": np.array([5, 10, 19, 20]), "samples": np.array(samples)}
    window = Window(name="window", start_ns=10, end_ns=20, seconds=1e-8)
    assert step_times.distinct_samples(window, arrays) == expected


def test_a_loader_has_the_workers_and_cores_of_all_and_is_no_member():
    shared, ports = InputSpec(mode="shared", workers=3), SharedLoaderSpec(ports=PORTS, jobs=2)
    specs = [
        member_spec("", index=m, input=shared, shared_loader=ports, cores=[m, m + 1])
        for m in range(2)
    ]
    loader = SharedLoader(specs)
    assert loader.spec.job.input.workers == 6 and loader.spec.cores == [0, 1, 2]
    assert loader.spec.job.shared_loader == ports
    its = TrackedMember(loader.spec.index, "", 0)
    loader.start(SimpleNamespace(start=lambda specs, log: [its]), Path())
    loader.require()
    its.see({"event": "exited", "code": None, "signal": 9, "t": 1})
    with pytest.raises(NotInForce, match="the loader of the cell ended: ended by signal 9"):
        loader.require()


def test_what_the_loader_uses_counts_for_its_jobs_in_studies_that_share_one():
    """A job uses 1.5 cores, the loader too, and each job has seen 100 steps of 32 samples."""
    named = {
        "2x_a_b32--shared": 3,
        "1x_a_b32--shared": 2,
        "2x_a_b32--files": 2,
        "1x_a_b32--files": 1,
    }
    cells = [
        record(name, rates=[1000.0] * int(name[0]), telemetry=telemetry(members=seen))
        for name, seen in named.items()
    ]
    for member in [member for cell in cells for member in cell["members"]]:
        member["windows"]["window"]["distinct_samples"] = 3000
        member["data_wait_share"] = 0.2

    def found(of: list[dict]) -> dict:
        rows = replicates_of_runs(prepare_runs(merged(*of)).members)
        rows = rows[rows["quantity"].isin(("cpu_per_sample", *LOADER_QUANTITIES))]
        return {(r.at.partition("/")[0], r.quantity): r.value for r in rows.itertuples()}

    told = found(cells)
    assert told["2x_a_b32--files", "cpu_per_sample"] == pytest.approx(3 / 2000)
    assert told["2x_a_b32--shared", "cpu_per_sample"] == pytest.approx(4.5 / 2000)
    assert told["2x_a_b32--shared", "host_memory"] == pytest.approx(3 * 2**30 / 1e9)
    assert told["1x_a_b32--shared", "data_wait"] == pytest.approx(0.2)
    assert (
        told["2x_a_b32--shared", "samples"] == 3200 and told["1x_a_b32--files", "distinct"] == 3000
    )
    assert not found(cells[2:])  # of no other study is anything said that was not


# -- a job's end of it ---------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """The input of a job, and the queue of its batches, without the package."""
    torch = pytest.importorskip("torch")
    from models import shared

    class TensorConsumer:
        buffer = Queue()

        def __init__(self, *ports, **_):
            pass

        def __next__(self):
            return self.buffer.get()

    package = ModuleType("tensorsocket")
    package.TensorConsumer = TensorConsumer
    monkeypatch.setitem(sys.modules, "tensorsocket", package)
    monkeypatch.setattr(shared, "MAX_WAIT_S", 0.3)
    data = [(torch.zeros(3, 4, 4, dtype=torch.uint8), 0)] * 8
    ports = SharedLoaderSpec(ports=PORTS, jobs=1)
    spec = member_spec("", batch_size=2, seed=1, shared_loader=ports)
    return shared.SharedImages(data, spec, torch.device("cpu")), TensorConsumer.buffer


def of(*numbers: int) -> list:
    import torch

    return [
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(2).long(),
        torch.tensor(numbers),
    ]


def test_a_job_joins_after_its_first_step_and_knows_its_samples(served):
    source, queue = served
    source.batch(0)
    time.sleep(0.4)  # others choose their kernels
    for step in range(3):
        queue.put(of(step, 5))
    for step in range(1, 4):
        source.batch(step)
    assert [samples.tolist() for samples in source.samples[2:]] == [[0, 5], [1, 5]]


@pytest.mark.parametrize("rests", [False, True])
def test_a_job_that_rests_too_long_or_gets_nothing_says_so(served, rests):
    source, queue = served
    source.batch(0)
    for _ in range(3 * rests):
        queue.put(of(0, 1))
    with pytest.raises(RuntimeError, match="waits 10" if rests else "no batch of the cell's"):
        for step in range(1, 9):
            source.batch(step)
            time.sleep(0.4 * rests)


# -- the package ---------------------------------------------------------------------------------


class Numbers:
    """A loader whose samples are numbers in their order."""

    def __init__(self, batch: int):
        self.batch = batch

    def __iter__(self):
        import torch

        at = 0
        while True:
            yield [torch.arange(at, at + self.batch), torch.zeros(self.batch)]
            at += self.batch


def took(ports: list[int], batch: int, batches: int, answer) -> None:
    """The numbers that a job gets which is slower than the loader."""
    from tensorsocket import TensorConsumer

    from models.shared import MappedSlots

    ends = {"unpack_fn": MappedSlots(), "batch_size": batch}
    consumer, found = TensorConsumer(*ports[:2], tuple(ports[2:]), **ends), []
    for _ in range(batches):
        time.sleep(0.01)
        found += next(consumer)[0].tolist()
    answer.put(found)
    time.sleep(600)  # until it is killed


@needs_package
@pytest.mark.parametrize(("message", "whole"), [(1, False), (2, True)])
def test_slots_are_written_over_with_one_batch_in_a_message_and_not_with_two(message, whole):
    pytest.importorskip("torch")
    from models.shared import MIN_MESSAGE, hand_out

    fork, batch, batches = get_context("fork"), 8, 60
    answer, ports = fork.Queue(), free_ports(4)
    assert len({*ports}) == 4
    size = batch * message // MIN_MESSAGE  # of the loader's, of which a message has MIN_MESSAGE
    started = [
        fork.Process(target=hand_out, args=(Numbers(size), ports, 1), daemon=True),
        fork.Process(target=took, args=(ports, batch, batches, answer), daemon=True),
    ]
    try:
        for process in started:
            process.start()
        found = answer.get(timeout=300)
    finally:
        for process in started:
            process.kill()
    assert (found == [*range(batch * batches)]) == whole
    with pytest.raises(ValueError, match="over slots"):
        hand_out([], ports, 1, message_batches=MIN_MESSAGE - 1)


# -- cells on the CPU ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(module_studio):
    """Two jobs, and one, by each input."""
    pytest.importorskip("torch")
    studio = module_studio()
    studio.settings = {"trainer": "models.train"}
    ladders = [
        {"workloads": [NAME], "counts": {2: ["naive"]}, "input": mode}
        for mode in ("files", "shared", "resident")
    ]
    studio.write(TINY, drill=study(ladders=ladders, measure=MEASURE, cores_for=2))
    run = studio.snakemake()
    assert run.code == 0, run.output
    return studio


@needs_package
def test_jobs_train_on_as_many_distinct_samples_as_with_loaders_of_their_own(loaded):
    for path in loaded.results.glob("cells/2x_*--*/*/*/*/*/run.json"):
        told = json.loads(path.read_bytes())
        assert told["status"] == "completed", told["reason"]
        rates = [member["windows"]["window"] for member in told["members"]]
        for rate in rates:
            samples = rate["steps"] * TINY[NAME]["batch_size"]
            # A window may lie in two passes, each of which is shuffled.
            assert 0.6 * min(samples, 1437) <= rate["distinct_samples"] <= min(samples, 1437)
        seen = told["telemetry"]["windows"]["window"]["members"]
        assert len(seen) == len(rates) + ("--shared" in told["cell"]["scenario"])
        assert loaded.wrong(path.parent) == []


@needs_package
def test_all_inputs_stand_side_by_side(loaded):
    found = pd.read_csv(loaded.results / "estimates.csv").set_index("id")["value"]
    for mode in ("--files", "--shared"):
        place = f"2x_{NAME}{mode}/paper_step/naive"
        assert 0 < found[f"cpu_per_sample:{place}"] < 0.1
        assert 0 <= found[f"data_wait:{place}"] < 1
        assert 0 < found[f"distinct:{place}"] <= found[f"samples:{place}"]
        assert found[f"host_memory:{place}"] > 0 and found[f"stp:{place}"] > 0
    page = (loaded.results / "results.md").read_text()
    [section] = [part for part in page.split("\n## ") if part.startswith("One loader")]
    assert [section.count(f"| {mode} |") for mode in ("files", "shared", "resident")] == [2, 2, 2]


def forked(run) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The members of a cell that is running, and its loader, which has workers."""
    servers = run.descendants("models.fork_server")
    [server] = [each for each in servers if each.parent() not in servers]
    apart = {True: [], False: []}
    for child in server.children():
        apart[bool(child.children())].append(child)
    return apart[False], apart[True]


@needs_package
def test_a_job_or_a_loader_that_dies_and_a_job_that_hangs_end_the_cell_with_one_line(studio):
    pytest.importorskip("torch")
    studio.settings = {"trainer": "models.train"}
    content = ladder(counts={2: ["naive"]}, measure=MEASURE | {"window_s": 100})
    studio.write(TINY, drill=study(cores_for=2, **content))
    assert studio.prepare().code == 0
    faults = [("member 1", signal.SIGKILL), ("the loader of the cell ended", signal.SIGKILL)]
    faults += [("dropped a job", signal.SIGSTOP)]
    for attempt, (said, number) in enumerate(faults, start=1):
        cell = f"{SET}/r1/a{attempt}"
        run = studio.conduct(cell)
        log = (studio.folder / studio.path(cell)).with_name("log") / "conductor.log"
        until(lambda log=log: says(log, "started: 2 of 2"), lambda run=run: run.output)
        members, [reads] = forked(run)
        os.kill((reads if attempt == 2 else members[1]).pid, number)
        ended, told = run.end(), studio.record(cell)
        assert ended.code == 0 and told["status"] == "failed", ended.output
        assert said in told["reason"] and "\n" not in told["reason"]
        assert not reads.is_running()


def says(log: Path, words: str) -> bool:
    return log.exists() and words in log.read_text()
