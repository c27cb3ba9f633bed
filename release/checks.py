"""Do a study's raw files agree with themselves, and with each other?

Rates are computed again from step times, telemetry from its series, by the functions that wrote
them. Besides, of every study: slices are as long as the spec says, no two cells have a GPU at one
time, a window's GRACT agrees with its series, and each job of a completed set has a window. What
no file repeats (a PID, a core) is held by raw.sha256 alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise, product
from math import isclose
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from analysis.files import one_line, read_table
from release.manifest import NOT_RUN, Attempt, attempts, listed, not_run
from workflow.collocation.record import latency, run_json, step_times
from workflow.collocation.record.run_json import Rate, Record
from workflow.collocation.record.series import Series
from workflow.collocation.record.values import WindowTelemetry
from workflow.collocation.study.layout import PLAN, RUN, RUNS
from workflow.collocation.study.names import INTERLEAVED
from workflow.collocation.study.regular_files import read_text

SLICED = 1e-4  # relative: a slice's share of the steps at its edges, each known to a tick
SINGLE = 1e-5  # relative: means of single-precision readings
# A window's GRACT (from the pair of samples at its ends) against the mean of its series: at most
# 0.0024 in the shipped records, 0.0102 in earlier ones.
GRACT_APART = 0.0105
# Of a slice's length: up to 3 ms late on the shipped hosts, never early.
SLICE_EARLY_S, SLICE_LATE = 0.001, 0.05
# Between a cell's start and its first window lie at most 460 s in the shipped records. Clocks of
# two machines, which count from when they booted, are hours apart.
ONE_CLOCK_S = 600


@dataclass
class Checked:
    """What was found of an attempt. wrong: sentences."""

    attempt: Attempt
    record: Record | None = None
    wrong: list[str] = field(default_factory=list)


def examined(study: Path, found: Mapping[str, str]) -> Iterator[Checked]:
    """Every attempt among files with these SHA-256, held against itself."""
    for attempt, files in attempts(found).items():
        yield examine(study, attempt, {file: found[f"{attempt.folder}/{file}"] for file in files})


def examine(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> Checked:
    """Check an attempt whose files have these SHA-256. Never raises for what they hold."""
    folder, found = study / attempt.folder, Checked(attempt)
    try:
        record = found.record = run_json.read_record(folder / RUN)
        for said in (
            *(_named(record, attempt), _files(record, digests), _complete(record)),
            *(_slices(record), _rates(folder, record), _latencies(folder, record)),
            _telemetry(folder, record),
        ):
            found.wrong += said
    except Exception as error:  # whatever the files hold, it is named
        said = f"{type(error).__name__}: {one_line(error)[:200]}"
        found.wrong.append(f"its files cannot be read: {said}")
    return found


def _named(record: Record, attempt: Attempt) -> Iterator[str]:
    cell = record.cell
    parts = f"{cell.scenario}/{cell.implementation}/{record.method.name}/r{cell.replicate}"
    if {parts, cell.id} != {attempt.cell} or cell.attempt != attempt.number:
        yield f"{RUN} is of cell {cell.id} a{cell.attempt}, its parts name {parts}"


def _files(record: Record, digests: Mapping[str, str]) -> Iterator[str]:
    known = {name: file.sha256 for name, file in record.files.items()}
    for name in sorted({*known, *digests} - {RUN}):
        if name not in digests:
            yield f"{name} is missing"
        elif known.get(name) != digests[name]:
            yield f"{name} is not the file whose SHA-256 {RUN} has"


def _complete(record: Record) -> Iterator[str]:
    """A completed cell has a window for each job that its spec names, and proof of its method."""
    measured = sum(bool(member.windows) for member in record.members)
    fates = {member.status for member in record.members} - {"completed", "departed"}
    if record.status == "completed" and (measured != len(record.jobs) or fates):
        yield f"{RUN}: status is completed, {measured} of {len(record.jobs)} members are"
    proofs = [part.get("verified") for part in record.method.evidence.values() if part]
    if record.method.verified and (False in proofs or not proofs):
        yield f"{RUN}: method is verified, and its evidence is not"


def _slices(record: Record) -> Iterator[str]:
    """Windows last as long as they say; slices as long, and as many, as the spec says."""
    measure, interleaved = record.spec["measure"], []
    for window in record.windows:
        place = f"{RUN}: window {window.name}"
        took = [(stop - start) / 1e9 for start, stop in window.pieces]
        if not isclose(window.seconds, sum(took), rel_tol=1e-6, abs_tol=1e-6):
            yield f"{place} lasts {window.seconds} s, by its ends {sum(took)}"
        if measure["kind"] != INTERLEAVED:
            continue
        planned = measure["slice_s"] - measure["drop_s"]
        if len(took) != measure["slices"]:
            yield f"{place} has {len(took)} slices, not {measure['slices']}"
        if min(took) < planned - SLICE_EARLY_S or max(took) > (1 + SLICE_LATE) * planned:
            yield f"{place} has slices that do not last {planned:g} s"
        interleaved += window.pieces
    if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(interleaved))):
        yield f"{RUN}: a slice begins before another one is over"


def _rates(folder: Path, record: Record) -> Iterator[str]:
    """Rates by the step ends of each member."""
    if not any(member.windows for member in record.members):
        return
    table = read_table(folder / step_times.STEPS_FILE)
    tick_ns, steps = int(table.schema.metadata[b"tick_ns"]), step_times.read_steps(table)
    windows = {window.name: window for window in record.windows}
    drop_s = record.spec["measure"].get("drop_s") or 0.0
    for member in record.members:
        ends = steps.get(member.member, [np.empty(0, np.int64)])[0]
        size = record.jobs[member.member]["batch_size"]
        for name, said in member.windows.items():
            wrong = []
            # Ends are rounded down to a tick: one in the tick of an edge may lie on either side.
            for early, late in product((0, tick_ns - 1), repeat=2):
                own, moved = windows[name].model_copy(), ends
                if own.spans:
                    moved = ends + early
                else:
                    own.start_ns, own.end_ns = own.start_ns - early, own.end_ns - late
                found = step_times.member_rate(own, moved, size, drop_s)
                wrong.append([*_differ(said, found, tick_ns, size)])
                if not wrong[-1]:
                    break
            place = f"{RUN}: members[{member.member}].windows.{name}"
            yield from (f"{place}.{each}" for each in min(wrong, key=len))


def _differ(said: Rate, found: Rate, tick_ns: int, size: int) -> Iterator[str]:
    """Steps, rate, median step and slices that step times do not give."""
    slack, rate = len(said.slices or ()), said.samples_per_s  # a step may lie on each slice's edge
    if abs(found.steps - said.steps) > slack:
        yield f"steps is {said.steps}, {step_times.STEPS_FILE} gives {found.steps}"
    if rate and found.samples_per_s:
        near = SLICED if slack else 2 * tick_ns / 1e9 * rate / (size * (said.steps - 1)) + 1e-9
        same = isclose(rate, found.samples_per_s, rel_tol=near)
    else:
        same = rate == found.samples_per_s
    if not same:
        yield f"samples_per_s is {rate}, {step_times.STEPS_FILE} gives {found.samples_per_s}"
    if abs((found.step_ms_p50 or 0) - (said.step_ms_p50 or 0)) > 2e-6 * tick_ns:
        gives = f"{step_times.STEPS_FILE} gives {found.step_ms_p50}"
        yield f"step_ms_p50 is {said.step_ms_p50}, {gives}"
    for at, value in enumerate(said.slices or ()):
        if abs(value - found.slices[at]) > SLICED * max(rate, size):
            yield f"slices[{at}] is {value}, {step_times.STEPS_FILE} gives {found.slices[at]}"


def _latencies(folder: Path, record: Record) -> Iterator[str]:
    """Latencies by the times of each request's tokens."""
    told = {m.member: {n: w.latency for n, w in m.windows.items()} for m in record.members}
    if not any(any(those.values()) for those in told.values()):
        return
    requests = latency.read_requests(read_table(folder / latency.REQUESTS_FILE))
    windows = {window.name: window for window in record.windows}
    for member, those in told.items():
        for name, said in those.items():
            if not said:
                continue
            slo = record.jobs[member].get("slo_ms")
            if said != latency.window_latencies(requests[member], windows[name], slo):
                place = f"{RUN}: members[{member}].windows.{name}"
                yield f"{place}: {latency.REQUESTS_FILE} gives other latencies"


