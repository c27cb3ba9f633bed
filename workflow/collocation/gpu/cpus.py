"""How many CPUs this process may use: its affinity, and the quotas of its control groups.

A container's quota (`docker run --cpus`, a Kubernetes limit) leaves the affinity as it is: whoever
has more threads than it allows is held up for the rest of each period, mostly 0.1 s.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
STAT = ("periods", "throttled")


def usable(root: Path = ROOT) -> int:
    """Whole CPUs that this process can keep busy, at least one."""
    count = len(os.sched_getaffinity(0))
    found = quota(root)
    return count if found is None else max(1, min(count, int(found)))


def quota(root: Path = ROOT) -> float | None:
    """CPUs that our control groups allow, in CPU seconds a second; None without a quota."""
    found = (_quota(folder) for folder in _folders(root))
    return min((each for each in found if each is not None), default=None)


def periods(root: Path = ROOT) -> tuple[int, int]:
    """Periods of our quotas so far, and those in which one was used up and processes held up."""
    ours = [folder for folder in _folders(root) if _quota(folder) is not None]
    stats = [dict(line.split() for line in lines(folder / "cpu.stat")) for folder in ours]
    every, held = (sum(int(each.get(f"nr_{key}", 0)) for each in stats) for key in STAT)
    return every, held


def _quota(folder: Path) -> float | None:
    """cgroup v2: `MAX PERIOD`, max for none; v1: two files, -1 for none."""
    words = " ".join(lines(folder / "cpu.max")).split() or [
        word for name in ("quota", "period") for word in lines(folder / f"cpu.cfs_{name}_us")
    ]
    with suppress(ValueError):  # of max, and of no files
        most, period = map(int, words)
        return most / period if most > 0 and period > 0 else None
    return None


def _folders(root: Path) -> Iterator[Path]:
    """Folders of this process's CPU control group and of those that it lies in, as far as shown.

    In a container the topmost one shown may be its own, whatever path the kernel tells.
    """
    paths = {}
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in lines(root / "proc/self/mountinfo"):
        mount, _, kind = line.partition(" - ")
        _, _, _, top, place, *_ = mount.split()
        version, *_, options = kind.split()
        controller = {"cgroup2": "", "cgroup": "cpu"}.get(version)
        if controller not in paths or controller not in ["", *options.split(",")]:
            continue
        inside = os.path.relpath(paths[controller], top)
        parts = [] if inside.startswith("..") else Path(inside).parts
        for depth in range(len(parts) + 1):
            yield Path(root, place.lstrip("/"), *parts[:depth])


def lines(path: Path) -> list[str]:
    """Of a file; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
