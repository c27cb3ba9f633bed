"""What the members' processes and the machine use: CPU, memory, I/O."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from workflow.collocation.process_lifetime import lives

ALWAYS = ("pid", "status", "cpu_times", "memory_info", "num_threads")  # refused to nobody
LOOK = (*ALWAYS, "io_counters")


class Rates:
    """Growth of counters per second since the call before.

    None at the first call, and for a counter that was not known at both.
    """

    def __init__(self):
        self._before: tuple[int, dict[str, float | None]] | None = None

    def since(self, now: int, counters: dict[str, float | None]) -> dict[str, float | None]:
        before, self._before = self._before, (now, counters)
        rates: dict[str, float | None] = dict.fromkeys(counters)
        if before is None:
            return rates
        seconds = (now - before[0]) / 1e9
        for name, value in counters.items():
            if None not in (value, before[1][name]):
                rates[name] = max(0.0, value - before[1][name]) / seconds
        return rates


class Members:
    """All members of a cell, each with the processes that it started.

    A process's CPU time and I/O hold those of the children that it has waited for, so nothing is
    lost of a loader worker that came and went between two looks.
    """

    def __init__(self):
        self._roots: dict[int, psutil.Process] = {}
        self._rates: dict[int, Rates] = {}

    def watch(self, pids: dict[int, int]) -> list[int]:
        """Look at these members, by index, from now on; the indices of those not there."""
        missing = []
        self._roots = {m: root for m, root in self._roots.items() if pids.get(m) == root.pid}
        for member in pids.keys() - self._roots.keys():
            try:
                self._roots[member] = psutil.Process(pids[member])
                self._rates[member] = Rates()
            except psutil.NoSuchProcess:
                missing.append(member)
        return missing

    def rows(self, gpu_memory: dict[int, int | None] | None) -> list[tuple[int, int, dict]]:
        """(time, member, values) of each member whose own process lives.

        gpu_memory: bytes by PID, as NVML tells them; None where it does not.
        """
        rows = []
        for member, processes in self._trees().items():
            now, looks = time.monotonic_ns(), _looks(processes)
            if not looks:  # it has ended meanwhile
                continue
            moved = [look["io_counters"] for look in looks]
            used = {
                "cpu": sum(sum(look["cpu_times"][:4]) for look in looks),
                "read": _sum(io and io.read_bytes for io in moved),
                "write": _sum(io and io.write_bytes for io in moved),
            }
            living = [look for look in looks if look["status"] != psutil.STATUS_ZOMBIE]
            listed = [(gpu_memory or {}).get(look["pid"]) for look in living]
            memory = [each for each in listed if each is not None]
            sizes = {
                "rss": sum(look["memory_info"].rss for look in living),
                "threads": sum(look["num_threads"] for look in living),
                "processes": len(living),
                "gpu_memory": sum(memory) if memory else None,
            }
            rows.append((now, member, self._rates[member].since(now, used) | sizes))
        return rows

    def _trees(self) -> dict[int, list[psutil.Process]]:
        """The processes of each member that lives."""
        self._roots = {m: root for m, root in self._roots.items() if lives(root)}
        trees = {member: [root] for member, root in self._roots.items()}
        owner = {root.pid: member for member, root in self._roots.items()}
        # Through what forked them, so that one look at the machine's processes serves all members.
        for parent in set(filter(None, map(_parent, self._roots.values()))):
            for process in parent.children(recursive=True):  # parents before their children
                with suppress(psutil.NoSuchProcess):
                    member = owner.get(process.ppid())
                    if member is not None:
                        owner[process.pid] = member
                        trees[member].append(process)
        return trees


def _parent(process: psutil.Process) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return process.parent()
    return None


class Machine:
    """The whole machine, also in a container; the disks are the physical ones."""

    def __init__(self):
        self._rates = Rates()

    def row(self) -> tuple[int, dict[str, float | None]]:
        """(time, values): cores busy and disk rates (B/s) since the call before; sizes now."""
        now, times, memory = time.monotonic_ns(), psutil.cpu_times(), psutil.virtual_memory()
        read, written = _disks()
        counters = {
            # guest times are within user's; a hypervisor's `steal` is not our use
            "cpu_busy": times.user + times.nice + times.system + times.irq + times.softirq,
            "cpu_stolen": getattr(times, "steal", None),
            "disk_read": read,
            "disk_write": written,
        }
        return now, self._rates.since(now, counters) | {
            "memory_used": memory.used,
            "memory_available": memory.available,
            "load1": os.getloadavg()[0],
        }


def _disks() -> tuple[int | None, int | None]:
    """Bytes read and written by devices of hardware; what lies on them would count twice."""
    counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    found = [each for name, each in counters.items() if Path(f"/sys/block/{name}/device").exists()]
    if not found:
        return None, None
    return sum(each.read_bytes for each in found), sum(each.write_bytes for each in found)


def _looks(processes: list[psutil.Process]) -> list[dict]:
    """The processes as they are now, without those that are gone; refused is None."""
    looks = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            looks.append(process.as_dict(LOOK))
    return [look for look in looks if None not in map(look.get, ALWAYS)]  # else it is just going


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one of them is not known."""
    found = list(values)
    return None if None in found else sum(found)