def _telemetry(folder: Path, record: Record) -> Iterator[str]:
    """Means over the windows that do not follow from the series; of counters there are none."""
    seen = record.telemetry.windows if record.telemetry else {}
    windows = {window.name: window for window in record.windows}
    place = f"{RUN}: telemetry.windows"
    for file, column in (("gpu", "entity"), ("member", "member"), ("host", "")):
        if not any(_means(of, file) for of in seen.values()):
            continue
        table = read_table(folder / f"{file}.parquet")
        if "window" in table.schema.names:  # looked at once, after a window: no part of the series
            table = table.filter(table["window"].is_null())
        kinds = {field.name: (field.metadata or {}).get(b"kind") for field in table.schema}
        for entity in dict.fromkeys(entity for of in seen.values() for entity in _means(of, file)):
            own = pc.equal(table[column].cast("string"), entity) if column else None
            series = Series.of_table(table.filter(own) if column else table)
            for name, of in seen.items():
                window = windows[name]
                for metric, value in _means(of, file).get(entity, {}).items():
                    if kinds.get(metric, b"counter") == b"counter" or metric == "pss":
                        continue
                    found = series.over(metric, window.ends, window.spans)
                    if not _close(value, found):
                        said = f"{value}, {file}.parquet gives {found}"
                        yield f"{place}.{name}.{entity}.{metric} is {said}"
                used = of.energy.integrated_joules if of.energy and entity == "gpu" else None
                if used and not _close(used, found := series.integral("power", window.ends)):
                    yield f"{place}.{name}: integrated_joules is {used}, readings give {found}"
    for name, of in seen.items():
        for entity, head in of.entities.items():
            pair, mean = head.get("gract"), of.series.get(entity, {}).get("gract")
            if None not in (pair, mean) and abs(pair - mean) > GRACT_APART:
                yield f"{place}.{name}: gract of {entity} is {pair}, its series has {mean}"


