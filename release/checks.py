"""Whether the files of an attempt agree with its record and with each other.

Rates are computed again from step times, and telemetry from its series, by the functions that wrote
them. Further checks hold for every study: slices are as long as the spec says and leave no hole,
each job of a completed cell has a window, the evidence names each job's process and the card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import isclose
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.files import one_line, read_table
from release.manifest import Attempt, attempts
from release.telemetry_checks import energy_readings, read_series, telemetry_problems
from workflow.collocation.record import latency, run_json, step_times
from workflow.collocation.record.run_json import Rate, Record
from workflow.collocation.record.values import Window
from workflow.collocation.study.layout import RUN
from workflow.collocation.study.names import INTERLEAVED

SLICE_TOLERANCE = 1e-4  # relative: the steps at a slice's edges, each known to a tick
# How much shorter (s) and longer (relative) a slice may be: up to 3 ms on the shipped hosts.
SLICE_EARLY_S, SLICE_LATE = 0.001, 0.05
ENDED_WELL = ("completed", "departed")  # statuses of a member
BARRIER = "barrier"  # when evidence is collected of all members; later, of those that are left
NO_STEPS = (np.empty(0, np.int64), None)


@dataclass
class AttemptCheck:
    """An attempt, its record if it can be read, and sentences on what is wrong with its files.

    step_ticks: when its steps ended, as bytes, which no two measurements share. energy_j: first and
    last reading of the card's energy counter.
    """

    attempt: Attempt
    record: Record | None = None
    problems: list[str] = field(default_factory=list)
    step_ticks: bytes = b""
    energy_j: tuple[float, float] | None = None


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
        check.problems += _evidence_problems(record)
        check.problems += _slice_problems(record)
        if any(member.windows for member in record.members):
            table = read_table(folder / step_times.STEPS_FILE)
            check.step_ticks = table["tick"].to_numpy().tobytes()
            check.problems += _rate_problems(table, record)
            check.problems += _fault_problems(table, record)
        check.problems += _latency_problems(folder, record)
        series = read_series(folder, record)
        check.problems += telemetry_problems(record, series)
        readings = energy_readings(series)
        check.energy_j = (readings[0], readings[-1]) if len(readings) else None
    except Exception as error:  # the files may hold anything
        reason = f"{type(error).__name__}: {one_line(error)[:200]}"
        check.problems.append(f"its files cannot be read: {reason}")
    return check


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
    faults = {member.status for member in record.members} - {*ENDED_WELL}
    if record.status == "completed" and (measured != len(record.jobs) or faults):
        yield f"{RUN}: status is completed, {measured} of {len(record.jobs)} members are"
    verified = [part.get("verified") for part in record.method.evidence.values() if part]
    if record.method.verified and (False in verified or not verified):
        yield f"{RUN}: method is verified, and its evidence is not"


def _evidence_problems(record: Record) -> Iterator[str]:
    """Evidence of a completed cell names every member's process, and the card."""
    if record.status != "completed":
        return
    uuids = {member.device_uuid for member in record.members}
    for when, part in record.method.evidence.items():
        named_pids, named_uuids = _named_in(part)
        uuids |= named_uuids
        for member in record.members:
            is_gone = member.status == "departed" and when != BARRIER
            if part.get("verified") and not is_gone and member.pid not in named_pids:
                yield f"{RUN}: evidence.{when} does not name member {member.member}'s process"
    for uuid in sorted(uuids - {None, record.gpu and record.gpu.uuid}):
        if not uuid.startswith("MIG-"):
            yield f"{RUN}: a member ran on {uuid}, which is not the cell's GPU"


def _named_in(evidence: Mapping) -> tuple[set[int], set[str]]:
    """PIDs of members, and UUIDs of devices, that a piece of evidence names."""
    pids, uuids = set(), set()
    for key, value in evidence.items():
        if key == "devices":
            uuids |= {*value.values()}
        elif key == "members" and isinstance(value, dict):  # of MIG
            pids |= {seat["pid"] for seat in value.values()}
        elif key in ("members", "clients"):
            pids |= {*value}
        elif isinstance(value, dict):
            inner_pids, inner_uuids = _named_in(value)
            pids, uuids = pids | inner_pids, uuids | inner_uuids
    return pids, uuids


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
    holes_s = [(later[0] - earlier[1]) / 1e9 for earlier, later in pairwise(sorted(slices))]
    if min(holes_s, default=0) < 0:
        yield f"{RUN}: a slice begins before another one is over"
    rates = [rate for member in record.members for rate in member.windows.values()]
    step_s = max((rate.step_ms_p50 or 0 for rate in rates), default=0) / 1e3
    # Between two slices the members end their step; the longest hole that ships is 0.49 s.
    if slices and max(holes_s, default=0) > measure["slice_s"] + step_s:
        yield f"{RUN}: between two slices is a hole of {max(holes_s):.2f} s, in which one has room"


def _rate_problems(table: pa.Table, record: Record) -> Iterator[str]:
    """Rates follow from the step times of each member."""
    tick_ns, steps = int(table.schema.metadata[b"tick_ns"]), step_times.read_steps(table)
    windows = {window.name: window for window in record.windows}
    drop_s = record.spec["measure"].get("drop_s") or 0.0
    for member in record.members:
        end_ns, _ = steps.get(member.member, NO_STEPS)
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


def _fault_problems(table: pa.Table, record: Record) -> Iterator[str]:
    """A cell that did not complete has a member, or evidence, that shows why."""
    verified = [part.get("verified") for part in record.method.evidence.values()]
    ended_well = all(member.status in ENDED_WELL for member in record.members)
    is_script = record.jobs[0].get("kind") == "command"  # it fails where it leaves its GPU idle
    if record.status == "completed" or is_script or not (ended_well and all(verified)):
        return
    steps = step_times.read_steps(table)
    pauses = {}
    for window in record.windows:
        for member in record.members:
            if rate := member.windows.get(window.name):
                end_ns = steps.get(member.member, NO_STEPS)[0]
                shares = step_times.pause_shares(window, end_ns, rate.slices)
                pauses[member.member, window.name] = shares
    workloads = [member.workload for member in record.members]
    if step_times.find_stopped_member(record.windows, pauses, workloads) is None:
        yield f"{RUN}: status is {record.status}, and every member ended well"


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
