"""Core sets: the laws that make core counts comparable between cells; quotas; shares of GPUs."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.gpu import cores
from workflow.collocation.gpu.cores import (
    Cpu,
    plan_conditions,
    plan_cores,
    share_of,
    spare,
    topology,
)


def machine(nodes: int, cores: int, threads: int) -> list[Cpu]:
    """`cores` physical cores on each node, numbered as Linux does: all first threads first."""
    total = nodes * cores
    return sorted(
        Cpu(core // cores, core, core + thread * total)
        for core in range(total)
        for thread in range(threads)
    )


machines = st.builds(machine, st.integers(1, 4), st.integers(1, 16), st.integers(1, 2))
shares = st.lists(st.integers(1, 48) | st.just("all"), min_size=1, max_size=10)


@given(machines, st.integers(1, 24), st.integers(1, 24))
def test_equal_shares(cpus, share, count):
    sets, flags = plan_cores([share] * count, cpus)
    sizes = {len(each) for each in sets}
    assert sizes == {len(plan_cores([share], cpus)[0][0])}  # alone has as many
    assert 1 <= sizes.pop() <= max(1, len(cpus) // share)
    if count <= share <= len(cpus):
        assert "cores_shared" not in flags
        core_of = {cpu.index: cpu.core for cpu in cpus}
        owned = [{core_of[index] for index in each} for each in sets]
        if len(cpus) // share >= 2:  # no physical core is split
            assert flags == [] and len(set().union(*owned)) == sum(map(len, owned))
    if count > len(cpus):
        assert "cores_shared" in flags
        uses = [sum(index in each for each in sets) for index in set().union(*sets)]
        assert max(uses) - min(uses) <= 1


@given(machines, shares, st.none() | st.integers(0, 3), st.none() | st.integers(1, 64))
def test_any_shares(cpus, members, numa, most):
    sets, flags = plan_cores(members, cpus, numa, most)
    used = set().union(*sets)
    assert len(sets) == len(members) and used <= {cpu.index for cpu in cpus}
    assert len(used) <= (most or len(cpus))
    for share, each in zip(members, sets, strict=True):
        assert each == sorted(set(each))
        assert share != "all" or len(each) == min(most or len(cpus), len(cpus))
    assert ("cores_shared" in flags) == (len(used) < sum(map(len, sets)))
    for count in range(1, len(members)):  # who comes later changes nothing for the first
        assert plan_cores(members[:count], cpus, numa, most)[0] == sets[:count]
    per_node = len(cpus) // len({cpu.node for cpu in cpus})
    if most and most <= per_node // 2:  # a thread of each core, before the second of any
        assert "hyperthreads_shared" not in flags


@pytest.mark.parametrize(
    ("shares", "cpus", "numa", "sets", "flags"),
    [
        ([7] * 3, machine(1, 8, 2), None, [[0, 8], [1, 9], [2, 10]], []),
        ([3], machine(1, 8, 2), None, [[0, 1, 8, 9]], []),  # five would split a core
        ([7] * 5, machine(1, 4, 2), None, [[n] for n in range(5)], ["hyperthreads_shared"]),
        ([5], machine(2, 5, 1), 1, [[5, 6]], []),  # the GPU's node
        ([3] * 3, machine(2, 5, 1), 1, [[5, 6, 7], [0, 1, 2], [3, 8, 9]], []),
        ([3] * 3, machine(1, 2, 1), None, [[0], [1], [0]], ["cores_shared"]),
        (["all"] * 2, machine(1, 2, 1), None, [[0, 1], [0, 1]], ["cores_shared"]),
    ],
)
def test_cores_by_example(shares, cpus, numa, sets, flags):
    assert plan_cores(shares, cpus, numa) == (sets, flags)


def test_conditions_train_on_the_same_cores_and_the_sampler_on_another(monkeypatch):
    cpus = machine(1, 4, 2)
    monkeypatch.setattr(cores, "topology", lambda: cpus)
    monkeypatch.setattr(cores, "usable", lambda: 8)
    sets, flags = plan_conditions([[4], [4, 4]])
    assert (sets, flags) == ([[0, 4], [0, 4], [1, 5]], [])
    assert spare([[0], [1]]) == [2] and spare([[0], [1, 2, 3]]) == [4]
    assert spare([[*range(8)]]) is None


def test_topology_is_read_from_sysfs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 9})
    for index, (node, siblings) in enumerate([(0, "0,2"), (1, "1,3"), (0, "0,2"), (1, "1,3")]):
        (tmp_path / f"cpu{index}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{index}" / f"node{node}").mkdir()
        (tmp_path / f"cpu{index}" / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    nothing_told = Cpu(0, 9, 9)
    known = [Cpu(0, 0, 0), Cpu(0, 0, 2), nothing_told, Cpu(1, 1, 1), Cpu(1, 1, 3)]
    assert topology(tmp_path) == known


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_bounds_the_cores(tmp_path, files, expected):
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content + "\n")
    assert cores.quota(tmp_path) == expected
    available = len(os.sched_getaffinity(0))
    assert cores.usable(tmp_path) == max(1, min(available, int(expected or available)))


# -- several GPUs ----------------------------------------------------------------------------------


@given(st.data())
def test_each_gpu_has_as_many_cores_and_none_is_shared(data):
    count = data.draw(st.integers(1, 8), "GPUs")
    cpus = data.draw(machines.filter(lambda cpus: len({cpu.core for cpu in cpus}) >= count))
    threads = len(cpus) // len({cpu.core for cpu in cpus})
    near = st.none() | st.integers(0, 3)
    there = [(f"GPU-{i}", data.draw(near, f"node of GPU {i}")) for i in range(count)]
    found = [share_of(uuid, there, cpus) for uuid, _ in there]
    assert {len(share) for share in found} == {len(cpus) // threads // count * threads}
    assert len(set().union(*found)) == sum(map(len, found))
    for share in found:  # whole cores
        mine = {cpu.core for cpu in cpus if cpu.index in share}
        assert {cpu.index for cpu in cpus if cpu.core in mine} == share


def test_a_gpus_cores_are_the_nearest_there_are():
    cpus = [Cpu(core // 4, core, core) for core in range(8)]
    assert share_of("b", [("a", 1), ("b", 0)], cpus) == {0, 1, 2, 3}
    assert share_of("a", [("a", None), ("b", 0)], cpus) == {4, 5, 6, 7}
    assert share_of("b", [("a", 0), ("b", 0), ("c", 1)], cpus[:2]) == {0, 1}  # fewer than GPUs