def _means(of: WindowTelemetry, file: str) -> dict[str, dict]:
    """What was told of each thing in a file."""
    if file == "host":
        return {"host": of.host} if of.host else {}
    return of.series if file == "gpu" else of.members


def _close(one: float | None, other: float | None) -> bool:
    if None in (one, other):
        return one is other
    return isclose(one, other, rel_tol=SINGLE, abs_tol=1e-12)


def across(study: Path, checked: Iterable[Checked], names: Iterable[str]) -> list[str]:
    """Sentences of all that is wrong between attempts, and with the lists of what there is. Never
    raises for what the folder holds.
    """
    measured = defaultdict(list)
    for one in checked:
        if one.record and one.record.windows:
            measured[one.record.provenance.get("machine"), one.record.device].append(one)
    try:
        found = [said for of_one in measured.values() for said in _one_gpu(of_one)]
        there = {f"{attempt.folder}/{RUN}" for attempt in attempts(names)}
        for name in sorted({*listed(study)} ^ there):
            found.append(f"{name} is {'not in' if name in there else 'only in'} {RUNS}")
        for cell in sorted({*not_run(study, names)} ^ {*read_text(study / NOT_RUN).split()}):
            found.append(f"cell {cell}: whether it has a record, {PLAN} and {NOT_RUN} disagree")
        return found
    except Exception as error:  # whatever the lists hold, it is named
        return [f"{PLAN}, a list or a record cannot be read: {type(error).__name__}: {error}"[:300]]


def _one_gpu(cells: list[Checked]) -> Iterator[str]:
    """No two cells have a GPU at one time, by their windows and by when they began. Windows are
    told by a machine's clock since it booted: a cell of another machine shows.
    """
    spans, booted = [], []
    for one in cells:
        windows, timing = one.record.windows, one.record.timing
        began = datetime.fromisoformat(one.record.provenance["started_at"]).timestamp()
        start, end = min(w.start_ns for w in windows), max(w.end_ns for w in windows)
        spans.append((start, end, began + (timing.get("lock_wait_s") or 0), one.attempt))
        booted.append((began - start / 1e9, one.attempt))
    for (_, end, began, one), (start, _, then, other) in pairwise(sorted(spans)):
        if start < end or abs(then - began) < 1:
            yield f"cells {one} and {other} had one GPU at the same time"
    for when, attempt in booted:
        others = [abs(when - other) for other, of in booted if of != attempt]
        if others and min(others) > ONE_CLOCK_S:
            yield f"cell {attempt} has another clock than the machine that it names"
