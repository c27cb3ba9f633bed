"""Several GPUs of one machine at once: fake cards, real processes, the real command."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes import machine
from tests.studio import Studio, study, until, workload
from tests.workflow.test_terminal import at_terminal, screen

ALL = ["--cores", "all", "--resources", "gpu=9", "--until", "collocate"]


def spans(record: dict) -> tuple[int, int]:
    [window] = record["windows"]
    return window["start_ns"], window["end_ns"]


@pytest.fixture
def several(tmp_path_factory, data):
    """Two replicates of an alone cell and a pair, on a machine with two cards."""
    base = tmp_path_factory.mktemp("s")  # short, for the sockets of MPS daemons
    ladder = {"workloads": ["plain"], "counts": {1: ["naive"], 2: ["mps"]}}
    made = study(ladders=[ladder], replicates=2)
    studio = Studio(base / "w", data, base / "locks").with_card(more=1)
    yield studio.write({"plain": workload()}, drill=made)
    studio.kill_all()


def cards(studio) -> list[str]:
    there = [studio.card, studio.card.with_name("card-1")]
    return [json.loads((each / "state.json").read_text())["uuid"] for each in there]


def test_replicates_run_condition_by_condition_each_on_one_card(several):
    first, other = (f"1x_plain/paper_step/naive/r{replicate}/a1" for replicate in (1, 2))
    hold = several.folder / "hold"
    hold.touch()
    several.surroundings["COLLOCATION_HOLD"] = str(hold)

    def both_in_their_windows() -> None:
        until(lambda: all("started:" in several.log(cell) for cell in (first, other)), str)
        hold.unlink()

    with ThreadPoolExecutor(1) as pool:
        seen_both = pool.submit(both_in_their_windows)
        code, seen, _ = at_terminal(several, *ALL)
    assert code == 0 and "on 2 GPUs" in seen and not seen_both.exception(), seen
    records = several.records()
    assert {r["status"] for r in records.values()} == {"completed"}, seen
    cores = defaultdict(set)
    for r in records.values():
        used = {core for member in r["members"] for core in member["cores"]}
        cores[r["cell"]["replicate"], r["gpu"]["uuid"]] |= used
    assert sorted(uuid for _, uuid in cores) == sorted(cards(several)) and len(cores) == 2
    one, other = cores.values()
    assert not one & other or os.cpu_count() < 2
    living = re.findall(r"\r\x1b\[K([^\r\n]+)", seen)
    assert any(re.fullmatch(r"\[\d/4\] .+; about \d+ s left", line) for line in living), seen
    assert sum("completed in" in line for line in screen(seen)) == 4, seen


def test_a_replicate_stays_on_its_card_and_one_that_somebody_uses_keeps_no_other_waiting(several):
    """Its replicates are put off, and measured by the next run, when it is free. With fewer GPUs
    than before nothing is measured again.
    """
    first, second = cards(several)
    machine.occupy(several.card, os.getpid())
    alone = [f"1x_plain/paper_step/naive/r{replicate}/a1" for replicate in (1, 2)]
    targets = [several.path(cell).as_posix() for cell in alone]
    run = several.start(*ALL[:4], "--", *targets, config={"wait": "2s"}).end()
    assert run.code == 1 and "the same command carries on" in run.output, run.output
    assert {cell: r["gpu"]["uuid"] for cell, r in several.records().items()} == {alone[1]: second}
    (several.card / "processes" / str(os.getpid())).unlink()
    said = several.start("-n", "--resources", "gpu=1").end().output
    assert "1 measured, 3 to run now" in said, said
    assert several.start("--resources", "gpu=1", "--until", "collocate").end().code == 0
    done = [*several.records().values()]
    assert len(done) == 4 and {r["status"] for r in done} == {"completed"}
    places = {(r["cell"]["replicate"], r["gpu"]["uuid"]) for r in done}
    assert places == {(1, first), (2, second)}


def test_a_card_that_this_shell_hides_keeps_its_share(several):
    """A share is of all cards, so two shells with a card each have no core in common."""
    environment = several.environment(CUDA_DEVICE_ORDER="PCI_BUS_ID")
    code = "import os; from workflow.collocation import gpu; "
    code += "from workflow.collocation.gpu import cores; cores.keep_to_share(gpu.find()[0]); "
    code += "print(sorted(os.sched_getaffinity(0)))"
    said = [
        subprocess.check_output(
            [sys.executable, "-c", code], env={**environment, "CUDA_VISIBLE_DEVICES": visible}
        )
        for visible in ("0", "1")
    ]
    one, other = map(json.loads, said)
    assert one and other and (not {*one} & {*other} or os.cpu_count() < 2)


TURNS = {"kind": "interleaved", "slices": 2, "slice_s": 0.2, "drop_s": 0.05, "warmup_s": 0}


def test_cells_of_one_replicate_that_need_no_other_run_on_all_cards_at_once(several):
    """Those with baselines of their own stay on one; and a plan says what a run does."""
    turns = {"workloads": ["plain", "other", "third"], "counts": {2: ["alone", "naive"]}}
    windows = {"workloads": ["plain"], "counts": {1: ["naive"], 2: ["naive", "mps"]}}
    made = study(ladders=[turns | {"measure": TURNS}, windows])
    several.write({name: workload() for name in turns["workloads"]}, drill=made)
    minutes = [
        float(re.search(r"about (\d+(\.\d+)?) min", several.plan("--gpus", n).output)[1])
        for n in ("1", "2")
    ]
    assert minutes[1] < minutes[0]
    run = several.start(*ALL).end()
    assert run.code == 0 and "on 2 GPUs" in run.output, run.output
    on = defaultdict(list)
    for cell, record in several.records().items():
        assert record["status"] == "completed", record["reason"]
        on["--interleaved" in cell].append(record["gpu"]["uuid"])
    assert {*on[True]} == {*cards(several)} and len(on[True]) == 3
    assert len({*on[False]}) == 1 and len(on[False]) == 3
    assert several.start("-n", "--resources", "gpu=1").end().planned == 0
