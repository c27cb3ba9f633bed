"""What the members' processes and the machine use: CPU, memory, I/O.

Members are read from /proc directly: /proc/<pid>/stat has in one read what costs psutil three, and
one list of PIDs serves all members, where psutil would read every process of the machine for each.
Nothing here but PSS takes the lock of a member's memory.
"""

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the kernel counts a process's CPU time in these, 10 ms
PAGE = os.sysconf("SC_PAGE_SIZE")
ENDED = ("Z", "X")  # states of a process that is only waiting to be buried

Used = tuple[float, float, float]  # CPU seconds, bytes read, bytes written; NaN: refused
NOTHING: Used = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Process:
    """One process at one time. `used` is its own and that of children it has waited for.

    taken: what of `used` may come from children that were waited for; the kernel tells that apart
    for CPU time only. start: in kernel ticks, tells a PID's next owner from the last.
    """

    pid: int
    parent: int
    group: int
    start: int
    state: str
    threads: int
    rss: int
    used: Used
    taken: Used


@dataclass
class Tree:
    """The processes of one member. Once seen as the member's, a process stays so until it ends.

    What is counted of CPU time and I/O: all living processes of the member; children that ended
    and were waited for, even those between two looks (their parent's counters hold them); and of
    children that nobody in the tree waited for what they had used when last seen.
    """

    root: int
    processes: dict[int, Process] = field(default_factory=dict)  # parents before their children
    first: dict[int, Process] = field(default_factory=dict)
    owed: dict[int, Used] = field(default_factory=dict)  # parent → what its gone children had used
    lost: Used = NOTHING  # of processes gone without a parent in the tree
    since: tuple[int, Used] | None = None  # the row before: its time, and the sums then

    def update(self, found: dict[int, Process]) -> None:
        """Take in the tree's processes as they are now."""
        before, self.processes = self.processes, found
        for pid in found:
            self.first.setdefault(pid, found[pid])
        for pid, process in before.items():
            if pid not in found:
                self._bury(process, before)

    def _bury(self, process: Process, before: dict[int, Process]) -> None:
        used = _add(process.used, self._unpaid(process))
        del self.first[process.pid]
        self.owed.pop(process.pid, None)
        parent = process.parent
        while parent in before and parent not in self.processes:
            parent = before[parent].parent
        if parent in self.processes:
            self.owed[parent] = _add(self.owed.get(parent, NOTHING), used)
        else:
            self.lost = _add(self.lost, used)

    def _unpaid(self, process: Process) -> Used:
        """What gone children had used that their parent's counters do not hold.

        Asked anew at each look: a child may vanish just before its parent is credited.
        """
        if process.pid not in self.owed:
            return NOTHING
        first = self.first[process.pid].taken
        held = zip(self.owed[process.pid], process.taken, first, strict=True)
        return tuple(max(0.0, owed - (taken - start)) for owed, taken, start in held)

    def used(self) -> Used:
        total = self.lost
        for process in self.processes.values():
            total = _add(total, _add(process.used, self._unpaid(process)))
        return total

    def rates(self, now: int) -> dict[str, float | None]:
        """Means since the call before (None at the first): cores, bytes/s read and written."""
        used = self.used()
        before, self.since = self.since, (now, used)
        if before is None or now <= before[0]:
            return dict.fromkeys(("cpu", "read", "write"))
        seconds = (now - before[0]) / 1e9
        deltas = [(new - old) / seconds for new, old in zip(used, before[1], strict=True)]
        cpu, read, write = (None if math.isnan(each) else max(0.0, each) for each in deltas)
        return {"cpu": cpu, "read": read, "write": write}

    def sizes(self, gpu_memory: dict[int, int | None] | None) -> dict[str, int | None]:
        """Sums over the member's living processes; pages they share count once for each."""
        living = [each for each in self.processes.values() if each.state not in ENDED]
        return {
            "rss": sum(each.rss for each in living),
            "threads": sum(each.threads for each in living),
            "processes": len(living),
            "gpu_memory": _of_any((gpu_memory or {}).get(each.pid) for each in living),
        }

    def pss(self) -> int | None:
        """Proportional set size, bytes; None where one is refused. Holds the memory's lock."""
        sizes = [_pss(pid) for pid, each in self.processes.items() if each.state not in ENDED]
        return None if None in sizes else sum(sizes)


