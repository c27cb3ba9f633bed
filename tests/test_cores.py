"""Core sets: the laws that make core counts comparable between cells; quotas of CPU time."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.gpu.cores import Cpu, plan_cores, quota, topology, usable


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
    sizes = {len(cores) for cores in sets}
    assert sizes == {len(plan_cores([share], cpus)[0][0])}  # alone has as many
    assert 1 <= sizes.pop() <= max(1, len(cpus) // share)
    if count <= share <= len(cpus):
        assert "cores_shared" not in flags
        assert len(set().union(*sets)) == sum(map(len, sets))
    if count > len(cpus):
        assert "cores_shared" in flags
        uses = [sum(index in cores for cores in sets) for index in set().union(*sets)]
        assert max(uses) - min(uses) <= 1


@given(machines, shares, st.none() | st.integers(0, 3))
def test_any_shares(cpus, members, numa):
    sets, flags = plan_cores(members, cpus, numa)
    usable = {cpu.index for cpu in cpus}
    assert len(sets) == len(members)
    for share, cores in zip(members, sets, strict=True):
        assert cores == sorted(set(cores)) and set(cores) <= usable
        assert (set(cores) == usable) or share != "all"
    assert ("cores_shared" in flags) == (len(set().union(*sets)) < sum(map(len, sets)))
    for count in range(1, len(members)):  # who comes later changes nothing for the first
        assert plan_cores(members[:count], cpus, numa)[0] == sets[:count]


@given(st.integers(1, 4), st.integers(1, 16), st.integers(1, 24))
def test_physical_cores_are_not_split_between_members(nodes, cores, share):
    cpus = machine(nodes, cores, 2)
    sets, flags = plan_cores([share] * share, cpus)
    if len(cpus) // share >= 2:
        core_of = {cpu.index: cpu.core for cpu in cpus}
        owned = [{core_of[index] for index in members} for members in sets]
        assert len(set().union(*owned)) == sum(map(len, owned))
        assert flags == []


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


def test_topology_is_read_from_sysfs(tmp_path):
    for index, (node, siblings) in enumerate([(0, "0,2"), (1, "1,3"), (0, "0,2"), (1, "1,3")]):
        (tmp_path / f"cpu{index}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{index}" / f"node{node}").mkdir()
        (tmp_path / f"cpu{index}" / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    assert topology(tmp_path, {0, 1, 2, 3, 9}) == [
        Cpu(0, 0, 0),
        Cpu(0, 0, 2),
        Cpu(0, 9, 9),  # nothing told
        Cpu(1, 1, 1),
        Cpu(1, 1, 3),
    ]


# -- quotas ----------------------------------------------------------------------------------------


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
    assert quota(tmp_path) == expected
    available = len(os.sched_getaffinity(0))
    assert usable(tmp_path) == max(1, min(available, int(expected or available)))


@given(machines, shares, st.integers(1, 64))
def test_under_a_quota_no_more_cores_are_planned_than_it_allows(cpus, members, most):
    sets, flags = plan_cores(members, cpus, most=most)
    used = set().union(*sets)
    assert len(used) <= most
    if most >= len(cpus):
        assert (sets, flags) == plan_cores(members, cpus)
    per_node = len(cpus) // len({cpu.node for cpu in cpus})
    if most <= per_node // 2:  # a thread of each core, before the second of any
        assert "hyperthreads_shared" not in flags
