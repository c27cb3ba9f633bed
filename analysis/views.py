"""Cells as claims and guidelines see them: a replicate of a set of jobs, in one window.

They are made of what was measured (views_of_runs) and of what the paper reports
(analysis.reported), so that both come to their conclusions by the same functions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from analysis import flags, metrics
from analysis.cells import NOT_RUN
from analysis.names import AFTER, ALONE_VARIANTS, BEFORE, parse_scenario
from analysis.words import number_of

GB = 1e9
DEPARTURE = "departure"
# Readings of a window: ours → (column of runs.parquet, what one of ours is in the column's unit).
_READINGS = {
    "gract": ("gract", 1.0),
    "smact": ("smact", 1.0),
    "memory": ("gpu_memory_used", GB),
    "capacity": ("gpu_memory_total", GB),
    "energy": ("energy_per_sample", 1.0),
    "serial_energy": ("serial_energy_per_sample", 1.0),
}
# Columns of runs.parquet that views are made of.
_COLUMNS = (
    *("cell", "scenario", "method", "block", "attempt", "current", "status", "reason", "flags"),
    *("member", "workload", "window", "samples_per_s", "baseline_samples_per_s", "baseline_cell"),
    *("device", "hardware", "digest", "dataset", "source", "memory_peak_reserved"),
    *(column for column, _ in _READINGS.values()),
)


@dataclass(frozen=True)
class Key:
    """A set of jobs under a method: what replicates have in common. `parts` are sorted."""

    parts: tuple[tuple[str, int], ...]
    method: str
    variant: str = ""

    @staticmethod
    def of(parts: Mapping[str, int] | Iterable[tuple[str, int]], method: str, variant: str = ""):
        return Key(tuple(sorted(dict(parts).items())), method, variant)

    @property
    def n(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def family(self) -> tuple[str, ...]:
        """Its distinct workloads: keys of one family pool their variance."""
        return tuple(name for name, _ in self.parts)

    @property
    def label(self) -> str:
        """For people: `2× a + 1× b, mps`."""
        text = " + ".join(f"{count}× {name}" for name, count in self.parts)
        return f"{text}{f' ({self.variant})' if self.variant else ''}, {self.method}"

    @property
    def is_baseline(self) -> bool:
        """Its progress is 1 by construction."""
        return self.n == 1 and self.method == "naive" and self.variant in ALONE_VARIANTS


@dataclass(frozen=True)
class Member:
    """One job in a window; rates in samples/s, or any unit that all of a view's members share."""

    workload: str
    rate: float | None
    alone: float | None
    before: float | None = None  # its rate before another one left


@dataclass(frozen=True)
class View:
    """One replicate of a key, in one window (None where there was none)."""

    key: Key
    block: int
    device: str
    status: str
    window: str | None = None
    members: tuple[Member, ...] = ()
    averaged: bool = False  # its members' rates are their common mean
    readings: Mapping[str, float] = field(default_factory=dict)
    total: float | None = None  # time until both jobs of a pair were done, where that was measured
    reason: str | None = None
    cell: str = ""
    # What must be equal in a comparison: field → values, the baseline's included.
    provenance: Mapping[str, frozenset[str]] = field(default_factory=dict)
    flags: str = ""
    current: bool = True  # False: a job alone whose block went on elsewhere; a reference only

    @property
    def place(self) -> tuple[int, str]:
        """Block and device: what is compared shares them."""
        return self.block, self.device

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    def progresses(self, workload: str | None = None) -> list[float] | None:
        """Normalised progress of its members (of `workload`); None where one is not known."""
        members = [m for m in self.members if workload in (None, m.workload)]
        if not members or any(not m.rate or not m.alone for m in members):
            return None
        return [metrics.progress(m.rate, m.alone) for m in members]


def alone(workload: str) -> Key:
    """The job alone, naive."""
    return Key(((workload, 1),), "naive")


def provenance(views: Iterable[View]) -> dict[str, frozenset[str]]:
    """Field → all values that the views have in it."""
    found: dict[str, set[str]] = defaultdict(set)
    for view in views:
        for name, values in view.provenance.items():
            found[name] |= values
    return {name: frozenset(values) for name, values in found.items()}


def agree(one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]) -> bool:
    """Whether both have the same values in every field that both have."""
    return all(values == other.get(name, values) for name, values in one.items())


