"""What the members' processes and the machine use: CPU, memory, I/O."""

import time
from contextlib import suppress

import psutil


class Rates:
    """Growth of counters per second since the call before; None where one was not known."""

    def __init__(self):
        self._before: tuple[int, dict[str, float | None]] | None = None

    def since(self, now: int, counters: dict[str, float | None]) -> dict[str, float | None]:
        (then, before), self._before = self._before or (now, {}), (now, counters)
        return {
            name: None
            if None in (value, before.get(name))
            else max(0.0, value - before[name]) / ((now - then) / 1e9)
            for name, value in counters.items()
        }


class Members:
    """All members of a cell, each with the processes that it started.

    A process's CPU time and I/O hold those of the children that it has waited for, so nothing is
    lost of a loader worker that came and went between two looks.
    """

    def __init__(self):
        self._rates: dict[int, Rates] = {}  # by PID of a member
        self._members: dict[int, int] = {}

    def watch(self, pids: dict[int, int]) -> None:
        """Look at these members, by index, from now on."""
        self._members = {pid: member for member, pid in pids.items()}
        self._rates = {pid: self._rates.get(pid, Rates()) for pid in self._members}

    def rows(self, gpu_memory: dict[int, int | None]) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member that has not ended.

        gpu_memory: bytes by PID, as NVML tells them.
        """
        rows = []
        for root, processes in self._trees().items():
            now = time.monotonic_ns()
            looks = [look for look in map(_look, processes) if look]
            alive = [look for look in looks if look["memory"] is not None]
            if root not in [look["pid"] for look in alive]:
                continue
            moved = [look["io"] for look in looks]
            known = None not in moved
            used = {
                "cpu": sum(look["cpu"] for look in looks),
                "read": sum(io.read_bytes for io in moved) if known else None,
                "write": sum(io.write_bytes for io in moved) if known else None,
            }
            listed = [gpu_memory.get(look["pid"]) for look in alive]
            sizes = {
                "rss": sum(look["memory"] for look in alive),
                "gpu_memory": sum(each for each in listed if each is not None) or None,
            }
            rows.append((now, self._members[root], self._rates[root].since(now, used) | sizes))
        return rows

    def _trees(self) -> dict[int, list[psutil.Process]]:
        """The processes of each member, by its PID: one look at the machine's serves them all."""
        if not self._members:
            return {}
        there = {process.pid: process for process in psutil.process_iter()}
        parents = {}
        for pid, process in there.items():
            with suppress(psutil.NoSuchProcess):
                parents[pid] = process.ppid()
        trees: dict[int, list] = {pid: [] for pid in self._members}
        for pid, process in there.items():
            while pid and pid not in trees:
                pid = parents.get(pid)
            if pid:
                trees[pid].append(process)
        return trees


class Machine:
    """The whole machine, also in a container."""

    def __init__(self):
        self._rates = Rates()

    def row(self) -> tuple[int, dict[str, float | None]]:
        """(time, values): cores busy since the call before; sizes now."""
        now, times, memory = time.monotonic_ns(), psutil.cpu_times(), psutil.virtual_memory()
        counters = {
            # guest times are within user's; a hypervisor's `steal` is not our use
            "cpu_busy": times.user + times.nice + times.system + times.irq + times.softirq,
            "cpu_stolen": getattr(times, "steal", None),
        }
        sizes = {"memory_used": memory.used, "memory_available": memory.available}
        return now, self._rates.since(now, counters) | sizes


def _look(process: psutil.Process) -> dict | None:
    """The process as it is now: no memory of one that has ended, no I/O where that is refused."""
    with suppress(psutil.NoSuchProcess):
        try:
            io = process.io_counters()
        except psutil.AccessDenied:
            io = None
        ended = process.status() == psutil.STATUS_ZOMBIE
        memory = None if ended else process.memory_info().rss
        return {"pid": process.pid, "cpu": sum(process.cpu_times()[:4]), "io": io, "memory": memory}
    return None
