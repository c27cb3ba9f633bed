"""Telemetry and energy in run.json against the series in gpu, member and host.parquet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from analysis.records.safe import read_table
from release.contents import RUN
from workflow.collocation.record.series import Series
from workflow.collocation.telemetry.summary import ACTIVITY, CHECKED_S

SINGLE = 1e-5  # relative: sums of single-precision readings
# Relative, and absolute for ratios: where it was measured, the ends of the pair were known.
APART, APART_RATIO = 0.05, 0.01
EDGES = 0.05  # relative: the counter moves in steps of 0.1 s, at both ends of a window


def telemetry(folder: Path, record: dict) -> Iterator[str]:
    """Sentences: means over the windows that do not follow from the series."""
    told = record.get("telemetry") or {}
    windows = {window["name"]: window for window in record["windows"]}

    @cache
    def series(file: str, **values: object) -> Readings:
        return Readings(file, table(file), values)

    @cache
    def table(file: str) -> pa.Table:
        return read_table(folder / f"{file}.parquet")

    if idle := told.get("idle"):
        means = {name: value for name, value in idle.items() if name != "seconds"}
        before = series("gpu", entity="gpu", phase="idle")
        yield from before.apart(f"{RUN}: telemetry.idle", means, ((-(2**62), 2**62), None))
    for name, seen in (told.get("windows") or {}).items():
        place, window = f"{RUN}: telemetry.windows.{name}", windows[name]
        if seen["seconds"] != window["seconds"]:
            yield f"{place}.seconds is {seen['seconds']}, the window's {window['seconds']}"
        ends = window["start_ns"], window["end_ns"]
        over = ends, window.get("spans")
        for entity, values in seen["series"].items():
            own, head = series("gpu", entity=entity), seen["entities"].get(entity, {})
            yield from own.apart(f"{place}.series.{entity}", values, over)
            gauges = {k: head[k] for k in values if k in head and k not in own.rates}
            yield from own.apart(f"{place}.entities.{entity}", gauges, over)
            if seen["seconds"] >= CHECKED_S:
                known = " ".join(told.get("disagree") or [])
                yield from _headlines(f"{place}.entities.{entity}", head, values, known)
        for member, values in seen["members"].items():
            means = {k: v for k, v in values.items() if k != "pss"}  # looked at once, after it
            own = series("member", member=int(member))
            yield from own.apart(f"{place}.members.{member}", means, over)
        if seen["host"]:
            yield from series("host").apart(f"{place}.host", seen["host"], over)
        if seen.get("energy"):
            power = (idle or {}).get("power")
            yield from _energy(f"{place}.energy", seen, power, series("gpu", entity="gpu"), *ends)


def _headlines(place: str, told: dict, series: dict, known: str) -> Iterator[str]:
    """Activity by one pair of samples and by the series: near each other, or said to disagree."""
    for name in ACTIVITY:
        pair, mean = told.get(name), series.get(name)
        told_apart = None in (pair, mean) or f"{name} is" in known
        if not told_apart and abs(pair - mean) > max(APART * max(pair, mean), APART_RATIO):
            yield f"{place}.{name} is {pair}, its series has {mean}, and it says nothing of that"


def _energy(place: str, seen: dict, idle: float | None, gpu: Readings, *ends: int) -> Iterator[str]:
    """By its parts, by the power readings, and by the GPU's counter. idle: power before, in W."""
    energy, seconds = seen["energy"], seen["seconds"]
    follows = {"joules": energy["mean_power"] * seconds}
    if energy.get("idle_joules") is not None:
        follows["idle_joules"] = None if idle is None else idle * seconds
        follows["above_idle_joules"] = energy["joules"] - energy["idle_joules"]
    if energy.get("integrated_joules") is not None:
        follows["integrated_joules"] = gpu.integral("power", ends)
    for name, value in follows.items():
        if value is None or not abs(energy[name] - value) <= SINGLE * max(abs(value), 1):
            yield f"{place}.{name} is {energy[name]}, the readings give {value}"
    grown, told = gpu.growth("energy", ends), energy["joules"]
    if seconds >= CHECKED_S and (grown is None or abs(told - grown) > EDGES * abs(grown)):
        yield f"{place}.joules is {told}, the counter in gpu.parquet grew by {grown}"


class Readings(Series):
    """The rows of one thing in a telemetry file. Times are ns of the members' clock."""

    def __init__(self, file: str, table: pa.Table, values: dict[str, object]):
        for key, value in values.items():
            table = table.filter(pc.equal(table[key].cast(pa.string()), str(value)))
        if "window" in table.schema.names:  # looked at once, after a window: no part of the series
            table = table.filter(table["window"].is_null())
        of = Series.of_table(table)
        super().__init__(of.t, of.columns, of.rates)
        self.file = file
        kinds = ((field.name, field.metadata) for field in table.schema)
        self.kinds = {
            name: (about or {}).get(b"kind", b"counter").decode() for name, about in kinds
        }

    def apart(self, place: str, told: dict, over: tuple) -> Iterator[str]:
        """Sentences: means over the window that are not what the series gives. over: its ends, and
        its slices where it has some.
        """
        for name, value in told.items():
            if self.kinds.get(name, "counter") == "counter":
                continue  # what a counter grows by in a window lies between readings
            found = self.over(name, *over)
            if (found is None) != (value is None) or (
                found is not None
                and not abs(value - found) <= SINGLE * max(abs(value), abs(found)) + 1e-12
            ):
                yield f"{place}.{name} is {value}, {self.file}.parquet gives {found}"
