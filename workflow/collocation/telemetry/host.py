"""What the members' processes and the machine use: CPU, memory, I/O."""

import time
from contextlib import suppress

import psutil

LOOKS = ["pid", "cpu_times", "io_counters", "memory_info", "status"]


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
        self._members: dict[int, tuple[int, Rates]] = {}  # by PID

    def watch(self, pids: dict[int, int]) -> None:
        """Look at these members, by index, from now on."""
        known = self._members
        self._members = {pid: known.get(pid, (member, Rates())) for member, pid in pids.items()}

    def rows(self, gpu_memory: dict[int, int]) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member that has not ended; gpu_memory: bytes by PID."""
        rows = []
        for root, processes in self._trees().items():
            (member, rates), now, looks = self._members[root], time.monotonic_ns(), []
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    looks.append(process.as_dict(LOOKS))  # None for what is refused
            alive = {of["pid"]: of for of in looks if of["status"] != psutil.STATUS_ZOMBIE}
            if root not in alive:
                continue
            counters = {"cpu": sum(sum(of["cpu_times"][:4]) for of in looks)}
            for name in ("read", "write"):
                moved = [getattr(of["io_counters"], f"{name}_bytes", None) for of in looks]
                counters[name] = None if None in moved else sum(moved)
            sizes = {
                "rss": sum(of["memory_info"].rss for of in alive.values()),
                "gpu_memory": sum(gpu_memory.get(pid, 0) for pid in alive) or None,
            }
            rows.append((now, member, rates.since(now, counters) | sizes))
        return rows

    def _trees(self) -> dict[int, list[psutil.Process]]:
        """The processes of each member, by its PID: one look at the machine's serves them all."""
        there = {p.pid: p for p in psutil.process_iter(["ppid"])} if self._members else {}
        trees: dict[int, list] = {pid: [] for pid in self._members}
        for pid, process in there.items():
            while pid in there and pid not in trees:
                pid = there[pid].info["ppid"]
            if pid in trees:
                trees[pid].append(process)
        return trees


class Machine:
    """The whole machine, also in a container."""

    def __init__(self):
        self._rates = Rates()

    def row(self) -> tuple[int, dict[str, float | None]]:
        """(time, values): cores busy since the call before; sizes now."""
        now, times, memory = time.monotonic_ns(), psutil.cpu_times(), psutil.virtual_memory()
        # Guest times are within user's; a hypervisor's `steal` is not our use.
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return now, self._rates.since(now, {"cpu_busy": busy}) | {"memory_used": memory.used}
