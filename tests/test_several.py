"""Several GPUs of one machine at once: fake cards, real processes, the real command."""

import json
import os
import re
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import machine
from tests.studio import study, workload
from tests.test_terminal import at_terminal, screen
from workflow.collocation.cell.cores import Cpu, share_of

ALL = ["--cores", "all", "--resources", "gpu=9", "--until", "collocate"]


def spans(record: dict) -> tuple[int, int]:
    [window] = record["windows"]
    return window["start_ns"], window["end_ns"]


@pytest.fixture
def several(studio):
    """Two blocks of an alone cell and a pair, on a machine with two cards."""
    ladder = {"workloads": ["plain"], "counts": {1: ["naive"], 2: ["mps"]}}
    made = study(ladders=[ladder], replicates=2)
    return studio.with_card(more=1).write({"plain": workload()}, drill=made)


def cards(studio) -> list[str]:
    there = [studio.card, studio.card.with_name("card-1")]
    return [json.loads((each / "state.json").read_text())["uuid"] for each in there]


def test_blocks_run_side_by_side_each_on_one_card(several):
    run = several.start("--cores", "all", "--resources", "gpu=9", "--until", "collocate").end()
    assert run.code == 0, run.output
    assert "on 2 GPUs" in run.output
    records = {cell: r for cell, r in several.records().items() if "--anchor" not in cell}
    assert {r["status"] for r in records.values()} == {"completed"}, run.output
    by_block = {}
    for r in records.values():
        by_block.setdefault(r["cell"]["replicate"], set()).add(r["gpu"]["uuid"])
    assert sorted(map(sorted, by_block.values())) == sorted([u] for u in cards(several))
    together = [
        (a, b)
        for a, b in combinations(records.values(), 2)
        if max(spans(a)[0], spans(b)[0]) < min(spans(a)[1], spans(b)[1])
    ]
    assert together
    for a, b in together:
        assert a["gpu"]["uuid"] != b["gpu"]["uuid"]
        used = [{core for m in r["members"] for core in m["cores"]} for r in (a, b)]
        assert not used[0] & used[1] or os.cpu_count() < 2
    again = several.start("--resources", "gpu=1", "-n").end()
    assert "0 to run now" in again.output


def test_a_card_that_somebody_uses_keeps_no_other_waiting(several):
    """Its blocks are put off, and measured by the next run, when it is free."""
    first, second = cards(several)
    other = several.card.with_name("card-1")
    machine.occupy(other, os.getpid())
    run = several.start(*ALL, config={"wait": "2s"}).end()
    assert run.code == 1 and "the same command carries on" in run.output, run.output
    there = several.records().values()
    assert {r["gpu"]["uuid"] for r in there} == {first} and len(there) >= 2
    (other / "processes" / str(os.getpid())).unlink()
    assert several.start(*ALL).end().code == 0
    done = [r for cell, r in several.records().items() if "--anchor" not in cell]
    assert len(done) == 4 and {r["status"] for r in done} == {"completed"}
    assert {r["gpu"]["uuid"] for r in done} == {first, second}


def test_four_invocations_share_two_cards(several, tmp_path):
    """No two cells are on one card at once, and nobody starves."""
    studios = [several]
    ladder = {"workloads": ["plain"], "counts": {1: ["naive"]}}
    for name in "abc":
        studios.append(replace(several, folder=tmp_path / name))
        studios[-1].write({"plain": workload()}, drill=study(ladders=[ladder], replicates=2))
    several.write({"plain": workload()}, drill=study(ladders=[ladder], replicates=2))
    runs = [each.start(*ALL) for each in studios]
    for running in runs:
        assert running.end().code == 0, running.output
    records = [r for each in studios for r in each.records().values()]
    assert len(records) >= 8 and {r["status"] for r in records} == {"completed"}
    for a, b in combinations(records, 2):
        if a["gpu"]["uuid"] == b["gpu"]["uuid"]:
            assert max(spans(a)[0], spans(b)[0]) >= min(spans(a)[1], spans(b)[1])


@pytest.mark.parametrize(
    "visible, wanted, many",
    [(None, "auto", 2), ("1", "auto", 1), ("1,0", "auto", 2), (None, "1", 1), (None, "0,1", 2)],
)
def test_only_cards_that_may_be_used_are(several, visible, wanted, many):
    several.surroundings |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    several.surroundings |= {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    said = several.start("-n", "--resources", "gpu=9", config={"gpu": wanted}).end().output
    assert f"on {many} GPUs" in said if many > 1 else "on NVIDIA H200" in said


@given(st.data())
def test_each_card_has_as_many_cores_and_none_is_shared(data):
    count = data.draw(st.integers(1, 8), "GPUs")
    nodes = data.draw(st.integers(1, 4), "NUMA nodes")
    threads = data.draw(st.integers(1, 2), "threads of a core")
    cores = data.draw(st.integers(count, 40), "cores")
    cpus = [
        Cpu(core % nodes, core, core + cores * thread)
        for core in range(cores)
        for thread in range(threads)
    ]
    near = st.none() | st.integers(0, nodes - 1)
    there = [(f"GPU-{i}", data.draw(near, f"node of GPU {i}")) for i in range(count)]
    shares = [share_of(uuid, there, cpus) for uuid, _ in there]
    assert {len(share) for share in shares} == (
        {cores // count * threads} if count > 1 else {len(cpus)}
    )
    assert len(set().union(*shares)) == sum(map(len, shares))
    for share in shares if count > 1 else ():  # whole cores
        assert all({cpu.index for cpu in cpus if cpu.core == i % cores} <= share for i in share)


def test_cores_are_the_nearest_there_are():
    cpus = [Cpu(core // 4, core, core) for core in range(8)]
    assert share_of("b", [("a", 1), ("b", 0)], cpus) == {0, 1, 2, 3}
    assert share_of("a", [("a", None), ("b", 0)], cpus) == {4, 5, 6, 7}
    assert share_of("a", [("a", 0), ("b", 0), ("c", 1)], cpus[:2]) == {0, 1}


def test_one_line_lives_for_all_cells_that_run(several):
    code, seen, _ = at_terminal(several, *ALL)
    assert code == 0, seen
    living = re.findall(r"\r\x1b\[K([^\r\n]+)", seen)
    both = r"\[\d/4\] .+ \| \[\d/4\] .+; about \d+ s left"
    assert any(re.fullmatch(both, line) for line in living), seen
    assert sum("completed in" in line for line in screen(seen)) == 4, seen
