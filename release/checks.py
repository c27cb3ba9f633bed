"""Whether a study's raw files agree with themselves and with each other.

Rates are computed again from step times, and telemetry from its series, by the functions that wrote
them. Further checks hold for every study: slices are as long as the spec says, no two cells have a
GPU at the same time, a window's GRACT agrees with its series, and each job of a completed cell has
a window. What stands in one file only (a PID, a core) is protected by raw.sha256 alone.
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
from release.manifest import NOT_RUN, Attempt, analysed_records, attempts, cells_not_run
from workflow.collocation.record import latency, run_json, step_times
from workflow.collocation.record.run_json import Rate, Record
from workflow.collocation.record.series import Series
from workflow.collocation.record.values import Window, WindowTelemetry
from workflow.collocation.study.layout import PLAN, RUN, RUNS
from workflow.collocation.study.names import INTERLEAVED
from workflow.collocation.study.regular_files import read_text

SLICE_TOLERANCE = 1e-4  # relative: the steps at a slice's edges, each known to a tick
SERIES_TOLERANCE = 1e-5  # relative: means of single-precision readings
# A window's GRACT (from the pair of samples at its ends) against the mean of its series: at most
# 0.0024 in the shipped records, 0.0102 in earlier ones.
GRACT_TOLERANCE = 0.0105
# How much shorter (s) and longer (relative) a slice may be: up to 3 ms on the shipped hosts.
SLICE_EARLY_S, SLICE_LATE = 0.001, 0.05
# Between a cell's start and its first window lie at most 460 s in the shipped records. Monotonic
# clocks of two machines differ by hours: they count from when a machine booted.
SAME_CLOCK_S = 600


@dataclass
class AttemptCheck:
    """An attempt, its record if it can be read, and sentences on what is wrong with its files."""

    attempt: Attempt
    record: Record | None = None
    problems: list[str] = field(default_factory=list)


def check_attempts(study: Path, digests: Mapping[str, str]) -> Iterator[AttemptCheck]:
    """Check every attempt of a study, given the SHA-256 of its files by name."""
    for attempt, files in attempts(digests).items():
        attempt_digests = {file: digests[f"{attempt.folder}/{file}"] for file in files}
        yield check_attempt(study, attempt, attempt_digests)


def check_attempt(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> AttemptCheck:
    """Check one attempt, given the SHA-256 of its files. Never raises for what they hold."""
    folder, check = study / attempt.folder, AttemptCheck(attempt)
    try:
        record = check.record = run_json.read_record(folder / RUN)
        check.problems += _name_problems(record, attempt)
        check.problems += _file_problems(record, digests)
        check.problems += _status_problems(record)
        check.problems += _slice_problems(record)
        check.problems += _rate_problems(folder, record)
        check.problems += _latency_problems(folder, record)
        check.problems += _telemetry_problems(folder, record)
    except Exception as error:  # the files may hold anything
        reason = f"{type(error).__name__}: {one_line(error)[:200]}"
        check.problems.append(f"its files cannot be read: {reason}")
    return check


def check_study(study: Path, checks: Iterable[AttemptCheck], names: Iterable[str]) -> list[str]:
    """Sentences on what is wrong between attempts, and between them and the study's lists.

    names: files of the study. Never raises for what the folder holds.
    """
    measured = defaultdict(list)
    for check in checks:
        if check.record and check.record.windows:
            machine = check.record.provenance.get("machine")
            measured[machine, check.record.device].append(check)
    try:
        problems = []
        for checks_of_gpu in measured.values():
            problems += _overlap_problems(checks_of_gpu)
        records = {f"{attempt.folder}/{RUN}" for attempt in attempts(names)}
        for name in sorted({*analysed_records(study)} ^ records):
            problems.append(f"{name} is {'not in' if name in records else 'only in'} {RUNS}")
        for cell in sorted({*cells_not_run(study, names)} ^ {*read_text(study / NOT_RUN).split()}):
            problems.append(f"cell {cell}: whether it has a record, {PLAN} and {NOT_RUN} disagree")
        return problems
    except Exception as error:  # the lists may hold anything
        return [f"{PLAN}, a list or a record cannot be read: {type(error).__name__}: {error}"[:300]]


def _name_problems(record: Record, attempt: Attempt) -> Iterator[str]:
    cell = record.cell
    parts = f"{cell.scenario}/{cell.implementation}/{record.method.name}/r{cell.replicate}"
    if {parts, cell.id} != {attempt.cell} or cell.attempt != attempt.number:
        yield f"{RUN} is of cell {cell.id} a{cell.attempt}, its parts name {parts}"


def _file_problems(record: Record, digests: Mapping[str, str]) -> Iterator[str]:
    recorded = {name: file.sha256 for name, file in record.files.items()}
    for name in sorted({*recorded, *digests} - {RUN}):
        if name not in digests:
            yield f"{name} is missing"
        elif recorded.get(name) != digests[name]:
            yield f"{name} is not the file whose SHA-256 {RUN} has"


def _status_problems(record: Record) -> Iterator[str]:
    """A completed cell has a window for each job of its spec, and evidence of its method."""
    measured = sum(bool(member.windows) for member in record.members)
    faults = {member.status for member in record.members} - {"completed", "departed"}
    if record.status == "completed" and (measured != len(record.jobs) or faults):
        yield f"{RUN}: status is completed, {measured} of {len(record.jobs)} members are"
    verified = [part.get("verified") for part in record.method.evidence.values() if part]
    if record.method.verified and (False in verified or not verified):
        yield f"{RUN}: method is verified, and its evidence is not"


def _slice_problems(record: Record) -> Iterator[str]:
    """Windows last as long as they say; slices as long, and as many, as the spec says."""
    measure, slices = record.spec["measure"], []
    for window in record.windows:
        place = f"{RUN}: window {window.name}"
        seconds = [(end_ns - start_ns) / 1e9 for start_ns, end_ns in window.pieces]
        if not isclose(window.seconds, sum(seconds), rel_tol=1e-6, abs_tol=1e-6):
            yield f"{place} lasts {window.seconds} s, by its ends {sum(seconds)}"
        if measure["kind"] != INTERLEAVED:
            continue
        planned_s = measure["slice_s"] - measure["drop_s"]
        if len(seconds) != measure["slices"]:
            yield f"{place} has {len(seconds)} slices, not {measure['slices']}"
        too_short = min(seconds) < planned_s - SLICE_EARLY_S
        if too_short or max(seconds) > (1 + SLICE_LATE) * planned_s:
            yield f"{place} has slices that do not last {planned_s:g} s"
        slices += window.pieces
    if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(slices))):
        yield f"{RUN}: a slice begins before another one is over"


def _rate_problems(folder: Path, record: Record) -> Iterator[str]:
    """Rates follow from the step times of each member."""
    if not any(member.windows for member in record.members):
        return
    table = read_table(folder / step_times.STEPS_FILE)
    tick_ns, steps = int(table.schema.metadata[b"tick_ns"]), step_times.read_steps(table)
    windows = {window.name: window for window in record.windows}
    drop_s = record.spec["measure"].get("drop_s") or 0.0
    for member in record.members:
        end_ns, _ = steps.get(member.member, (np.empty(0, np.int64), None))
        batch_size = record.jobs[member.member]["batch_size"]
        for name, recorded in member.windows.items():
            candidates = []
            for rate in _possible_rates(windows[name], end_ns, tick_ns, batch_size, drop_s):
                candidates.append(list(_rate_differences(recorded, rate, tick_ns, batch_size)))
                if not candidates[-1]:
                    break
            place = f"{RUN}: members[{member.member}].windows.{name}"
            for difference in min(candidates, key=len):
                yield f"{place}.{difference}"


def _possible_rates(
    window: Window, end_ns: np.ndarray, tick_ns: int, batch_size: int, drop_s: float
) -> Iterator[Rate]:
    """Rates that step times allow: they are rounded down to a tick, so that a step which ends in
    the tick of a window's edge may lie on either side of it.
    """
    for early_ns, late_ns in product((0, tick_ns - 1), repeat=2):
        if window.spans:
            yield step_times.member_rate(window, end_ns + early_ns, batch_size, drop_s)
            continue
        start, end = window.start_ns - early_ns, window.end_ns - late_ns
        moved = window.model_copy(update={"start_ns": start, "end_ns": end})
        yield step_times.member_rate(moved, end_ns, batch_size, drop_s)


def _rate_differences(
    recorded: Rate, computed: Rate, tick_ns: int, batch_size: int
) -> Iterator[str]:
    """Steps, rate, median step and slices of a record that step times do not give."""
    slices, rate = recorded.slices or (), recorded.samples_per_s
    if abs(computed.steps - recorded.steps) > len(slices):  # a step may lie on each slice's edge
        yield f"steps is {recorded.steps}, {step_times.STEPS_FILE} gives {computed.steps}"
    if rate and computed.samples_per_s:
        tolerance = SLICE_TOLERANCE
        if not slices:
            steps_per_s = rate / batch_size
            tolerance = 2 * tick_ns / 1e9 * steps_per_s / (recorded.steps - 1) + 1e-9
        agrees = isclose(rate, computed.samples_per_s, rel_tol=tolerance)
    else:
        agrees = rate == computed.samples_per_s
    if not agrees:
        yield f"samples_per_s is {rate}, {step_times.STEPS_FILE} gives {computed.samples_per_s}"
    median_ms, computed_ms = recorded.step_ms_p50, computed.step_ms_p50
    if abs((computed_ms or 0) - (median_ms or 0)) > 2e-6 * tick_ns:
        yield f"step_ms_p50 is {median_ms}, {step_times.STEPS_FILE} gives {computed_ms}"
    for index, slice_rate in enumerate(slices):
        if abs(slice_rate - computed.slices[index]) > SLICE_TOLERANCE * max(rate, batch_size):
            computed_rate = computed.slices[index]
            yield f"slices[{index}] is {slice_rate}, {step_times.STEPS_FILE} gives {computed_rate}"


def _latency_problems(folder: Path, record: Record) -> Iterator[str]:
    """Latencies follow from the times of each request's tokens."""
    latencies = {}
    for member in record.members:
        for name, rate in member.windows.items():
            if rate.latency:
                latencies[member.member, name] = rate.latency
    if not latencies:
        return
    requests = latency.read_requests(read_table(folder / latency.REQUESTS_FILE))
    windows = {window.name: window for window in record.windows}
    for (member, name), recorded in latencies.items():
        slo_ms = record.jobs[member].get("slo_ms")
        if recorded != latency.window_latencies(requests[member], windows[name], slo_ms):
            place = f"{RUN}: members[{member}].windows.{name}"
            yield f"{place}: {latency.REQUESTS_FILE} gives other latencies"


