"""Does an attempt agree with itself? run.json against the files beside it.

Rates are computed again from step times, telemetry from its series, by the functions that wrote
them. What no file repeats (a PID, a core) is held by raw.sha256 alone.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.records.untrusted_files import one_line, read_json, read_table
from release.manifest import RUN, Attempt
from workflow.collocation.record import step_times
from workflow.collocation.record.run_json import Rate, Record, Window
from workflow.collocation.record.series import Series
from workflow.collocation.spec.names import ALTERNATE

STEPS = "steps.parquet"
LEAST_STEPS = 8  # of a member: fewer times may come twice by chance
SLICED = 1e-4  # relative: a slice's share of the steps at its edges, each known to a tick
SINGLE = 1e-5  # relative: means of single-precision readings
# A window's GRACT (from the pair of samples at its ends) against the mean of its series. Largest
# difference in the shipped records: 0.0102.
GRACT_APART = 0.0105
# Of a slice's length: 0.9 to 10 ms late on the shipped hosts, never early.
SLICE_EARLY_S, SLICE_LATE = 0.001, 0.05


@dataclass
class Checked:
    """What was found of an attempt. wrong: sentences. steps: digests of its members' times."""

    attempt: Attempt
    record: dict = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def examine(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> Checked:
    """Check an attempt whose files have these SHA-256. Never raises for what they hold."""
    folder, found = study / attempt.folder, Checked(attempt)
    try:
        found.record = read_json(folder / RUN)
        record = Record.model_validate(found.record)
        found.wrong += _named(record, attempt)
        found.wrong += _files(record, digests)
        found.wrong += _status(record)
        found.wrong += _slices(found.record)
        found.wrong += _steps(folder, found)
        found.wrong += _telemetry(folder, found.record)
    except Exception as error:  # whatever the files hold, it is named
        found.wrong.append(
            f"its files cannot be read: {type(error).__name__}: {one_line(error)[:200]}"
        )
    return found


def _named(record: Record, attempt: Attempt) -> Iterator[str]:
    cell = record.cell
    parts = f"{cell.scenario}/{cell.arm}/{record.method.name}/r{cell.replicate}"
    if {parts, cell.id} != {attempt.cell} or cell.attempt != attempt.number:
        yield f"{RUN} is of cell {cell.id} a{cell.attempt}, its parts name {parts}"


def _files(record: Record, digests: Mapping[str, str]) -> Iterator[str]:
    known = {name: file.sha256 for name, file in record.files.items()}
    for name in sorted({*known, *digests} - {RUN}):
        if name not in digests:
            yield f"{name} is missing"
        elif known.get(name) != digests[name]:
            yield f"{name} is not the file whose SHA-256 {RUN} has"


def _status(record: Record) -> Iterator[str]:
    """A completed cell has a window for each job that its spec names, and proof of its method."""
    jobs = len(record.spec["members"])
    measured = sum(bool(member.windows) for member in record.members)
    fates = {member.status for member in record.members} - {"completed", "departed"}
    if record.status == "completed" and (measured != jobs or fates):
        yield f"{RUN}: status is completed, {measured} of {jobs} members are"
    if record.status in ("unsupported", "postponed", "out_of_memory") and measured and not fates:
        yield f"{RUN}: status is {record.status}, and all its members completed"
    proofs = [part.get("verified") for part in record.method.evidence.values() if part]
    if record.method.verified and (False in proofs or not proofs):
        yield f"{RUN}: method is verified, and its evidence is not"


def _slices(record: Mapping) -> Iterator[str]:
    """Windows last as long as they say; slices as long, and as many, as the spec says."""
    measure, interleaved = record["spec"]["measure"], []
    for window in record["windows"]:
        place, spans = f"{RUN}: window {window['name']}", window.get("spans")
        ends = spans or [(window["start_ns"], window["end_ns"])]
        seconds = sum(stop - start for start, stop in ends) / 1e9
        if abs(window["seconds"] - seconds) > 1e-6 * max(seconds, 1):
            yield f"{place} lasts {window['seconds']} s, by its ends {seconds}"
        if measure["kind"] != ALTERNATE:
            continue
        planned = measure["slice_s"] - measure["drop_s"]
        late = [(stop - start) / 1e9 - planned for start, stop in ends]
        if len(ends) != measure["slices"]:
            yield f"{place} has {len(ends)} slices, not {measure['slices']}"
        if min(late) < -SLICE_EARLY_S or max(late) > SLICE_LATE * planned:
            yield f"{place} has slices that do not last {planned:g} s"
        interleaved += ends
    interleaved.sort()
    if any(
        later[0] < earlier[1] for earlier, later in zip(interleaved, interleaved[1:], strict=False)
    ):
        yield f"{RUN}: a slice begins before another one is over"


def _steps(folder: Path, found: Checked) -> Iterator[str]:
    """Rates by the step ends of each member."""
    record = found.record
    if not (folder / STEPS).exists():
        if any(member["windows"] for member in record["members"]):
            yield f"{STEPS} is missing: nothing shows the rates"
        return
    table = read_table(folder / STEPS)
    tick_ns, origin_ns = (int(table.schema.metadata[k]) for k in (b"tick_ns", b"origin_ns"))
    of, ticks, losses = (table[name].to_numpy() for name in ("member", "tick", "loss"))
    drop_s = record["spec"]["measure"].get("drop_s") or 0.0
    windows = {window["name"]: Window(**window) for window in record["windows"]}
    for member in record["members"]:
        own = of == member["member"]
        if own.sum() >= LEAST_STEPS:
            content = np.diff(ticks[own]).tobytes() + losses[own].tobytes()
            found.steps.append(hashlib.sha256(content).hexdigest())
        size = record["spec"]["members"][member["member"]]["batch_size"]
        for name, said in member["windows"].items():
            place = f"{RUN}: members[{member['member']}].windows.{name}"
            ends = ticks[own] * tick_ns + origin_ns
            ways = _ways(windows[name], ends, tick_ns, size, drop_s)
            yield from _rate(place, said, ways, tick_ns, size)


def _ways(window: Window, ends: np.ndarray, tick_ns: int, *of: object) -> list[Rate]:
    """What the steps give for a window. Ends are rounded down to a tick: those in the tick of an
    edge of the window may lie on either side of it. of: what `in_window` takes after the ends.
    """
    found = []
    for early, late in product((0, tick_ns - 1), repeat=2):
        moved = {"start_ns": window.start_ns - early, "end_ns": window.end_ns - late}
        own = window if window.spans else window.model_copy(update=moved)
        found.append(step_times.in_window(own, ends + (early if window.spans else 0), *of))
    return found


def _rate(place: str, said: Mapping, ways: list[Rate], tick_ns: int, size: int) -> Iterator[str]:
    """Sentences: steps, rate, median step and slices that none of these ways to count gives."""
    slack = len(said.get("slices") or ())  # of each slice a step may lie on its edge
    ways = [way for way in ways if abs(way.steps - said["steps"]) <= slack] or ways[:1]
    rate, steps = said["samples_per_s"], said["steps"]
    if abs(ways[0].steps - steps) > slack:
        yield f"{place}.steps is {steps}, {STEPS} gives {ways[0].steps}"
    if rate is None or ways[0].samples_per_s is None:
        if rate is not ways[0].samples_per_s:
            yield f"{place}.samples_per_s is {rate}, {STEPS} gives {ways[0].samples_per_s}"
        return
    near = SLICED if slack else 2 * tick_ns / 1e9 * rate / (size * (steps - 1)) + 1e-9
    if not any(abs(rate / way.samples_per_s - 1) <= near for way in ways):
        yield f"{place}.samples_per_s is {rate}, {STEPS} gives {ways[0].samples_per_s}"
    p50, slices = said["step_ms_p50"] or 0, said.get("slices") or ()
    if all(abs((way.step_ms_p50 or 0) - p50) > 2e-6 * tick_ns for way in ways):
        yield f"{place}.step_ms_p50 is {p50}, {STEPS} gives {ways[0].step_ms_p50}"
    for at, value in enumerate(slices):
        if all(abs(value - way.slices[at]) > SLICED * max(rate, size) for way in ways):
            yield f"{place}.slices[{at}] is {value}, {STEPS} gives {ways[0].slices[at]}"


def _telemetry(folder: Path, record: Mapping) -> Iterator[str]:
    """Means over the windows that do not follow from the series."""
    windows = {window["name"]: window for window in record["windows"]}

    @cache
    def readings(file: str, key: str = "", value: str = "") -> "Readings":
        table = read_table(folder / f"{file}.parquet")
        if key:
            table = table.filter(pc.equal(table[key].cast("string"), value))
        return Readings(file, table)

    for name, seen in ((record.get("telemetry") or {}).get("windows") or {}).items():
        place, window = f"{RUN}: telemetry.windows.{name}", windows[name]
        over = (window["start_ns"], window["end_ns"]), window.get("spans")
        for entity, means in seen["series"].items():
            gpu, head = readings("gpu", "entity", entity), seen["entities"].get(entity, {})
            yield from gpu.differ(f"{place}.series.{entity}", means, over)
            pair, mean = head.get("gract"), means.get("gract")
            if None not in (pair, mean) and abs(pair - mean) > GRACT_APART:
                yield f"{place}.entities.{entity}.gract is {pair}, its series has {mean}"
        for member, means in seen["members"].items():
            own = {key: value for key, value in means.items() if key != "pss"}  # seen after it
            yield from readings("member", "member", member).differ(f"{place}.{member}", own, over)
        if seen["host"]:
            yield from readings("host").differ(f"{place}.host", seen["host"], over)
        if energy := seen.get("energy"):
            power = energy["mean_power"] * seen["seconds"]
            if abs(power - energy["joules"]) > SINGLE * max(power, 1):
                yield f"{place}.energy.joules is {energy['joules']}, mean power gives {power}"
            integral = readings("gpu", "entity", "gpu").integral("power", over[0])
            known = energy.get("integrated_joules")
            if known is not None and (
                integral is None or abs(known - integral) > SINGLE * max(known, 1)
            ):
                yield f"{place}.energy.integrated_joules is {known}, readings give {integral}"


class Readings(Series):
    """The rows of one thing in a telemetry file. Times are ns of the members' clock."""

    def __init__(self, file: str, table: pa.Table):
        if "window" in table.schema.names:  # looked at once, after a window: no part of the series
            table = table.filter(table["window"].is_null())
        of = Series.of_table(table)
        super().__init__(of.t, of.columns, of.rates)
        about = {field.name: field.metadata or {} for field in table.schema}
        self.kinds = {name: told.get(b"kind", b"counter").decode() for name, told in about.items()}
        self.file = file

    def differ(self, place: str, means: Mapping, over: tuple) -> Iterator[str]:
        """Sentences: means that are not what the series gives; a counter's lie between readings."""
        for name, value in means.items():
            if self.kinds.get(name, "counter") == "counter":
                continue
            found = self.over(name, *over)
            if (found is None) != (value is None) or (
                found is not None and abs(value - found) > SINGLE * abs(found) + 1e-12
            ):
                yield f"{place}.{name} is {value}, {self.file}.parquet gives {found}"
