"""Does an attempt agree with itself? run.json against the files beside it.

Rates, losses and telemetry in run.json were computed when it was measured, from readings that stand
in the Parquet files: step ends to 10 µs, telemetry in single precision. So they can be computed
again, to that precision. What no file repeats (a PID, a core, a wall time) is held by the ledger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.names import ANCHOR, COMPLETION, parse_scenario
from release.contents import RUN, Attempt, listed
from release.manifest import sha256
from workflow.collocation.record import Record

SINGLE = 1e-5  # relative: sums of single-precision readings
FIRST_NS, LAST_NS = -(2**62), 2**62
CHECKED_S = 2.0  # shorter windows' edges weigh too much for a pair to be held against its series
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
APART, APART_RATIO = (
    0.05,
    0.01,
)  # looser than where it was measured, where the ends of the pair are known
_RATES = {
    "gpu.parquet": None,  # each column says whether it is one
    "member.parquet": ("cpu", "read", "write"),
    "host.parquet": ("cpu_busy", "cpu_stolen", "disk_read", "disk_write"),
}


def check(study: Path, attempt: Attempt, digests: dict[str, str]) -> list[str]:
    """Sentences: where an attempt's files contradict each other.

    digests: name in the study → SHA-256 of its files, where they are known already.
    """
    folder = study / attempt.folder
    try:
        record = json.loads((folder / RUN).read_text(encoding="utf-8"))
        Record.model_validate(record)
    except (OSError, ValueError) as error:  # pydantic's error is a ValueError
        return [f"{RUN} is no record: {' '.join(str(error).split())[:200]}"]
    cell = record["cell"]
    if (cell["id"], cell["attempt"]) != (attempt.cell, attempt.number):
        return [f"{RUN} is of cell {cell['id']} a{cell['attempt']}"]
    said = [*_name(record), *_files(study, attempt, record, digests)]
    try:
        return said + [*_steps(folder, record), *_telemetry(folder, record)]
    except (OSError, KeyError, IndexError, ValueError, TypeError, pa.ArrowException) as error:
        return [*said, f"its files cannot be read: {type(error).__name__}: {error}"]


def check_plan(study: Path) -> list[str]:
    """Sentences: where plan.json and the records of planned cells contradict each other."""
    planned = {cell["id"]: cell for cell in json.loads((study / "plan.json").read_text())}
    said = []
    for name in listed(study):
        try:
            record = json.loads((study / name).read_text(encoding="utf-8"))
            cell, spec = record["cell"], record["spec"]
            found = {key: cell[key] for key in ("scenario", "arm", "method", "replicate")}
            found |= {"n": len(spec["members"]), "measure": spec["measure"]["kind"]}
            found["workloads"] = [member["workload"] for member in spec["members"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # said where the attempt is looked at
        if parse_scenario(found["scenario"]).variant == ANCHOR:  # a sitting's, not the grid's
            if (found["n"], found["method"], found["measure"]) != (1, "naive", "window"):
                said.append(f"cell {cell['id']}: an anchor is one job alone, in a window")
            continue
        plan = planned.get(cell["id"])
        if plan is None:
            said.append(f"cell {cell['id']} was not planned")
        else:
            said += [
                f"cell {cell['id']}: {key} is {plan.get(key)} in plan.json, {value} in {RUN}"
                for key, value in found.items()
                if plan.get(key) != value
            ]
    return said


def _name(record: dict) -> Iterator[str]:
    cell = record["cell"]
    said = f"{cell['scenario']}/{cell['arm']}/{cell['method']}/r{cell['replicate']}"
    if said != cell["id"]:
        yield f"{RUN}: its parts name cell {said}"
    methods = (record["method"]["name"], record["spec"].get("method", cell["method"]))
    if any(method != cell["method"] for method in methods):
        yield f"{RUN}: its method is {' and '.join(methods)}"


def _files(study: Path, attempt: Attempt, record: dict, digests: dict) -> Iterator[str]:
    """The files beside it, by what it says of their size and hash."""
    named = record.get("files") or {}
    there = {p.name for p in (study / attempt.folder).iterdir() if p.is_file()} - {RUN}
    for name in sorted(there - named.keys()):
        if not name.startswith("."):
            yield f"{name} is not named in {RUN}"
    for name, file in named.items():
        path = study / attempt.folder / name
        if name not in there:
            yield f"{name} is missing"
            continue
        digest = digests.get(f"{attempt.folder}/{name}") or sha256(path)
        if digest != file["sha256"] or path.stat().st_size != file["bytes"]:
            yield f"{name} is not the file whose SHA-256 and size {RUN} has"


# -- steps ------------------------------------------------------------------------------------


def _steps(folder: Path, record: dict) -> Iterator[str]:
    """Rates by the step ends, and losses, of the members that have some."""
    yield from _windows(record)
    path = folder / "steps.parquet"
    if not path.exists():
        return
    table = pq.read_table(path)
    tick_ns, origin_ns = (int(table.schema.metadata[k]) for k in (b"tick_ns", b"origin_ns"))
    windows = {window["name"]: window for window in record["windows"]}
    if windows and origin_ns != record["windows"][0]["start_ns"]:
        yield "steps.parquet begins at another time than the first window"
    column = {name: table[name].to_numpy() for name in table.schema.names}
    for member in record["members"]:
        own = column["member"] == member["member"]
        size = record["spec"]["members"][member["member"]]["batch_size"]
        for name, rate in member["windows"].items():
            place = f"{RUN}: members[{member['member']}].windows.{name}"
            if name == "epochs":
                yield from _epochs(place, rate, member["epochs"], size)
                continue
            window = windows.get(name)
            if window is None:
                yield f"{place}: there is no such window"
                continue
            span = [(window[key] - origin_ns) / tick_ns for key in ("start_ns", "end_ns")]
            yield from _rate(place, rate, column["tick"][own], span, tick_ns, size)


def _windows(record: dict) -> Iterator[str]:
    for window in record["windows"]:
        took = (window["end_ns"] - window["start_ns"]) / 1e9
        if abs(took - window["seconds"]) > 1e-6 * max(took, 1):
            yield f"{RUN}: window {window['name']} lasts {window['seconds']} s, by its ends {took}"


def _rate(place: str, rate: dict, ticks, span: list[float], tick_ns: int, size: int):
    """A tick is the time of a step's end rounded down, so that a step in the tick of the window's
    end may lie on either side of it.
    """
    start, end = span
    candidates = [ticks[(ticks >= math.floor(start)) & (ticks < end)]]
    candidates.append(ticks[(ticks >= start) & (ticks < math.floor(end))])
    inside = next((found for found in candidates if len(found) == rate["steps"]), None)
    if inside is None:
        yield f"{place}.steps is {rate['steps']}, steps.parquet has {len(candidates[0])}"
        return
    if len(inside) < 2:
        return
    took = np.diff(inside) * (tick_ns / 1e6)  # ms
    total, one = took.sum(), tick_ns / 1e6  # each end may be off by a tick
    values = {"samples_per_s": size * len(took) / (total / 1e3)}
    slack = {"samples_per_s": values["samples_per_s"] * one / max(total - one, one)}
    for name, share in (("step_ms_p50", 50), ("step_ms_p95", 95), ("step_ms_p99", 99)):
        values[name], slack[name] = float(np.percentile(took, share)), one
    third = len(took) // 3
    if third:
        first, last = took[:third].mean(), took[-third:].mean()
        values["drift"] = float(last / first - 1)
        slack["drift"] = 2.5 * one / third / first * max(1.0, last / first)
    if place.endswith(f".{COMPLETION}"):  # whose end is alone: no drift is told
        values.pop("drift", None)
    for name, value in values.items():
        told = rate.get(name)
        if told is None or not abs(told - value) <= slack[name] + 1e-9 * abs(value):
            yield f"{place}.{name} is {told}, steps.parquet gives {value:.6g}"


def _epochs(place: str, rate: dict, epochs: list[dict], size: int) -> Iterator[str]:
    took = sum(epoch["train_s"] for epoch in epochs)
    samples = sum(epoch["samples"] for epoch in epochs)
    value, told = samples / took if took else None, rate["samples_per_s"]
    if rate["steps"] != samples // size:
        yield f"{place}.steps is {rate['steps']}, its epochs have {samples // size}"
    if (value is None) != (told is None) or (value and abs(told - value) > 1e-9 * value):
        yield f"{place}.samples_per_s is {told}, its epochs give {value}"


# -- telemetry --------------------------------------------------------------------------------


def _telemetry(folder: Path, record: dict) -> Iterator[str]:
    """Means over the windows, by the series in the Parquet files."""
    windows = {window["name"]: window for window in record["windows"]}
    telemetry = record.get("telemetry") or {}
    yield from _idle(folder, telemetry.get("idle") or {})
    for name, seen in (telemetry.get("windows") or {}).items():
        place = f"{RUN}: telemetry.windows.{name}"
        if (window := windows.get(name)) is None:
            yield f"{place}: there is no such window"
            continue
        if seen["seconds"] != window["seconds"]:
            yield f"{place}.seconds is {seen['seconds']}, the window's {window['seconds']}"
        ends = window["start_ns"], window["end_ns"]
        for entity, values in seen["series"].items():
            found = _Readings.of(folder / "gpu.parquet", "entity", entity)
            yield from found.apart(f"{place}.series.{entity}", values, *ends)
            headlines = seen["entities"].get(entity, {})
            gauges = {k: headlines[k] for k in values if k in headlines and not found.is_rate(k)}
            yield from found.apart(f"{place}.entities.{entity}", gauges, *ends)
            if seen["seconds"] >= CHECKED_S:
                said = " ".join(telemetry.get("disagree") or [])
                yield from _headlines(f"{place}.entities.{entity}", headlines, values, said)
        for member, values in seen["members"].items():
            found = _Readings.of(folder / "member.parquet", "member", int(member))
            told = {k: v for k, v in values.items() if k not in ("entity", "pss")}
            yield from found.apart(f"{place}.members.{member}", told, *ends)
        found = _Readings.of(folder / "host.parquet", None, None)
        yield from found.apart(f"{place}.host", seen["host"], *ends)
        yield from _energy(f"{place}.energy", seen)


def _idle(folder: Path, told: dict) -> Iterator[str]:
    """Means before the first member was built."""
    if not told:
        return
    table = pq.read_table(folder / "gpu.parquet")
    own = [
        (phase, entity) == ("idle", "gpu")
        for phase, entity in zip(
            table["phase"].to_pylist(), table["entity"].to_pylist(), strict=True
        )
    ]
    found = _Readings(table.filter(pa.array(own, pa.bool_())), "gpu.parquet")
    means = {name: value for name, value in told.items() if name != "seconds"}
    yield from found.apart(f"{RUN}: telemetry.idle", means, FIRST_NS, LAST_NS)


def _headlines(place: str, told: dict, series: dict, said: str) -> Iterator[str]:
    """Activity by one pair of samples and by the series: near each other, or said to disagree."""
    for name in ACTIVITY:
        pair, mean = told.get(name), series.get(name)
        if None in (pair, mean) or f"{name} is" in said:
            continue
        if abs(pair - mean) > max(APART * max(abs(pair), abs(mean)), APART_RATIO):
            yield f"{place}.{name} is {pair}, its series has {mean}, and it says nothing of that"


def _energy(place: str, seen: dict) -> Iterator[str]:
    """The parts of a window's energy that follow from each other."""
    energy = seen.get("energy")
    if energy is None:
        return
    derived = {"joules": energy["mean_power"] * seen["seconds"]}
    if energy.get("idle_joules") is not None:
        derived["above_idle_joules"] = energy["joules"] - energy["idle_joules"]
    for name, value in derived.items():
        if abs(energy[name] - value) > 1e-6 * max(abs(energy["joules"]), 1):
            yield f"{place}.{name} is {energy[name]}, the others give {value:.6g}"