def views_of_runs(
    runs: pd.DataFrame, expected: Iterable[dict] = (), arm: str = "faithful"
) -> list[View]:
    """The cells of one arm, a view per replicate and window; `runs` are member rows of
    runs.parquet. Expected cells without a record become views of status `not_run`.

    Attempts that are not current are there only as references: completed jobs alone on devices
    where other cells of their block were measured.
    """
    known = [name for name in _COLUMNS if name in runs]
    rows = runs.loc[runs["arm"] == arm, known].astype(object)
    sources, cells = defaultdict(list), defaultdict(list)
    for row in rows.where(rows.notna(), None).to_dict("records"):
        sources[row["cell"], row["device"]].append(_provenance(row))
        if row["current"] or row["status"] == "completed":
            cells[row["scenario"], row["method"], row["block"], row["attempt"]].append(row)
    views = [view for members in cells.values() for view in _views(members, sources)]
    views = [view for view in views if view.current or view.key.is_baseline]
    seen = {(scenario, method, block) for scenario, method, block, _ in cells}
    for cell in expected:
        place = cell["scenario"], cell["method"], cell["replicate"]
        if cell["arm"] == arm and place not in seen:
            views.append(View(_key(*place[:2]), place[2], "", NOT_RUN))
    return views


def _key(scenario: str, method: str) -> Key:
    parsed = parse_scenario(scenario)
    return Key.of(parsed.parts, method, parsed.variant)


def _views(rows: list[dict], sources: dict) -> Iterable[View]:
    """The views of one cell: one per window, or one without."""
    first = rows[0]
    cell = View(
        key=_key(first["scenario"], first["method"]),
        block=first["block"],
        device=first["device"] or "",
        status=first["status"],
        reason=first["reason"],
        cell=first["cell"],
        flags=first["flags"] or "",
        current=bool(first["current"]),
    )
    windows = defaultdict(list)
    for row in rows:
        windows[row["window"]].append(row)
    for name, members in windows.items():
        if name is None:
            if len(windows) == 1:
                yield replace(cell, provenance=_union([_provenance(row) for row in members]))
            continue
        before = {
            row["member"]: row["samples_per_s"] for row in windows.get(BEFORE, ()) if name == AFTER
        }
        used = [_provenance(row) for row in members]
        for row in members:
            used += sources.get((row["baseline_cell"], row["device"]), [])
        yield replace(
            cell,
            window=name,
            members=tuple(
                Member(
                    row["workload"],
                    row["samples_per_s"],
                    row["baseline_samples_per_s"],
                    before.get(row["member"]),
                )
                for row in members
            ),
            readings=_readings(members),
            provenance=_union(used),
        )


def _readings(members: list[dict]) -> dict[str, float]:
    """What a window's rows tell of the set: the same in all of them, and the sum of reserved."""
    found = {
        ours: members[0][column] / scale
        for ours, (column, scale) in _READINGS.items()
        if members[0].get(column) is not None
    }
    reserved = [row["memory_peak_reserved"] for row in members]
    if None not in reserved:
        found["reserved"] = math.fsum(reserved) / GB
    return found


def _provenance(row: dict) -> dict[str, str | None]:
    """What must be equal in a comparison; a field without a value tells nothing."""
    found = {"GPU model": row["hardware"], "trainer digest": row["digest"]}
    if row["dataset"] is not None:
        found[f"source of {row['dataset']}"] = row["source"]
    return found


def _union(found: list[dict]) -> dict[str, frozenset[str]]:
    result: dict[str, set[str]] = defaultdict(set)
    for entry in found:
        for name, value in entry.items():
            if value is not None:
                result[name].add(str(value))
    return {name: frozenset(values) for name, values in result.items()}


def differences(views: Iterable[View]) -> list[str]:
    """What must be equal in a comparison and is not, a phrase per field; methods not proven, and
    GPUs that were not the cells' own.
    """
    views = list({(view.cell, view.device, view.window): view for view in views}.values())
    found = []
    for name, values in sorted(provenance(views).items()):
        if len(values) > 1:
            counts = {
                value: sum(value in view.provenance.get(name, ()) for view in views)
                for value in sorted(values)
            }
            listed = ", ".join(
                f"{value} ({number_of(count, 'cell')})" for value, count in counts.items()
            )
            found.append(f"{name} differs: {listed}")
    if cells := flagged(views, flags.UNVERIFIED):
        found.append(f"the method was not proven in force in {cells}")
    if cells := flagged(views, flags.SHARED_GPU):
        found.append(f"somebody else's process was on the GPU in {cells}")
    return found


def flagged(views: Iterable[View], flag: str) -> str:
    """How many of the views' cells carry a flag, `3 of 10 cells`; empty for none."""
    carried = {(v.cell, v.device, v.window): flag in flags.split(v.flags) for v in views}
    return f"{sum(carried.values())} of {len(carried)} cells" if any(carried.values()) else ""


def statuses(views: Iterable[View]) -> dict[str, int]:
    """Status → replicates."""
    return dict(Counter(view.status for view in views))
