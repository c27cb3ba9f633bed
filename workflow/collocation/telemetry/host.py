"""CPU, memory and I/O of the members' processes, and of the whole machine."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from workflow.collocation.telemetry.base import Metric

# Of a member: its process and those that it started.
MEMBER_METRICS = (
    Metric("cpu", "1", "rate", "CPU cores in use"),
    Metric("rss", "B", "gauge", "resident memory"),
    Metric("read", "B/s", "rate", "read from storage"),
    Metric("write", "B/s", "rate", "written to storage"),
    Metric("gpu_memory", "B", "gauge", "device memory, as NVML lists it"),
)
HOST_METRICS = (
    Metric("cpu_busy", "1", "rate", "CPU cores in use, by whomever"),
    Metric("memory_used", "B", "gauge", "memory in use, by whomever"),
)
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the program's name: process state, PID of the parent, and CPU time
# in user and system mode, by the process itself and by children that it has waited for.
STATE, PARENT, CPU = 0, 1, slice(11, 15)


class CounterRates:
    """Growth of counters per second since the call before; None where a counter was not known."""

    def __init__(self):
        self._previous: tuple[int, dict[str, float | None]] | None = None

    def update(self, t_ns: int, counters: dict[str, float | None]) -> dict[str, float | None]:
        """The rates up to this time (monotonic ns)."""
        previous_ns, previous = self._previous or (t_ns, {})
        self._previous = t_ns, counters
        rates: dict[str, float | None] = {}
        for name, value in counters.items():
            if value is None or previous.get(name) is None:
                rates[name] = None
            else:
                rates[name] = max(0.0, value - previous[name]) / ((t_ns - previous_ns) / 1e9)
        return rates


@dataclass(frozen=True)
class ProcessUsage:
    """What one process used so far: CPU seconds, resident bytes, bytes from and to storage (None
    where the kernel refuses); alive: whether it is no zombie.

    Read from /proc without psutil, which takes several times as long.
    """

    alive: bool
    cpu: float
    rss: int
    read: int | None
    write: int | None

    @classmethod
    def of(cls, pid: int) -> "ProcessUsage":
        """Read the process with this PID. Raises OSError where there is none."""
        stat, read, write = _stat(pid), None, None
        with suppress(PermissionError, FileNotFoundError):  # not every kernel has it
            moved = dict(line.split(b": ") for line in _read(f"/proc/{pid}/io").splitlines())
            read, write = int(moved[b"read_bytes"]), int(moved[b"write_bytes"])
        resident_pages = int(_read(f"/proc/{pid}/statm").split()[1])
        cpu_s = sum(map(int, stat[CPU])) / TICKS
        return cls(stat[STATE] not in (b"Z", b"X"), cpu_s, resident_pages * PAGE, read, write)


class MemberProcesses:
    """All members of a cell, each with the processes that it started.

    A process's CPU time and I/O include those of the children that it has waited for, so nothing is
    lost of a loader worker that came and went between two readings.
    """

    def __init__(self):
        self._members: dict[int, tuple[int, CounterRates]] = {}  # PID → member, its rates
        self._parents: dict[int, int] = {}  # of all processes of this machine, by PID

    def watch(self, pids: dict[int, int]) -> None:
        """Read these members from now on, and no others; pids: by member."""
        before = self._members
        self._parents = {}  # a PID may be another process's by now
        self._members = {
            pid: before.get(pid, (member, CounterRates())) for member, pid in pids.items()
        }

    def rows(self, gpu_memory: dict[int, int]) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member that has not ended; gpu_memory: bytes by PID."""
        rows = []
        for root, pids in self._trees().items():
            (member, rates), t_ns = self._members[root], time.monotonic_ns()
            usages: dict[int, ProcessUsage] = {}
            for pid in pids:
                with suppress(OSError):  # it has ended
                    usages[pid] = ProcessUsage.of(pid)
            alive = {pid: usage for pid, usage in usages.items() if usage.alive}
            if root not in alive:
                continue
            counters = {"cpu": sum(usage.cpu for usage in usages.values())}
            for name in ("read", "write"):
                moved = [getattr(usage, name) for usage in usages.values()]
                counters[name] = None if None in moved else sum(moved)
            sizes = {
                "rss": sum(usage.rss for usage in alive.values()),
                "gpu_memory": sum(gpu_memory.get(pid, 0) for pid in alive) or None,
            }
            rows.append((t_ns, member, rates.update(t_ns, counters) | sizes))
        return rows

    def _trees(self) -> dict[int, list[int]]:
        """PIDs of the processes of each member, by its PID, from one listing of the machine's.

        A machine with many cores has hundreds of processes, most of them the kernel's, so only the
        parents of those that are new are read, and of those whose parent has ended.
        """
        if not self._members:
            return {}
        pids = set(psutil.pids())
        self._parents = {
            pid: parent for pid, parent in self._parents.items() if pid in pids and parent in pids
        }
        for pid in pids - self._parents.keys():
            with suppress(OSError):  # it has ended
                self._parents[pid] = int(_stat(pid)[PARENT])
        trees: dict[int, list[int]] = {pid: [] for pid in self._members}
        for pid in self._parents:
            ancestor = pid
            while ancestor in self._parents and ancestor not in trees:
                ancestor = self._parents[ancestor]
            if ancestor in trees:
                trees[ancestor].append(pid)
        return trees


class HostUsage:
    """CPU and memory of the whole machine, also in a container."""

    def __init__(self):
        self._rates = CounterRates()

    def row(self) -> tuple[int, dict[str, float | None]]:
        """(time, values): cores busy since the call before; sizes now."""
        t_ns, times, memory = time.monotonic_ns(), psutil.cpu_times(), psutil.virtual_memory()
        # Guest times are within user's; a hypervisor's `steal` is not our use.
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return t_ns, self._rates.update(t_ns, {"cpu_busy": busy}) | {"memory_used": memory.used}


def _read(path: str) -> bytes:
    """A file of /proc; faster than pathlib, for hundreds of them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name, which may hold spaces and brackets."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
