"""How many CPU cores we may use, and which of them each member of a cell gets."""

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.gpu import Device, find
from workflow.collocation.study.errors import ConfigError, NotInForce

CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, order=True)
class Cpu:
    """A logical CPU on NUMA node `node`; core: number of its physical core's first CPU."""

    node: int
    core: int
    index: int


def quota(root: Path = CGROUP) -> float | None:
    """CPUs that a container's control group allows (`docker run --cpus`); None without a limit."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # v2, v1
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            text = " ".join((root / name).read_text(encoding="utf-8") for name in files)
            limit, period = map(int, text.split())
            return limit / period if limit > 0 else None
    return None


def usable(root: Path = CGROUP) -> int:
    """Whole CPUs that this process can keep busy, at least one."""
    count, limit = len(os.sched_getaffinity(0)), quota(root)
    return count if limit is None else max(1, min(count, int(limit)))


def topology(root: Path = CPUS) -> list[Cpu]:
    """The logical CPUs that this process may use, sorted.

    A CPU of which sysfs says nothing counts as a physical core by itself, on NUMA node 0.
    """
    cpus = []
    for index in os.sched_getaffinity(0):
        folder = root / f"cpu{index}"
        nodes = [int(entry.name[4:]) for entry in folder.glob("node[0-9]*")]
        siblings = folder / "topology" / "thread_siblings_list"
        core = index
        if siblings.exists():
            core = int(re.match(r"\d+", siblings.read_text(encoding="utf-8"))[0])
        cpus.append(Cpu(nodes[0] if nodes else 0, core, index))
    return sorted(cpus)


def plan_cores(
    shares: list[int | str], available: list[Cpu], numa: int | None = None, limit: int | None = None
) -> tuple[list[list[int]], list[str]]:
    """CPU numbers for each member, sorted, and flags.

    shares: for each member the number of members that the cores are divided by, or "all". It gets
    max(1, CPUs // share) of `available`, rounded down to whole physical cores where that leaves
    one; neither number nor CPUs depend on the members after it. CPUs of node `numa` (the GPU's) go
    first, and a member stays within one node while there is room. limit: how many CPUs are used in
    all, first threads of physical cores before second ones. Flags: "cores_shared" when two members
    have a CPU in common, "hyperthreads_shared" when only a physical core.
    """
    order = _within_limit(sorted(available, key=lambda cpu: (cpu.node != numa, cpu)), numa, limit)
    chosen: list[set[Cpu]] = []
    for share in shares:
        cpus = order if share == "all" else _least_used(order, chosen, _size(order, share))
        chosen.append(set(cpus))
    flags = []
    if _overlap(chosen):
        flags.append("cores_shared")
    elif _overlap([{cpu.core for cpu in cpus} for cpus in chosen]):
        flags.append("hyperthreads_shared")
    return [sorted(cpu.index for cpu in cpus) for cpus in chosen], flags


def plan_conditions(
    conditions: list[list[int | str]], numa: int | None = None, limit: int | None = None
) -> tuple[list[list[int]], list[str]]:
    """`plan_cores` for each condition of a cell: they train in turns, and on the same cores.

    conditions: for each, in how many shares the cores are divided for each member, or "all". numa:
    node whose cores come first. limit: most CPUs. Returns the CPU numbers of each member, condition
    by condition, and flags.
    """
    core_sets, flags = [], {}
    for shares in conditions:
        planned, flags_of_one = plan_cores(shares, topology(), numa, limit or usable())
        core_sets += planned
        flags |= dict.fromkeys(flags_of_one)
    return core_sets, list(flags)


def keep_to_share(device: Device | None) -> int | None:
    """Restrict this process, and what it starts, to its GPU's share of the CPUs.

    Returns how many of them it may use, because a quota is divided, too; None where it has them
    all. The share is the same whichever GPUs are used: what runs on the others changes no rate. A
    machine's CPUs are divided by its GPUs; CPUs that we were given (by Slurm, say) by the visible
    GPUs.
    """
    if device is None:
        return None
    whole_machine = len(os.sched_getaffinity(0)) == os.cpu_count()
    try:
        cards = find(None if whole_machine else "auto")
    except (ConfigError, NotInForce):
        return None
    nodes = [(card.uuid, card.numa_node) for card in cards]
    if len(nodes) < 2 or device.uuid not in dict(nodes):
        return None
    limit = max(1, usable() // len(nodes))
    os.sched_setaffinity(0, share_of(device.uuid, nodes, topology()))
    return limit


def share_of(uuid: str, cards: list[tuple[str, int | None]], available: list[Cpu]) -> set[int]:
    """The CPUs of one of a machine's GPUs; cards: (UUID, NUMA node) of each GPU.

    Each GPU gets as many whole physical cores, of its own NUMA node first, and no two share one.
    Where there are fewer cores than GPUs, each has all.
    """
    free: dict[int, list[Cpu]] = {}
    for cpu in available:
        free.setdefault(cpu.core, []).append(cpu)
    size = len(free) // len(cards)
    # GPUs without a node choose last.
    for card, node in sorted(cards, key=lambda card: card[1] is None):
        nearest = sorted(free, key=lambda core: (free[core][0].node != node, free[core]))[:size]
        share = {cpu.index for core in nearest for cpu in free.pop(core)}
        if card == uuid:
            break
    return share or {cpu.index for cpu in available}


def spare(core_sets: list[list[int]]) -> list[int] | None:
    """A CPU for the processes beside the members, if possible of a physical core that no member
    uses; None where members have all CPUs.
    """
    available = topology()
    taken = {index for cpus in core_sets for index in cpus}
    busy_cores = {cpu.core for cpu in available if cpu.index in taken}
    free = [cpu for cpu in available if cpu.index not in taken]
    if not free:
        return None
    return [min(free, key=lambda cpu: (cpu.core in busy_cores, cpu)).index]


def _within_limit(order: list[Cpu], numa: int | None, limit: int | None) -> list[Cpu]:
    """As many of the CPUs, in the same order; second threads of a node go before the first."""
    threads, rank = Counter(), {}
    for cpu in order:
        rank[cpu] = (cpu.node != numa, cpu.node, threads[cpu.core])
        threads[cpu.core] += 1
    chosen = set(sorted(order, key=rank.get)[:limit])
    return [cpu for cpu in order if cpu in chosen]


def _size(cpus: list[Cpu], share: int) -> int:
    """How many CPUs a member gets."""
    size = max(1, len(cpus) // share)
    threads = max(Counter(cpu.core for cpu in cpus).values())
    return size - size % threads if size >= threads else size


def _least_used(order: list[Cpu], chosen: list[set[Cpu]], size: int) -> list[Cpu]:
    """So many of the least used CPUs and cores, within the first node that has them free."""
    uses = Counter(cpu for cpus in chosen for cpu in cpus)
    core_uses = Counter(cpu.core for cpus in chosen for cpu in cpus)
    ranked = sorted(order, key=lambda cpu: (uses[cpu], core_uses[cpu.core]))
    for node in dict.fromkeys(cpu.node for cpu in order):
        free = [cpu for cpu in ranked if cpu.node == node and cpu not in uses]
        if len(free) >= size:
            return free[:size]
    return ranked[:size]


def _overlap(sets: list[set]) -> bool:
    return sum(map(len, sets)) > len(set().union(*sets))
