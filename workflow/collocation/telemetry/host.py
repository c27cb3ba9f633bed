"""CPU, memory and I/O of the members' processes, and of the whole machine."""

import time
from contextlib import suppress

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
ATTRIBUTES = ["pid", "cpu_times", "io_counters", "memory_info", "status"]


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


class MemberProcesses:
    """All members of a cell, each with the processes that it started.

    A process's CPU time and I/O include those of the children that it has waited for, so nothing is
    lost of a loader worker that came and went between two readings.
    """

    def __init__(self):
        self._members: dict[int, tuple[int, CounterRates]] = {}  # PID → member, its rates

    def watch(self, pids: dict[int, int]) -> None:
        """Read these members from now on, and no others; pids: by member."""
        before = self._members
        self._members = {
            pid: before.get(pid, (member, CounterRates())) for member, pid in pids.items()
        }

    def rows(self, gpu_memory: dict[int, int]) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member that has not ended; gpu_memory: bytes by PID."""
        rows = []
        for root, processes in self._trees().items():
            (member, rates), t_ns = self._members[root], time.monotonic_ns()
            readings = []
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    readings.append(process.as_dict(ATTRIBUTES))  # None for what is refused
            alive = [r for r in readings if r["status"] != psutil.STATUS_ZOMBIE]
            pids = {reading["pid"] for reading in alive}
            if root not in pids:
                continue
            counters = {"cpu": sum(sum(reading["cpu_times"][:4]) for reading in readings)}
            for name in ("read", "write"):
                moved = [getattr(r["io_counters"], f"{name}_bytes", None) for r in readings]
                counters[name] = None if None in moved else sum(moved)
            sizes = {
                "rss": sum(reading["memory_info"].rss for reading in alive),
                "gpu_memory": sum(gpu_memory.get(pid, 0) for pid in pids) or None,
            }
            rows.append((t_ns, member, rates.update(t_ns, counters) | sizes))
        return rows

    def _trees(self) -> dict[int, list[psutil.Process]]:
        """The processes of each member, by its PID, from one listing of the machine's."""
        if not self._members:
            return {}
        processes = {process.pid: process for process in psutil.process_iter(["ppid"])}
        trees: dict[int, list] = {pid: [] for pid in self._members}
        for pid, process in processes.items():
            while pid in processes and pid not in trees:
                pid = processes[pid].info["ppid"]
            if pid in trees:
                trees[pid].append(process)
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