def _telemetry_problems(folder: Path, record: Record) -> Iterator[str]:
    """Means over windows follow from the series; counters are not compared, as they have none."""
    if record.telemetry is None:
        return
    telemetry = record.telemetry.windows
    windows = {window.name: window for window in record.windows}
    for file, column in (("gpu", "entity"), ("member", "member"), ("host", None)):
        entities = dict.fromkeys(
            entity for window in telemetry.values() for entity in _means(window, file)
        )
        if not entities:
            continue
        table = read_table(folder / f"{file}.parquet")
        if "window" in table.schema.names:  # read once after a window: no part of the series
            table = table.filter(table["window"].is_null())
        kinds = {field.name: (field.metadata or {}).get(b"kind") for field in table.schema}
        metrics = {name for name, kind in kinds.items() if kind not in (None, b"counter")} - {"pss"}
        for entity in entities:
            rows = table
            if column:
                rows = table.filter(pc.equal(table[column].cast("string"), entity))
            series = Series.of_table(rows)
            for name, window_telemetry in telemetry.items():
                window = windows[name]
                for metric, mean in _means(window_telemetry, file).get(entity, {}).items():
                    if metric not in metrics:
                        continue
                    computed = series.over(metric, window.ends, window.spans)
                    if not _close(mean, computed):
                        place = f"{RUN}: telemetry.windows.{name}.{entity}.{metric}"
                        yield f"{place} is {mean}, {file}.parquet gives {computed}"
                energy = window_telemetry.energy
                if entity != "gpu" or energy is None or not energy.integrated_joules:
                    continue
                joules = series.integral("power", window.ends)
                if not _close(energy.integrated_joules, joules):
                    recorded = f"integrated_joules is {energy.integrated_joules}"
                    yield f"{RUN}: telemetry.windows.{name}: {recorded}, readings give {joules}"
    for name, window_telemetry in telemetry.items():
        for entity, headline in window_telemetry.entities.items():
            pair = headline.get("gract")
            mean = window_telemetry.series.get(entity, {}).get("gract")
            if None not in (pair, mean) and abs(pair - mean) > GRACT_TOLERANCE:
                place = f"{RUN}: telemetry.windows.{name}"
                yield f"{place}: gract of {entity} is {pair}, its series has {mean}"


