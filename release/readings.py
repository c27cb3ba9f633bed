"""Telemetry and energy in run.json against the series in gpu, member and host.parquet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from release.contents import RUN, read_table
from workflow.collocation.telemetry.windows import ACTIVITY, CHECKED_S, Series

SINGLE = 1e-5  # relative: sums of single-precision readings
FIRST_NS, LAST_NS = -(2**62), 2**62
# Relative, and absolute for ratios: where it was measured, the ends of the pair were known.
APART, APART_RATIO = 0.05, 0.01
EDGES = 0.05  # relative: the counter moves in steps of 0.1 s, at both ends of a window
_RATES = {
    "gpu.parquet": (),  # each column says whether it is one
    "member.parquet": ("cpu", "read", "write"),
    "host.parquet": ("cpu_busy", "cpu_stolen", "disk_read", "disk_write"),
}


def telemetry(folder: Path, record: dict) -> Iterator[str]:
    """Sentences: means over the windows that do not follow from the series."""
    told = record.get("telemetry") or {}
    windows = {window["name"]: window for window in record["windows"]}
    if not told.get("idle") and not told.get("windows"):
        return
    gpu, members, host = (_Table(folder, f"{name}.parquet") for name in ("gpu", "member", "host"))
    if told.get("idle"):
        means = {name: value for name, value in told["idle"].items() if name != "seconds"}
        idle = gpu.of(entity="gpu", phase="idle")
        yield from idle.apart(f"{RUN}: telemetry.idle", means, FIRST_NS, LAST_NS)
    for name, seen in told["windows"].items():
        place = f"{RUN}: telemetry.windows.{name}"
        if (window := windows.get(name)) is None:
            yield f"{place}: there is no such window"
            continue
        if seen["seconds"] != window["seconds"]:
            yield f"{place}.seconds is {seen['seconds']}, the window's {window['seconds']}"
        ends = window["start_ns"], window["end_ns"]
        for entity, values in seen["series"].items():
            series, headlines = gpu.of(entity=entity), seen["entities"].get(entity, {})
            yield from series.apart(f"{place}.series.{entity}", values, *ends)
            gauges = {k: headlines[k] for k in values if k in headlines and k not in series.rates}
            yield from series.apart(f"{place}.entities.{entity}", gauges, *ends)
            if seen["seconds"] >= CHECKED_S:
                said = " ".join(told.get("disagree") or [])
                yield from _headlines(f"{place}.entities.{entity}", headlines, values, said)
        for member, values in seen["members"].items():
            means = {k: v for k, v in values.items() if k not in ("entity", "pss")}
            series = members.of(member=int(member))
            yield from series.apart(f"{place}.members.{member}", means, *ends)
        if seen["host"]:
            yield from host.of().apart(f"{place}.host", seen["host"], *ends)
        if seen.get("energy"):
            idle = (told.get("idle") or {}).get("power")
            yield from _energy(f"{place}.energy", seen, idle, gpu.of(entity="gpu"), *ends)


def _headlines(place: str, told: dict, series: dict, said: str) -> Iterator[str]:
    """Activity by one pair of samples and by the series: near each other, or said to disagree."""
    for name in ACTIVITY:
        pair, mean = told.get(name), series.get(name)
        if None in (pair, mean) or f"{name} is" in said:
            continue
        if abs(pair - mean) > max(APART * max(abs(pair), abs(mean)), APART_RATIO):
            yield f"{place}.{name} is {pair}, its series has {mean}, and it says nothing of that"


def _energy(
    place: str, seen: dict, idle: float | None, gpu: _Series, start: int, end: int
) -> Iterator[str]:
    """A window's energy by its parts, by the power readings, and by the GPU's counter."""
    energy, seconds = seen["energy"], seen["seconds"]
    follows = {"joules": energy["mean_power"] * seconds}
    if energy.get("idle_joules") is not None:
        follows["idle_joules"] = None if idle is None else idle * seconds
        follows["above_idle_joules"] = energy["joules"] - energy["idle_joules"]
    if energy.get("integrated_joules") is not None:
        follows["integrated_joules"] = gpu.integral("power", start, end)
    for name, value in follows.items():
        if value is None or not abs(energy[name] - value) <= SINGLE * max(abs(value), 1):
            yield f"{place}.{name} is {energy[name]}, the readings give {value}"
    grown = gpu.growth("energy", start, end)
    if seconds >= CHECKED_S and (
        grown is None or abs(energy["joules"] - grown) > EDGES * abs(grown)
    ):
        yield f"{place}.joules is {energy['joules']}, the counter in gpu.parquet grew by {grown}"


class _Table:
    """A telemetry file, read when it is asked for."""

    def __init__(self, folder: Path, name: str):
        self.path, self.name = folder / name, name

    @cached_property
    def table(self) -> pa.Table:
        return read_table(self.path)

    def of(self, **values: object) -> _Series:
        """The rows with these values."""
        table = self.table
        for key, value in values.items():
            table = table.filter(pc.equal(table[key].cast(pa.string()), str(value)))
        if "window" in table.schema.names:  # looked at once, after a window: no part of the series
            table = table.filter(table["window"].is_null())
        return _Series(table, self.name)


class _Series(Series):
    """The rows of one thing. Times are ns of the members' clock."""

    def __init__(self, table: pa.Table, file: str):
        metadata = {field.name: field.metadata or {} for field in table.schema}
        self.kinds = {name: told.get(b"kind", b"") for name, told in metadata.items()}
        known = _RATES[file]
        rates = [n for n in metadata if (n in known if known else self.kinds[n] == b"rate")]
        super().__init__([], rates)
        self.file, self.table = file, table
        self.t = table["t_ns"].to_numpy() + int((table.schema.metadata or {})[b"origin_ns"])

    def column(self, name: str) -> np.ndarray:
        if name not in self._columns:
            values = self.table[name].to_numpy(zero_copy_only=False)
            self._columns[name] = values.astype(float)
        return self._columns[name]

    def apart(self, place: str, told: dict, start: int, end: int) -> Iterator[str]:
        """Sentences: means over the window that are not what the series gives."""
        for name, value in told.items():
            if self.kinds.get(name, b"counter") == b"counter":
                continue  # what a counter grows by in a window lies between readings
            found = (self.rate if name in self.rates else self.mean)(name, start, end)
            same = found is None if value is None else found is not None and _near(value, found)
            if not same:
                yield f"{place}.{name} is {value}, {self.file} gives {found}"


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= SINGLE * max(abs(one), abs(other)) + 1e-12
