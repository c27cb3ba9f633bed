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


@dataclass(frozen=True, order=True)
class Cpu:
    """A logical CPU; those with the same `core` are hyperthreads of one physical core."""

    node: int
    core: int  # number of the physical core's first CPU
    index: int


def quota(root: Path = CGROUP) -> float | None:
    """CPUs that a container's control group allows (`docker run --cpus`); None without a limit."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # v2, v1
        with suppress(OSError, ValueError):  # of no file, and of "max"
            text = " ".join((root / name).read_text(encoding="utf-8") for name in files)
            most, period = map(int, text.split())
            return most / period if most > 0 else None
    return None


def usable(root: Path = CGROUP) -> int:
    """Whole CPUs that this process can keep busy, at least one."""
    count = len(os.sched_getaffinity(0))
    found = quota(root)
    return count if found is None else max(1, min(count, int(found)))


def topology(root: Path = Path("/sys/devices/system/cpu")) -> list[Cpu]:
    """The logical CPUs this process may use, sorted.

    A CPU of which the kernel tells nothing is a physical core by itself, on NUMA node 0.
    """
    cpus = []
    for index in os.sched_getaffinity(0):
        folder = root / f"cpu{index}"
        nodes = [int(entry.name[4:]) for entry in folder.glob("node[0-9]*")]
        siblings = folder / "topology" / "thread_siblings_list"
        known = siblings.exists()
        core = int(re.match(r"\d+", siblings.read_text(encoding="utf-8"))[0]) if known else index
        cpus.append(Cpu(nodes[0] if nodes else 0, core, index))
    return sorted(cpus)


def plan_cores(
    members: list[int | str], available: list[Cpu], numa: int | None = None, most: int | None = None
) -> tuple[list[list[int]], list[str]]:
    """Core sets (sorted CPU numbers, one list per member) and flags.

    A member's entry is its `share_of`, the number of members the cores are divided by, or "all".
    It gets max(1, CPUs // share_of) of `available`, rounded down to whole physical cores where that
    leaves one; neither number nor CPUs depend on the members after it. CPUs of node `numa` (the
    GPU's) go first, and a member stays within one node while there is room. Of more than `most`
    CPUs the rest are left alone, second hyperthreads first. Flags: "cores_shared" when two members
    have a CPU in common, "hyperthreads_shared" when only a physical core.
    """
    order = sorted(available, key=lambda cpu: (cpu.node != numa, cpu))
    threads, place = Counter(), {}
    for cpu in order:
        place[cpu] = (cpu.node != numa, cpu.node, threads[cpu.core])
        threads[cpu.core] += 1
    kept = set(sorted(order, key=place.get)[:most])
    order = [cpu for cpu in order if cpu in kept]
    used: list[set[Cpu]] = []
    for share in members:
        used.append(set(order if share == "all" else _pick(order, used, _size(order, share))))

    flags = []
    if _overlap(used):
        flags.append("cores_shared")
    elif _overlap([{cpu.core for cpu in cpus} for cpus in used]):
        flags.append("hyperthreads_shared")
    return [sorted(cpu.index for cpu in cpus) for cpus in used], flags


def plan_conditions(
    conditions: list[list[int | str]], numa: int | None = None, most: int | None = None
) -> tuple[list[list[int]], list[str]]:
    """`plan_cores` for each condition of a cell: they train in turns, and on the same cores."""
    planned = [
        plan_cores(condition, topology(), numa, most or usable()) for condition in conditions
    ]
    flags = dict.fromkeys(flag for _, found in planned for flag in found)
    return [cores for found, _ in planned for cores in found], list(flags)


def keep_to_share(device: Device | None) -> int | None:
    """Have this process, and what it starts, keep to its GPU's share of the CPUs. How many of them
    it may use, for a quota is divided, too; None where it has them all.

    It is the same whichever GPUs are used: what runs on the others changes no rate. Of a machine's
    CPUs each of its GPUs has a share; of those that we were given (by Slurm, say) each visible one.
    """
    given = os.sched_getaffinity(0)
    try:
        cards = find(None if len(given) == os.cpu_count() else "auto") if device else []
    except (ConfigError, NotInForce):
        return None
    places = [(card.uuid, card.numa_node) for card in cards]
    if len(places) < 2 or device.uuid not in dict(places):
        return None
    most = max(1, usable() // len(places))
    os.sched_setaffinity(0, share_of(device.uuid, places, topology()))
    return most


def share_of(uuid: str, cards: list[tuple[str, int | None]], available: list[Cpu]) -> set[int]:
    """The CPUs of one of a machine's GPUs: for each as many whole physical cores, of its own NUMA
    node first, and none for two. Where there are fewer cores than GPUs, all.

    cards: (UUID, NUMA node) of each GPU.
    """
    free: dict[int, list[Cpu]] = {}
    for cpu in available:
        free.setdefault(cpu.core, []).append(cpu)
    size = len(free) // len(cards)
    # Who has no node takes what is left.
    for name, node in sorted(cards, key=lambda card: card[1] is None):
        near = sorted(free, key=lambda core: (free[core][0].node != node, free[core]))[:size]
        own = {cpu.index for core in near for cpu in free.pop(core)}
        if name == uuid:
            break
    return own or {cpu.index for cpu in available}


def spare(core_sets: list[list[int]]) -> list[int] | None:
    """A CPU for what runs beside the members; None where they have them all.

    Of a physical core that none of them uses, where there is one.
    """
    available = topology()
    taken = {index for cpus in core_sets for index in cpus}
    busy = {cpu.core for cpu in available if cpu.index in taken}
    free = [cpu for cpu in available if cpu.index not in taken]
    found = min(free, key=lambda cpu: (cpu.core in busy, cpu), default=None)
    return None if found is None else [found.index]


def _size(cpus: list[Cpu], share: int) -> int:
    size = max(1, len(cpus) // share)
    threads = max(Counter(cpu.core for cpu in cpus).values())
    return size - size % threads if size >= threads else size


def _pick(order: list[Cpu], used: list[set[Cpu]], size: int) -> list[Cpu]:
    """The `size` least used CPUs and cores, within the first node that has as many free."""
    times = Counter(cpu for cpus in used for cpu in cpus)
    core_times = Counter(cpu.core for cpus in used for cpu in cpus)
    ranked = sorted(order, key=lambda cpu: (times[cpu], core_times[cpu.core]))
    for node in dict.fromkeys(cpu.node for cpu in order):
        free = [cpu for cpu in ranked if cpu.node == node and cpu not in times]
        if len(free) >= size:
            return free[:size]
    return ranked[:size]


def _overlap(sets: list[set]) -> bool:
    return sum(map(len, sets)) > len(set().union(*sets))