class _Readings:
    """The rows of one thing in a telemetry file. Times are ns of the members' clock."""

    def __init__(self, table: pa.Table, file: str):
        self.file, self.rates = file, _RATES[file]
        self.table = table
        origin = int((table.schema.metadata or {}).get(b"origin_ns", 0))
        self.t = table["t_ns"].to_numpy() + origin

    @classmethod
    def of(cls, path: Path, key: str | None, value: object) -> _Readings:
        table = pq.read_table(path)
        if key is not None:
            own = [found == value for found in table[key].to_pylist()]
            table = table.filter(pa.array(own, pa.bool_()))
        if "window" in table.schema.names:  # looked at once, after a window: no part of the series
            table = table.filter(table["window"].is_null())
        return cls(table, path.name)

    def is_rate(self, name: str) -> bool:
        if self.rates is not None:
            return name in self.rates
        return self.table.schema.field(name).metadata.get(b"kind") == b"rate"

    def column(self, name: str) -> np.ndarray:
        return self.table[name].to_numpy(zero_copy_only=False).astype(float)

    def apart(self, place: str, told: dict, start: int, end: int) -> Iterator[str]:
        for name, value in told.items():
            if name not in self.table.schema.names or self._counts(name):
                continue
            found = (
                self._rate(name, start, end) if self.is_rate(name) else self._mean(name, start, end)
            )
            same = found is None if value is None else found is not None and _near(value, found)
            if not same:
                yield f"{place}.{name} is {value}, {self.file} gives {found}"

    def _counts(self, name: str) -> bool:
        """Whether the column only grows: what it comes to in a window lies between readings."""
        return (self.table.schema.field(name).metadata or {}).get(b"kind") == b"counter"

    def _mean(self, name: str, start: int, end: int) -> float | None:
        values = self.column(name)[(self.t >= start) & (self.t < end)]
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    def _rate(self, name: str, start: int, end: int) -> float | None:
        """Each row's value is the mean since the row before that has any rate."""
        rates = [n for n in self.table.schema.names if n not in _KEYS and self.is_rate(n)]
        any_of = np.any([np.isfinite(self.column(n)) for n in rates], axis=0)
        rows = np.flatnonzero(any_of)
        since = self.t[np.concatenate([np.maximum(rows[:1] - 1, 0), rows[:-1]])]
        values = self.column(name)[rows]
        overlap = np.minimum(self.t[rows], end) - np.maximum(since, start)
        weights = np.where(np.isfinite(values), np.maximum(overlap, 0), 0)
        if weights.sum() <= 0:
            return None
        return float(np.average(np.nan_to_num(values), weights=weights))


_KEYS = ("t_ns", "phase", "entity", "member", "window")


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= SINGLE * max(abs(one), abs(other)) + 1e-12


def attempts(names: Iterable[str]) -> list[Attempt]:
    """The attempts that these files of a study are of, in order."""
    found = {of[0] for name in names if (of := Attempt.of(name))}
    return sorted(found)
