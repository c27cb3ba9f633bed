"""Core sets: the laws that make core counts comparable between cells; quotas of CPU time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.gpu import cpus as counted
from workflow.collocation.gpu.cores import Cpu, plan_cores, topology


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

# Our control groups, and what of them is mounted where, as the kernel tells it in containers and
# outside; files below the mount; the quota, of which the smallest on the way up counts.
V2 = "30 1 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup rw,nsdelegate"
V1 = "33 1 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
QUOTAS = {
    "v2, a container's own root": ("0::/", V2, "/", {"cpu.max": "150000 100000"}, 1.5),
    "v2, none": ("0::/", V2, "/", {"cpu.max": "max 100000"}, None),
    "v2, the one above is smaller": (
        "0::/pods/p1",
        V2,
        "/",
        {"pods/cpu.max": "200000 100000", "pods/p1/cpu.max": "800000 100000"},
        2.0,
    ),
    "v2, shown from outside its namespace": ("0::/../x", V2, "/", {"cpu.max": "50000 100000"}, 0.5),
    "v1": (
        "4:memory:/m\n1:cpu,cpuacct:/job",
        V1,
        "/",
        {"job/cpu.cfs_quota_us": "400000", "job/cpu.cfs_period_us": "100000"},
        4.0,
    ),
    "v1, docker's group is what is mounted": (
        "1:cpu,cpuacct:/docker/c0",
        V1,
        "/docker/c0",
        {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
        0.5,
    ),
    "v1, none": (
        "1:cpu,cpuacct:/",
        V1,
        "/",
        {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        None,
    ),
    "nothing mounted": ("0::/", "22 1 0:20 {top} /proc rw - proc proc rw", "/", {}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_the_smallest_quota_of_our_control_groups_counts(tmp_path, case):
    groups, mounts, top, files, expected = QUOTAS[case]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    (tmp_path / "proc/self/mountinfo").write_text(mounts.format(top=top) + "\n")
    mounted = tmp_path / mounts.split()[4].lstrip("/")
    for name, content in files.items():
        path = mounted / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
        path.with_name("cpu.stat").write_text("usage_usec 9\nnr_periods 40\nnr_throttled 7\n")
    assert counted.quota(tmp_path) == expected
    available = len(os.sched_getaffinity(0))
    assert counted.usable(tmp_path) == max(1, min(available, int(expected or available)))
    with_quota = sum(
        not c.startswith(("max", "-1")) and "period" not in n for n, c in files.items()
    )
    assert counted.periods(tmp_path) == (40 * with_quota, 7 * with_quota)


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


IN_A_GROUP = """
import json, time
from workflow.collocation.record import provenance
from workflow.collocation.gpu.cores import plan_cores
print(json.dumps([plan_cores(["all"])[0], provenance.host(1)]))
from workflow.collocation.gpu import cpus
before, patience = cpus.periods(), time.monotonic() + 120
while cpus.periods()[1] == before[1] and time.monotonic() < patience:
    pass
print(json.dumps([after - then for after, then in zip(cpus.periods(), before)]))
"""


def test_a_real_quota_is_seen(tmp_path):
    """Where this machine lets a test make a control group; even a busy one uses so little up."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    group = (v1 if v1.exists() else v2) / f"collocation-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made here: {error}")
    try:
        try:
            if v1.exists():
                (group / "cpu.cfs_quota_us").write_text("5000")
            else:
                (group / "cpu.max").write_text("5000 100000")
        except OSError as error:
            pytest.skip(f"no quota may be set here: {error}")
        run = subprocess.run(
            [sys.executable, "-c", IN_A_GROUP],
            cwd=Path(__file__).parents[1],
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            capture_output=True,
            text=True,
        )
        (all_cores, host), (periods, held) = map(json.loads, run.stdout.splitlines())
    finally:
        group.rmdir()
    assert len(all_cores[0]) == host["cores"] == 1
    assert periods >= held > 0