def _means(window: WindowTelemetry, file: str) -> dict[str, dict]:
    """Means over a window that come from a series file, by entity."""
    if file == "host":
        return {"host": window.host} if window.host else {}
    return window.series if file == "gpu" else window.members


def _close(recorded: float | None, computed: float | None) -> bool:
    if recorded is None or computed is None:
        return recorded is computed
    return isclose(recorded, computed, rel_tol=SERIES_TOLERANCE, abs_tol=1e-12)


def _overlap_problems(checks: list[AttemptCheck]) -> Iterator[str]:
    """No two cells have one GPU at the same time, by their windows and by when they began.

    Windows are in a machine's time since it booted, so that a cell of another machine shows.
    """
    spans, boots = [], []
    for check in checks:
        record = check.record
        began = datetime.fromisoformat(record.provenance["started_at"]).timestamp()
        start_ns = min(window.start_ns for window in record.windows)
        end_ns = max(window.end_ns for window in record.windows)
        locked = began + (record.timing.get("lock_wait_s") or 0)
        spans.append((start_ns, end_ns, locked, check.attempt))
        boots.append((began - start_ns / 1e9, check.attempt))
    for earlier, later in pairwise(sorted(spans)):
        _, end_ns, locked, attempt = earlier
        next_start_ns, _, next_locked, next_attempt = later
        if next_start_ns < end_ns or abs(next_locked - locked) < 1:
            yield f"cells {attempt} and {next_attempt} had one GPU at the same time"
    for boot, attempt in boots:
        distances = [abs(boot - other) for other, of_attempt in boots if of_attempt != attempt]
        if distances and min(distances) > SAME_CLOCK_S:
            yield f"cell {attempt} has another clock than the machine that it names"
