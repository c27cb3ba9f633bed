"""Cells whose conditions take turns: what studies may say of them, how they run, what they prove.

The rates of slices are tested in test_steps.py, what of the telemetry is a condition's in
test_telemetry.py, and what MPS and plain members prove beside each other in test_mps.py.
"""

import json
import os
import random
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from tests.cell.test_faults import Batch, Machine, RealMachine, real_gpu
from tests.lies import lies
from tests.studio import Running, Studio, study, until, workload
from workflow.collocation.plan.duration import DurationEstimates
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.sharing.interleaved import Interleaved
from workflow.collocation.study.definition import Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.names import conditions_of
from workflow.collocation.study.workloads import VisionWorkload

TURNS = {"kind": "interleaved", "slices": 4, "slice_s": 0.15, "drop_s": 0.05, "warmup_s": 0}
WORKLOADS = {
    "a": workload(),
    "b": workload(step_s=0.02),
    "dies": workload(die={"phase": "window", "signal": int(signal.SIGKILL)}),
    "starves": workload(oom="window"),
    "unheld": workload(holds=0),
}


def planned(
    count: int = 2, conditions=("alone", "naive"), of: str | dict = "a", **extra
) -> list[Cell]:
    """The cells of a study with one such ladder or mix."""
    content, full = {"measure": TURNS | extra.pop("measure", {})}, extra.pop("full", ())
    if isinstance(of, dict):
        content["mixes"] = [{"members": of, "methods": list(conditions)}]
    else:
        content["ladders"] = [{"workloads": [of], "counts": {count: list(conditions)}}]
    checked = Study.model_validate(study(**content | extra))
    known = {name: VisionWorkload(**entry) for name, entry in WORKLOADS.items()}
    return expand(checked, known, out_of_memory=full)


def members(cell: Cell) -> list[tuple[int, str]]:
    return [(member.condition, member.workload) for member in cell.spec.members]


# -- the study -------------------------------------------------------------------------------------


def test_all_conditions_are_one_cell_that_needs_no_other():
    [cell] = planned(3, ["alone", "naive", "mps"])
    assert cell.id == "3x_a--interleaved/paper_step/alone-naive-mps/r1"
    assert members(cell) == [(condition, "a") for condition in (0, 1, 1, 1, 2, 2, 2)]
    assert cell.needs == set()
    told = cell.spec.to_json()["measure"]
    assert told.items() >= TURNS.items()
    assert not {"window_s", "min_steps", "settle_s", "epochs"} & told.keys()
    seconds = DurationEstimates({}).cell_seconds(cell)
    assert seconds == pytest.approx(9 + 7 * (3.5 + 4) + 3 * 4 * 0.15)
    [mix] = planned(conditions=["alone", "naive"], of={"a": 2, "b": 1})  # alone: each workload
    assert mix.scenario == "2x_a+1x_b--interleaved"
    assert members(mix) == [(0, "a"), (1, "b"), (2, "a"), (2, "a"), (2, "b")]
    own = {"mps_own": {"sm_percent": "equal"}}
    [cell] = planned(2, ["alone", "mps_own", "mps", "mps_overlap"], variants=own)
    assert [m.sm_percent for m in cell.spec.members] == [None, 50, 50, None, None, 100, 100]


def test_smaller_sets_are_the_first_members_of_the_largest():
    [cell] = planned(4, ["alone", "2xnaive", "4xnaive", "4xmps", "2xmps"])
    assert cell.id == "4x_a--interleaved/paper_step/alone-2xnaive-4xnaive-4xmps-2xmps/r1"
    seconds = DurationEstimates({}).cell_seconds(cell)
    assert seconds == pytest.approx(9 + 9 * (3.5 + 4) + 5 * 4 * 0.15)
    assert members(cell) == [(0, "a"), *[(2, "a")] * 4, *[(3, "a")] * 4]
    sets = conditions_of(cell.scenario, cell.method)
    assert {name: (its.scenario, its.method) for name, its in sets.items()} == {
        "alone": ("1x_a", "naive"),
        "2xnaive": ("2x_a", "naive"),
        "4xnaive": ("4x_a", "naive"),
        "4xmps": ("4x_a", "mps"),
        "2xmps": ("2x_a", "mps"),
    }


def test_sets_that_the_card_has_no_room_for_together_get_cells_of_their_own():
    """In replicates, as the study measures others; who has them anyway keeps its own."""
    [turns] = planned(3, ["alone", "naive", "mps"])
    cells = planned(3, ["alone", "naive", "mps"], full={turns.id})
    apart = {cell.id: cell for cell in cells if cell.id != turns.id}
    assert len(cells) == 4 and apart.keys() == {
        f"{name}/paper_step/{method}/r1"
        for name, method in (("1x_a", "naive"), ("3x_a", "naive"), ("3x_a", "mps"))
    }
    assert {cell.spec.measure.kind for cell in apart.values()} == {"window"}
    assert apart["3x_a/paper_step/mps/r1"].needs == {"1x_a/paper_step/naive/r1"}


