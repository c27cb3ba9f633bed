"""What a cell says in one number, and estimates of it over replicates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from analysis import metrics
from analysis.names import AFTER, BEFORE, family_of
from analysis.statistics import Estimate, pooled_estimates
from analysis.views import DEPARTURE, Key, View, agree, alone, provenance

# What a cell says in one number; None where it does not. All are > 0, for their logs are taken.


def gain(view: View) -> float | None:
    """STP, which for like members is the paper's throughput gain over serial."""
    found = view.progresses()
    return None if found is None else metrics.stp(found)


def slowdown(view: View, workload: str | None = None) -> float | None:
    """Mean slowdown of its members (of `workload`)."""
    found = view.progresses(workload)
    return None if found is None else metrics.antt(found)


def worst_slowdown(view: View) -> float | None:
    """Slowdown of the member that suffers most."""
    found = view.progresses()
    return None if found is None else metrics.slowdown(min(found), 1.0)


def spread(view: View) -> float | None:
    """Fastest over slowest of members that are alike."""
    if "spread" in view.readings:
        return view.readings["spread"]
    rates = [m.rate for m in view.members]
    alike = len({m.workload for m in view.members}) == 1 and not view.averaged
    if len(rates) < 2 or not alike or not all(rates):
        return None
    return max(rates) / min(rates)


def reclaimed(view: View) -> float | None:
    """Survivors' rates after one member left over their rates before (geometric mean)."""
    ratios = [m.rate / m.before for m in view.members if m.rate and m.before]
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def energy_over_serial(view: View) -> float | None:
    """Energy per sample of the set over that of the same samples one job after the other."""
    both = reading("energy")(view), reading("serial_energy")(view)
    return both[0] / both[1] if all(both) else None


def gract_over_smact(view: View) -> float | None:
    both = reading("gract")(view), reading("smact")(view)
    return both[0] / both[1] if all(both) else None


def time_of_fixed_work(work: Mapping[str, float]) -> Callable[[View], float | None]:
    """Time until a set's fixed work is done over that of the jobs one after the other.

    `work` is what each workload's job takes alone (any unit of time). Jobs overlap at their
    collocated rates; what is left when the others are done runs at its rate alone, but under MIG
    at its collocated rate, for an instance does not grow.
    """

    def time(view: View) -> float | None:
        names = [m.workload for m in view.members]
        if not names or set(names) - work.keys():
            return None
        jobs = [work[name] for name in names]
        serial = metrics.serial_time(jobs, [1.0] * len(jobs))
        if view.total is not None:
            return view.total / serial
        rates = view.progresses()
        if rates is None:
            return None
        left = rates if family_of(view.key.method) == "mig" else [1.0] * len(jobs)
        return metrics.makespan(jobs, rates, left) / serial

    return time


def reading(name: str) -> Callable[[View], float | None]:
    """A window's own reading, by name: gract, smact (shares), memory (used), capacity, reserved
    (what the members' allocators held at most; GB), energy, serial_energy (J/sample).
    """

    def read(view: View) -> float | None:
        return view.readings.get(name) or None

    return read


@dataclass(frozen=True)
class Quantity:
    """A number of a cell: how it is called, had, and missed."""

    name: str
    of: Callable[[View], float | None]
    unit: str = ""
    missing: str = "no alone run on the same GPU in its block"
    window: str = ""  # the window of a departure cell that it is of: before, unless it says so
    by_method: bool = False  # variance is pooled over cells of the same method only
    relative: bool = False  # to its jobs alone: 1 where the cell is its own baseline


_NOT_RECORDED = "the telemetry of its window does not hold it"
_QUANTITIES = {
    "gain": Quantity("gain", gain, relative=True),
    "spread": Quantity(
        "fastest over slowest member", spread, missing="it has no members alike", by_method=True
    ),
    "reclaimed": Quantity(
        "speed of the jobs that stay, after over before the other left",
        reclaimed,
        missing="it has no survivor with both windows",
        window=AFTER,
        by_method=True,
    ),
    "gract": Quantity("GRACT", reading("gract"), missing=_NOT_RECORDED),
    "smact": Quantity("SMACT", reading("smact"), missing=_NOT_RECORDED),
    "gract_over_smact": Quantity("GRACT over SMACT", gract_over_smact, missing=_NOT_RECORDED),
    "memory": Quantity("GPU memory used", reading("memory"), "GB", missing=_NOT_RECORDED),
    "capacity": Quantity("memory of the GPU", reading("capacity"), "GB", missing=_NOT_RECORDED),
}
# What claims may look at.
NAMES = (*_QUANTITIES, "slowdown", "time")