class Members:
    """All members of a cell, by their PIDs."""

    def __init__(self):
        self.trees: dict[int, Tree] = {}
        self._strangers: set[int] = set()

    def watch(self, pids: dict[int, int]) -> list[int]:
        """Look at these members, by index, from now on; the indices of those not there."""
        kept = {m: tree for m, tree in self.trees.items() if pids.get(m) == tree.root}
        self.trees = kept | {m: Tree(pid) for m, pid in pids.items() if m not in kept}
        self._strangers.clear()
        missing = []
        for member, tree in list(self.trees.items()):
            if not tree.processes and (process := _process(tree.root)):
                tree.update({tree.root: process})
            if not tree.processes:
                missing.append(member)
                del self.trees[member]
        return missing

    def rows(self, gpu_memory: dict[int, int | None] | None) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member whose own process lives.

        gpu_memory: bytes by PID, as NVML tells them; None where it does not.
        """
        self._adopt()
        rows = []
        for member in list(self.trees):
            now, tree = time.monotonic_ns(), self.trees[member]
            if self._refresh(member):
                values = tree.rates(now) | tree.sizes(gpu_memory) | {"pss": None}
                rows.append((now, member, values))
        return rows

    def pss(self, member: int, gpu_memory: dict[int, int | None] | None) -> dict | None:
        """A row of sizes with PSS, without rates; None when the member has ended."""
        if member not in self.trees or not self._refresh(member):
            return None
        tree = self.trees[member]
        rates = dict.fromkeys(("cpu", "read", "write"))
        return rates | tree.sizes(gpu_memory) | {"pss": tree.pss()}

    def _refresh(self, member: int) -> bool:
        """Read the member's processes again; False, and forget it, when its own has ended."""
        tree = self.trees[member]
        # In this order a child that is still there cannot be in its parent's counters already.
        again = ((pid, _process(pid)) for pid in tree.processes)
        tree.update({p: now for p, now in again if now and now.start == tree.first[p].start})
        root = tree.processes.get(tree.root)
        if root is None or root.state in ENDED:
            del self.trees[member]
            return False
        return True

    def _adopt(self) -> None:
        """Find the members' new processes. Who was a stranger once is not read again."""
        there = set(psutil.pids())
        self._strangers &= there
        known = {pid: tree for tree in self.trees.values() for pid in tree.processes}
        # A member leads a group of its own: what it left without a parent is found by that.
        groups = {t.root: t for t in self.trees.values() if t.processes[t.root].group == t.root}
        new = filter(None, map(_process, there - self._strangers - known.keys()))
        for process in sorted(new, key=lambda each: (each.start, each.pid)):  # parents first
            tree = known.get(process.parent) or groups.get(process.group)
            if tree is None:
                self._strangers.add(process.pid)
            else:
                tree.update(tree.processes | {process.pid: process})
                known[process.pid] = tree


class Machine:
    """The whole machine, also in a container; the disks are the physical ones."""

    def __init__(self):
        self._before: tuple[int, float, float | None, int | None, int | None] | None = None

    def row(self) -> tuple[int, dict[str, float | None]]:
        """(time, values): cores busy and disk rates (B/s) since the call before; sizes now."""
        now = time.monotonic_ns()
        times = psutil.cpu_times()
        # guest times are within user's; a hypervisor's `steal` is not our use
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        before, self._before = self._before, (now, busy, getattr(times, "steal", None), *_disks())
        memory = psutil.virtual_memory()
        return now, {
            "cpu_busy": _rate(before, self._before, 1),
            "cpu_stolen": _rate(before, self._before, 2),
            "memory_used": memory.used,
            "memory_available": memory.available,
            "disk_read": _rate(before, self._before, 3),
            "disk_write": _rate(before, self._before, 4),
            "load1": os.getloadavg()[0],
        }


def _rate(before: tuple | None, now: tuple, index: int) -> float | None:
    if before is None or None in (before[index], now[index]) or now[0] <= before[0]:
        return None
    return max(0.0, now[index] - before[index]) / ((now[0] - before[0]) / 1e9)


def _disks() -> tuple[int | None, int | None]:
    """Bytes read and written by devices of hardware; what lies on them would count twice."""
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    found = [each for name, each in counters.items() if Path(f"/sys/block/{name}/device").exists()]
    if not found:
        return None, None
    return sum(each.read_bytes for each in found), sum(each.write_bytes for each in found)


def _process(pid: int) -> Process | None:
    """A process as it is now; None when there is none of that PID."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # proc_pid_stat(5), from its third field on: the second is a name that may hold anything
    rest = text.rpartition(b")")[2].split()
    if len(rest) < 22:
        return None
    own, waited = int(rest[11]) + int(rest[12]), int(rest[13]) + int(rest[14])
    read, written = _io(pid)
    return Process(
        pid=pid,
        parent=int(rest[1]),
        group=int(rest[2]),
        start=int(rest[19]),
        state=rest[0].decode(),
        threads=int(rest[17]),
        rss=int(rest[21]) * PAGE,
        used=((own + waited) * TICK_S, read, written),
        taken=(waited * TICK_S, read, written),
    )


def _io(pid: int) -> tuple[float, float]:
    """Bytes that went to and from storage (not the page cache); NaN where the kernel refuses.

    The counters hold those of children that were waited for (wait_task_zombie in kernel/exit.c).
    """
    try:
        fields = dict(line.split(b":") for line in _read(f"/proc/{pid}/io").splitlines())
        return float(fields[b"read_bytes"]), float(fields[b"write_bytes"])
    except (OSError, KeyError, ValueError):
        return math.nan, math.nan


def _pss(pid: int) -> int | None:
    try:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except ProcessLookupError:
        return 0  # it has just ended
    except OSError:
        return None if Path(f"/proc/{pid}").exists() else 0
    return None


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a third of what open() costs
    try:
        return os.read(file, 8192)
    finally:
        os.close(file)


def _add(one: Used, other: Used) -> Used:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def _of_any(values) -> int | None:
    """The sum of those that are known, None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