def test_sets_of_clients_alone_are_proven_by_their_daemon():
    """Though a member is in more than one of them."""
    [turns] = planned(3, ["2xmps", "mps"])
    both = Interleaved(turns.spec, SimpleNamespace(uuid="GPU-0"))
    both.mps.evidence = lambda reports, plain: "proof"
    report = Report(pid=1, device_uuid="GPU-0", sm_count=None, memory_free=None)
    assert both.evidence({0: report, 1: report}) == "proof"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            {"conditions": ["naive"]},
            "ladders.0.counts.2: 'interleaved' needs at least 2 conditions",
        ),
        (
            {"conditions": ["alone", "mig"]},
            "'mig' is not allowed; allowed: alone, naive, mps, mps_",
        ),
        (
            {"count": 25, "conditions": ["mps", "mps_equal"]},
            "50 members are clients of one MPS daemon",
        ),
        ({"measure": {"kind": "window"}}, "'alone' is not allowed"),
        ({"conditions": ["alone", "3xmps"]}, "'3xmps' is no part of 2 copies of one workload"),
        ({"conditions": ["2xmps", "2xmps"]}, "'2xmps' is no part of 2 copies of one workload"),
        ({"conditions": ["alone", "2xmps_equal"]}, "'2xmps_equal' is no part of 2 copies"),
        ({"measure": {"drop_s": 0.15}}, "ladders.0.measure.drop_s: 0.15 s of slices of 0.15 s"),
    ],
)
def test_what_cannot_take_turns_is_refused(content, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        planned(**content)


# -- one cell, by its own command ------------------------------------------------------------------


@pytest.fixture
def begin(studio) -> Callable[..., tuple[str, Running]]:
    """Begins an attempt at a cell on the CPU, without Snakemake; gives its name."""

    def begin(cell: Cell, trainer: str = "tests.torchfree") -> tuple[str, Running]:
        [ready] = studio.data.glob("prepared/digits-*/manifest.json")
        studio.settings = {"trainer": trainer, "telemetry": {"source": "off"}}
        attempt = f"{cell.id}/a1"
        studio.write_job(attempt, cell.spec, ready.parent)
        return attempt, studio.conduct(attempt)

    return begin


def ended(studio: Studio, attempt: str, running: Running) -> dict:
    """The record of an attempt that has begun."""
    run = running.end()
    assert run.code == 0, run.output
    return studio.record(attempt)


def assert_in_turns(record: dict, folder: Path) -> None:
    """Every slice is in the record, in random order by the seed, and nobody trains in another's."""
    windows, measure = record["windows"], record["spec"]["measure"]
    rounds = list(zip(*(window["spans"] for window in windows), strict=True))
    assert len(rounds) == measure["slices"]
    order = random.Random(record["spec"]["seed"])
    for spans in rounds:
        expected = order.sample(range(len(windows)), len(windows))
        assert sorted(range(len(windows)), key=lambda condition: spans[condition]) == expected
    every = sorted(span for spans in rounds for span in spans)
    counted = measure["slice_s"] - measure["drop_s"]
    assert all((end - start) / 1e9 >= counted - 1e-6 for start, end in every)
    assert all(after[0] - span[1] >= measure["drop_s"] * 1e9 for span, after in pairwise(every))
    table = pq.read_table(folder / "steps.parquet")
    origin, tick = (int(table.schema.metadata[key]) for key in (b"origin_ns", b"tick_ns"))
    ends = table.to_pydict()
    for window in windows:
        assert window["seconds"] == pytest.approx(
            sum(b - a for a, b in window["spans"]) / 1e9, abs=1e-6
        )
        for index in window["members"]:
            assert set(record["members"][index]["windows"]) == {window["name"]}
            rate = record["members"][index]["windows"][window["name"]]
            assert len(rate["slices"]) == measure["slices"] and min(rate["slices"]) > 0
            theirs = [t for m, t in zip(ends["member"], ends["tick"], strict=True) if m == index]
            times = [origin + t * tick + tick for t in theirs]
            others = [s for other in windows if other is not window for s in other["spans"]]
            assert not any(a < time < b for a, b in others for time in times)


def test_conditions_never_train_in_each_others_slices(studio, begin):
    """Of torch's members, which train what the catalogue's smallest does."""
    tiny = {"model": "test_resnet", "model_args": {}, "input": {"samples": 512}}
    entries = {"a": VisionWorkload(**WORKLOADS["a"] | tiny)}
    ladder = {"workloads": ["a"], "counts": {2: ["alone", "naive", "naive"]}}
    [cell] = expand(Study.model_validate(study(measure=TURNS, ladders=[ladder])), entries)
    attempt, running = begin(cell, "models.train")
    record = ended(studio, attempt, running)
    assert record["status"] == "completed", record["reason"]
    assert [w["name"] for w in record["windows"]] == ["alone", "naive", "naive_2"]
    folder = (studio.folder / studio.path(attempt)).parent
    assert_in_turns(record, folder)
    assert record["method"]["verified"] is True


@pytest.mark.parametrize(
    ("of", "status", "says"),
    [
        ("dies", "failed", r"^member \d \(dies\), window: ended by signal 9 "),
        ("starves", "out_of_memory", r"^member \d \(starves\), window: OutOfMemory: "),
        ("unheld", "failed", "^interleaved: a member does not know the command 'hold'"),
    ],
)
def test_without_one_of_its_members_a_cell_has_no_rates(studio, begin, of, status, says):
    [cell] = planned(2, ["naive", "naive"], of=of)
    record = ended(studio, *begin(cell))
    assert record["status"] == status and re.search(says, record["reason"]), record["reason"]
    assert record["windows"] == [] and not any(m["windows"] for m in record["members"])


@pytest.mark.parametrize("who", ["member", "conductor"])
def test_an_end_while_members_are_held_ends_the_cell_and_leaves_nothing(studio, begin, who):
    [cell] = planned(1, ["naive", "naive"], measure={"slice_s": 600.0})
    attempt, running = begin(cell)
    until(lambda: "held:" in studio.log(attempt), lambda: running.output)
    if who == "conductor":
        running.process.send_signal(signal.SIGINT)
        assert running.end().code == 128 + signal.SIGINT and not studio.records()
        return
    first = random.Random(cell.spec.seed).sample(range(2), 2)[0]
    [log] = studio.results.rglob(f"member{1 - first}.log")
    os.kill(int(re.search(r"in process (\d+)", log.read_text())[1]), signal.SIGKILL)
    record = ended(studio, attempt, running)
    assert record["reason"].startswith(f"member {1 - first} (a), window: ended by signal 9")
    assert record["members"][first]["status"] == "completed" and not record["windows"]


# -- on a GPU --------------------------------------------------------------------------------------

CONDITIONS = ["alone", "naive", "mps"]
CELL = "2x_small--interleaved/bf16/alone-naive-mps/r{}"
WHO = r"member {} \(PID \d+\)"
WRONG = {  # replicate → who lies, and how, and what is said of it
    2: ("1:client", rf"^MPS: among server \d+'s clients, not planned so: {WHO.format(1)}$"),
    3: ("3:pipe", rf"^MPS: not among server \d+'s clients .*: {WHO.format(3)}"),
}


@pytest.fixture(scope="module", params=["fake", "real"])
def cells(request, module_studio) -> Batch:
    if request.param == "real":
        on = RealMachine(module_studio, real_gpu())
        times = {"slices": 12, "slice_s": 0.5, "drop_s": 0.1, "warmup_s": 1}
    else:
        on, times = Machine(module_studio), {"slice_s": 0.5}
    ladder = {"workloads": ["small"], "counts": {2: CONDITIONS}, "measure": TURNS | times}
    studio = on.studio([ladder], replicates=3)
    studio.settings["telemetry"] = json.dumps({"hz": 20})  # rows that lie in so short slices
    told = lies(**{f"/{CELL.format(replicate)}/": lie for replicate, (lie, _) in WRONG.items()})
    batch = Batch(studio, [*(CELL.format(replicate) for replicate in (1, 2, 3))], told)
    batch.on = on
    return batch


def test_plain_members_and_clients_are_in_force_together_and_take_turns(cells):
    [record] = cells.records(CELL.format(1))
    assert record["status"] == "completed", record["reason"]
    assert record["method"]["verified"] is True
    for evidence in record["method"]["evidence"].values():
        pids = [member["pid"] for member in record["members"]]
        assert evidence["naive"]["members"] == sorted(pids[:3])
        assert evidence["mps"]["clients"] == sorted(pids[3:])
    assert [window["name"] for window in record["windows"]] == CONDITIONS
    folder = (cells.studio.folder / cells.studio.path(f"{CELL.format(1)}/a1")).parent
    assert_in_turns(record, folder)
    seen = record["telemetry"]["windows"]
    active = [seen[condition]["entities"]["gpu"]["gract"] for condition in CONDITIONS]
    assert all(active) if isinstance(cells.on, RealMachine) else None not in active
    assert seen["alone"]["energy"] is None
    assert "shared_gpu" not in record["flags"]
    cells.on.assert_as_found(cells.studio)


@pytest.mark.parametrize("replicate", WRONG)
def test_a_condition_that_is_not_what_it_says_fails_the_cell(cells, replicate):
    [record] = cells.records(CELL.format(replicate))
    assert record["status"] == "failed"
    assert re.search(WRONG[replicate][1], record["reason"]), record["reason"]