def quantity(
    name: str, member: str | None = None, work: Mapping[str, float] | None = None
) -> Quantity:
    """A quantity of NAMES; slowdown may be of one `member`'s workload, time needs `work`."""
    if name == "slowdown":
        whose = f" of {member}" if member else ""
        return Quantity(f"slowdown{whose}", lambda view: slowdown(view, member), relative=True)
    if name == "time":
        time = time_of_fixed_work(work or {})
        return Quantity("time for fixed work over serial", time, relative=True)
    return _QUANTITIES[name]


class Measurements:
    """Views by key, and estimates over their replicates."""

    def __init__(self, views: Iterable[View]):
        self._views: dict[Key, list[View]] = defaultdict(list)
        self._elsewhere: dict[Key, list[View]] = defaultdict(list)
        for view in views:
            (self._views if view.current else self._elsewhere)[view.key].append(view)

    def cells(self) -> list[Key]:
        """Every key that has a view."""
        return list(self._views)

    def at(self, key: Key, window: str = "") -> list[View]:
        """The key's replicates: of a departure one of its windows (before, by default)."""
        wanted = window or (BEFORE if key.variant == DEPARTURE else "")
        views = self._views.get(key, [])
        return [v for v in views if not wanted or v.window in (None, wanted)]

    def references(self, key: Key, window: str = "") -> dict[tuple[int, str], View]:
        """Block and device → the key's completed cell there: what others there are held against.

        A job alone that was measured anew on another device has one on each.
        """
        views = [*self.at(key, window), *self._elsewhere.get(key, [])]
        return {view.place: view for view in reversed(views) if view.completed}

    def values(
        self, what: Quantity, key: Key, over: Key | None = None, parts: bool = False
    ) -> list[tuple[View, float]]:
        """The quantity of each completed replicate; divided, within block and device, by that of
        `over`, or with `parts` by the sum over its jobs alone.
        """
        divisors = [(1, over)] if over is not None else []
        if parts:
            divisors = [(count, alone(name)) for name, count in key.parts]
        there = [(count, self.references(each, what.window)) for count, each in divisors]
        found = []
        for view in self.at(key, what.window):
            value = what.of(view) if view.completed else None
            sizes = [(count, what.of(at[view.place])) for count, at in there if view.place in at]
            known = len(sizes) == len(there) and all(size for _, size in sizes)
            if value and known:
                below = math.fsum(count * size for count, size in sizes) if there else 1.0
                found.append((view, value / below))
        return found

    def estimate(
        self, what: Quantity, key: Key, over: Key | None = None, parts: bool = False
    ) -> Estimate | None:
        """Geometric mean over replicates (see `values`), with its 95 % interval.

        The variance is pooled over all cells of the key's family, each taken over the same
        reference; of other GPU models, data or code than the key's own they do not count. Cells of
        one block and device are not independent (analysis.statistics).
        """
        own = provenance(view for view, _ in self.values(what, key, over, parts))
        ratios, fixed = {}, set()
        for other in self._views:
            if other.family != key.family or (what.by_method and other.method != key.method):
                continue
            ratios[other] = {
                view.place: value
                for view, value in self.values(what, other, over, parts)
                if other == key or agree(view.provenance, own)
            }
            itself = parts or (over is None and what.relative)
            if other == over or (itself and other.is_baseline):
                fixed.add(other)
        return pooled_estimates(ratios, fixed).get(key)

    def mean(self, what: Quantity, key: Key) -> float | None:
        """Geometric mean over the completed replicates, without an interval."""
        values = [value for _, value in self.values(what, key)]
        return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def why_missing(measured: Measurements, what: Quantity, key: Key) -> str:
    """Why a key has no such number, in words; empty where it has."""
    views = measured.at(key, what.window)
    if not views:
        return f"the study has no cell {key.label}"
    if measured.values(what, key):
        return ""
    ended = [view for view in views if not view.completed]
    if not ended:
        return f"{key.label}: {what.name} is not known: {what.missing}"
    # The same cell fails for the same reason: the first that tells one stands for all.
    told = next((view for view in ended if view.reason), ended[0])
    status = told.status.replace("_", " ")
    return f"{key.label}: {status}{f': {told.reason}' if told.reason else ''}"
