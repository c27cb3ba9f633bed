"""Does an attempt agree with itself? run.json against the files beside it.

Rates, losses, telemetry and energy in run.json were computed when it was measured, from readings
that are in the Parquet files: step ends to 10 µs, telemetry in single precision. So they can be
computed again, to that precision. Numbers that no file repeats (a PID, a core, a wall time) are
held by raw.sha256 alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.names import COMPLETION
from release import readings
from release.contents import RUN, Attempt, read_json, read_table
from release.manifest import sha256
from workflow.collocation import steps
from workflow.collocation.record import Record

STEPS = "steps.parquet"
# Status of a member that ended badly → the status of its cell.
FAULTS = {"out_of_memory": "out_of_memory", "timed_out": "timed_out", "failed": "failed"}
FAULTS |= {"killed": "failed"}
KEPT = 100  # losses of a member in run.json
LEAST_STEPS = 8  # of a member, for its times to be unlike any other's
UNREADABLE = (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError)
UNREADABLE += (OverflowError, RecursionError, pa.ArrowException)


@dataclass
class Checked:
    """What was found of an attempt.

    wrong: sentences. record: its cell, spec and status. steps: digests of its members' step times
    and losses, without where they begin. span: the time it held its GPU, from and to, in s of the
    wall clock. first: (workload, arm, seed, SMs) → losses of step 0.
    """

    attempt: Attempt
    wrong: list[str]
    record: dict = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    span: tuple[str, float, float] | None = None
    first: dict[tuple, list[float]] = field(default_factory=dict)


def check(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> list[str]:
    """Sentences: where an attempt's files contradict each other.

    digests: name in the study → SHA-256 of its files, where they are known already.
    """
    return examine(study, attempt, digests).wrong


def examine(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> Checked:
    """The same, with what other attempts are held against. Never raises for what the files hold."""
    folder = study / attempt.folder
    try:
        record = read_json(folder / RUN)
        Record.model_validate(record)
    except UNREADABLE as error:  # pydantic's error is a ValueError
        return Checked(attempt, [f"{RUN} is no record: {' '.join(str(error).split())[:200]}"])
    found = Checked(attempt, [], {key: record[key] for key in ("cell", "spec", "status")})
    try:
        for part in (
            _named(record, attempt),
            _files(study, attempt, record, digests),
            status(record),
        ):
            found.wrong += part
        found.span, found.first = _span(record), _first(record)
        found.wrong += _windows(record)
        found.wrong += _steps(folder, record, found)
        found.wrong += readings.telemetry(folder, record)
    except UNREADABLE as error:
        said = " ".join(str(error).split())[:200]
        found.wrong.append(f"its files cannot be read: {type(error).__name__}: {said}")
    return found


def _named(record: dict, attempt: Attempt) -> Iterator[str]:
    """What it says it is, against where it is."""
    cell = record["cell"]
    if (cell["id"], cell["attempt"]) != (attempt.cell, attempt.number):
        yield f"{RUN} is of cell {cell['id']} a{cell['attempt']}"
    said = f"{cell['scenario']}/{cell['arm']}/{cell['method']}/r{cell['replicate']}"
    if said != cell["id"]:
        yield f"{RUN}: its parts name cell {said}"
    methods = (record["method"]["name"], record["spec"].get("method", cell["method"]))
    if any(method != cell["method"] for method in methods):
        yield f"{RUN}: its method is {' and '.join(methods)}"


def _files(study: Path, attempt: Attempt, record: dict, digests: Mapping) -> Iterator[str]:
    """The files beside it, by what it says of their size and hash."""
    folder = study / attempt.folder
    named = record.get("files") or {}
    there = {path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    for name in sorted(there - named.keys() - {RUN}):
        if not name.startswith("."):
            yield f"{name} is not named in {RUN}"
    for name, file in named.items():
        if name not in there:
            yield f"{name} is missing"
            continue
        path = folder / name
        digest = digests.get(f"{attempt.folder}/{name}") or sha256(path)
        if digest != file["sha256"] or path.stat().st_size != file["bytes"]:
            yield f"{name} is not the file whose SHA-256 and size {RUN} has"


def status(record: dict) -> Iterator[str]:
    """The cell's status against its members' and the evidence of its method."""
    told, members = record["status"], record["members"]
    ended = [FAULTS[member["status"]] for member in members if member["status"] in FAULTS]
    measured = [member for member in members if member["windows"]]
    if told == "completed":
        if len(members) != len(record["spec"]["members"]) or not record["windows"]:
            yield f"{RUN}: status is completed, and not every member has a window"
        for member in members:
            if member["status"] not in ("completed", "departed") or not member["windows"]:
                fate = member["status"] if member["windows"] else "without a window"
                yield f"{RUN}: status is completed, member {member['member']} is {fate}"
    elif told in ("unsupported", "postponed"):
        if measured:
            yield f"{RUN}: status is {told}, and members have rates"
    elif told != "failed" and told not in ended:
        fates = ", ".join(sorted({member["status"] for member in members})) or "none there"
        yield f"{RUN}: status is {told}, its members are {fates}"
    elif measured and not ended and record["method"]["verified"] and record["phase"] != "stop":
        yield f"{RUN}: status is {told}, and no member's is"  # nor did what came after them fail
    if ended and told not in (*ended, "failed") and told != "completed":
        yield f"{RUN}: status is {told}, a member's is {ended[0]}"
    proofs = [part.get("verified") for part in record["method"]["evidence"].values() if part]
    if record["method"]["verified"] and (False in proofs or not proofs):
        yield f"{RUN}: method is verified, and its evidence is not"


def _span(record: dict) -> tuple[str, float, float] | None:
    timing, started = record["timing"], record["provenance"].get("started_at")
    if not (record["gpu"] and record["windows"] and started and "total_s" in timing):
        return None
    at = datetime.fromisoformat(started).timestamp()
    return record["gpu"]["uuid"], at + timing.get("lock_wait_s", 0), at + timing["total_s"]


def _first(record: dict) -> dict[tuple, list[float]]:
    found: dict[tuple, list[float]] = {}
    for member in record["members"]:
        if member["loss"]["step"][:1] == [0] and member["loss"]["value"][0] is not None:
            # Random numbers depend on how many SMs a process sees.
            key = (member["workload"], record["cell"]["arm"], record["spec"].get("seed"))
            key = (*key, member["sm_count"])
            found.setdefault(key, []).append(member["loss"]["value"][0])
    return found


# -- steps ------------------------------------------------------------------------------------


def _windows(record: dict) -> Iterator[str]:
    for window in record["windows"]:
        took = (window["end_ns"] - window["start_ns"]) / 1e9
        if not took > 0 or abs(took - window["seconds"]) > 1e-6 * max(took, 1):
            yield f"{RUN}: window {window['name']} lasts {window['seconds']} s, by its ends {took}"


def _steps(folder: Path, record: dict, found: Checked) -> Iterator[str]:
    """Rates by the step ends, and losses, of each member."""
    if not (folder / STEPS).exists():
        rated = [member["member"] for member in record["members"] if member["windows"]]
        if rated or record["status"] == "completed":
            yield f"{STEPS} is missing: nothing shows the rates of members {rated}"
        return
    table = read_table(folder / STEPS)
    tick_ns, origin_ns = (int(table.schema.metadata[k]) for k in (b"tick_ns", b"origin_ns"))
    windows = {window["name"]: window for window in record["windows"]}
    if windows and origin_ns != record["windows"][0]["start_ns"]:
        yield f"{STEPS} begins at another time than the first window"
    column = {name: table[name].to_numpy() for name in ("member", "tick", "loss")}
    if extra := set(column["member"].tolist()) - {m["member"] for m in record["members"]}:
        yield f"{STEPS} has steps of members {sorted(extra)}, who are not in {RUN}"
    for member in record["members"]:
        own = column["member"] == member["member"]
        ticks, losses = column["tick"][own], column["loss"][own]
        size = record["spec"]["members"][member["member"]]["batch_size"]
        place = f"{RUN}: members[{member['member']}]"
        if len(ticks) >= LEAST_STEPS:
            content = np.diff(ticks).tobytes() + losses.tobytes()
            found.steps.append(hashlib.sha256(content).hexdigest())
        p50 = min((r["step_ms_p50"] or math.inf for r in member["windows"].values()), default=1)
        warm_up = record["timing"].get("warm_s", 0) * 1e3 / p50
        yield from _losses(f"{place}.loss", member["loss"], losses, warm_up)
        for name, rate in member["windows"].items():
            where = f"{place}.windows.{name}"
            if name == "epochs":
                yield from _epochs(where, rate, member["epochs"], size)
            elif name not in windows:
                yield f"{where}: there is no such window"
            else:
                ends = [(windows[name][k] - origin_ns) / tick_ns for k in ("start_ns", "end_ns")]
                yield from _rate(where, rate, ticks, ends, tick_ns, size)


def _losses(place: str, told: dict, column: np.ndarray, warm_up: float) -> Iterator[str]:
    """Losses of the steps that are in both: run.json has those of the warm-up before.

    Which step is the table's first nobody says, so that any place at which all agree will do.
    warm_up: most steps before it. So many may leave none in common, as run.json keeps the first.
    """
    at = np.flatnonzero(np.isfinite(column))
    at_step, values = (np.array(told[key], float) for key in ("step", "value"))
    if len(at_step) != len(values):
        yield f"{place} has {len(at_step)} steps and {len(values)} values"
        return
    if not len(at) or not len(at_step):
        if len(at) or (len(column) and np.isfinite(values).any() and len(at_step) < KEPT):
            yield f"{place} has {len(at_step)} losses, {STEPS} has {len(at)}"
        return
    known = dict(zip(at_step, values, strict=True))
    finite = at_step[np.isfinite(values)]
    for first in finite - at[0]:
        both = [(known.get(first + i), column[i]) for i in at if first + i <= at_step[-1]]
        if all(a is not None and abs(a - b) <= 1e-5 * abs(b) + 2e-6 for a, b in both):
            return
    if len(at_step) < KEPT or at_step[-1] >= warm_up:
        yield f"{place} is not what {STEPS} has, which begins with {column[at[0]]:.6g}"


def _rate(place: str, told: dict, ticks, span: list[float], tick_ns: int, size: int):
    """A tick is the time of a step's end rounded down, so that a step in the tick of the window's
    end may lie on either side of it.
    """
    start, end = span
    ways = ((math.floor(start), end), (start, math.floor(end)))
    found = [steps.rate(ticks * tick_ns, a * tick_ns, b * tick_ns, size) for a, b in ways]
    given = next((rate for rate in found if rate.steps == told["steps"]), None)
    if given is None:
        yield f"{place}.steps is {told['steps']}, {STEPS} has {found[0].steps}"
        return
    if given.samples_per_s is None:
        return
    total, one = size * (given.steps - 1) / given.samples_per_s * 1e3, tick_ns / 1e6  # ms
    slack = dict.fromkeys(("step_ms_p50", "step_ms_p95", "step_ms_p99"), one)  # an end is rounded
    slack["samples_per_s"] = given.samples_per_s * one / max(total - one, one)
    if given.drift is not None and not place.endswith(f".{COMPLETION}"):  # whose end is alone
        third = (given.steps - 1) // 3
        slack["drift"] = 7.5 * one / third / (total / given.steps) * max(1.0, 1 + given.drift)
    for name, of in slack.items():
        value = getattr(given, name)
        if told.get(name) is None or not abs(told[name] - value) <= of + 1e-9 * abs(value):
            yield f"{place}.{name} is {told.get(name)}, {STEPS} gives {value:.6g}"


def _epochs(place: str, rate: dict, epochs: list[dict], size: int) -> Iterator[str]:
    took = sum(epoch["train_s"] for epoch in epochs)
    samples = sum(epoch["samples"] for epoch in epochs)
    value, told = samples / took if took else None, rate["samples_per_s"]
    if rate["steps"] != samples // size:
        yield f"{place}.steps is {rate['steps']}, its epochs have {samples // size}"
    if (value is None) != (told is None) or (value and abs(told - value) > 1e-9 * value):
        yield f"{place}.samples_per_s is {told}, its epochs give {value}"
