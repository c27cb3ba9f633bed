"""Does an attempt agree with itself? run.json against the files beside it.

Rates, losses, telemetry and energy are computed again from the Parquet files: step ends to 10 µs,
telemetry in single precision. What no file repeats (a PID, a core) is held by raw.sha256 alone.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.records.safe import read_json, read_table
from release import readings, slices
from release.contents import RUN, Attempt, one_line
from workflow.collocation.record import step_times as steps
from workflow.collocation.record.run_json import Record
from workflow.collocation.spec.names import ALTERNATE, COMPLETION

STEPS = "steps.parquet"
LEAST_STEPS = 8  # of a member, for its times to be unlike any other's
REPEATED = 50  # first steps, in which training on a GPU still repeats itself
MOST_STEPS = 128  # whose times are held against those of other cells


@dataclass
class Checked:
    """What was found of an attempt, and what other attempts are held against.

    wrong: sentences. record: its cell and spec. steps: digests of its members' step times and
    losses, without where they begin. took: how long each step of its members took. first:
    ((workload, arm, seed, SMs, input, step), loss) of the warm-up's steps, which no file repeats.
    """

    attempt: Attempt
    wrong: list[str] = field(default_factory=list)
    record: dict = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    took: list[np.ndarray] = field(default_factory=list)
    first: list[tuple[tuple, float]] = field(default_factory=list)


def examine(study: Path, attempt: Attempt, digests: Mapping[str, str]) -> Checked:
    """Check an attempt whose files have these SHA-256. Never raises for what they hold."""
    folder, found = study / attempt.folder, Checked(attempt)
    try:
        record = read_json(folder / RUN)
        Record.model_validate(record)
        found.record = {key: record[key] for key in ("cell", "spec")}
        found.wrong += _named(record, attempt)
        found.wrong += _files(record, digests)
        found.wrong += _status(record)
        found.wrong += _steps(folder, record, found)
        found.wrong += readings.telemetry(folder, record)
    except Exception as error:  # whatever the files hold, it is named
        found.wrong.append(f"its files cannot be read: {one_line(error)}")
    return found


def _named(record: dict, attempt: Attempt) -> Iterator[str]:
    """What it says it is, against where it is."""
    cell, method = record["cell"], record["method"]["name"]
    parts = f"{cell['scenario']}/{cell['arm']}/{method}/r{cell['replicate']}"
    if {parts, cell["id"]} != {attempt.cell} or cell["attempt"] != attempt.number:
        yield f"{RUN} is of cell {cell['id']} a{cell['attempt']}, its parts name {parts}"


def _files(record: dict, digests: Mapping[str, str]) -> Iterator[str]:
    told = {name: file["sha256"] for name, file in (record.get("files") or {}).items()}
    for name in sorted({*told, *digests} - {RUN}):
        if name not in digests:
            yield f"{name} is missing"
        elif told.get(name) != digests[name]:
            yield f"{name} is not the file whose SHA-256 {RUN} has"


def _status(record: dict) -> Iterator[str]:
    """The cell's status against its members' and the evidence of its method."""
    told, members, method = record["status"], record["members"], record["method"]
    fates = {member["status"] for member in members}
    measured = any(member["windows"] for member in members)
    ended = {"failed" if fate == "killed" else fate for fate in fates} - {"completed", "departed"}
    if told == "completed":
        short = len(members) != len(record["spec"]["members"]) or not record["windows"]
        wrong = short or ended or not all(member["windows"] for member in members)
    elif told == "unsupported":  # seen beforehand, or by a member that tried
        wrong = measured or ended - {"failed"}
    elif told == "postponed":
        wrong = measured or ended
    elif told == "failed":  # or what came after them did
        wrong = measured and not ended and method["verified"] and record["phase"] != "stop"
    else:
        wrong = told not in ended
    if wrong:
        those = f"{', '.join(sorted(fates)) or 'none'}{', with rates' if measured else ''}"
        yield f"{RUN}: status is {told}, its members are {those}"
    proofs = [part.get("verified") for part in method["evidence"].values() if part]
    if method["verified"] and (False in proofs or not proofs):
        yield f"{RUN}: method is verified, and its evidence is not"


def _steps(folder: Path, record: dict, found: Checked) -> Iterator[str]:
    """Windows by their ends; rates by the step ends, and losses, of each member."""
    windows = {window["name"]: window for window in record["windows"]}
    measure = record["spec"]["measure"]
    turns = measure["kind"] == ALTERNATE
    if turns:
        yield from slices.windows(record)
    for name, window in windows.items() if not turns else ():
        took = (window["end_ns"] - window["start_ns"]) / 1e9
        if not took > 0 or not abs(took - window["seconds"]) <= 1e-6 * max(took, 1):
            yield f"{RUN}: window {name} lasts {window['seconds']} s, by its ends {took}"
    if not (folder / STEPS).exists():
        if record["status"] == "completed" or any(m["windows"] for m in record["members"]):
            yield f"{STEPS} is missing: nothing shows the rates"
        return
    table = read_table(folder / STEPS)
    tick_ns, origin_ns = (int(table.schema.metadata[k]) for k in (b"tick_ns", b"origin_ns"))
    column = {name: table[name].to_numpy() for name in ("member", "tick", "loss")}
    for member in record["members"]:
        own = column["member"] == member["member"]
        ticks, losses = column["tick"][own], column["loss"][own]
        spec = record["spec"]["members"][member["member"]]
        size = spec["batch_size"]
        place = f"{RUN}: members[{member['member']}]"
        if len(ticks) >= LEAST_STEPS:
            found.took.append(np.diff(ticks)[:MOST_STEPS])
            content = np.diff(ticks).tobytes() + losses.tobytes()
            found.steps.append(hashlib.sha256(content).hexdigest())
        p50 = min((r["step_ms_p50"] or math.inf for r in member["windows"].values()), default=1)
        before = _warm_up(member["loss"], losses, record["timing"].get("warm_s", 0) * 1e3 / p50)
        if before is None:
            yield f"{place}.loss is not what {STEPS} has"
        # Random numbers depend on how many SMs a process sees.
        like = member["workload"], record["cell"]["arm"], record["spec"].get("seed")
        like = *like, member["sm_count"], str(spec.get("input"))
        told = zip(member["loss"]["step"], member["loss"]["value"], strict=True)
        for step, loss in told:
            if loss is not None and (step == 0 or step < min(before or 0, REPEATED)):
                found.first.append(((*like, step), loss))
        for name, told in member["windows"].items():
            where = f"{place}.windows.{name}"
            if turns:
                drop, spans = round(measure["drop_s"] * 1e9), windows[name]["spans"]
                clock = origin_ns, tick_ns
                yield from slices.rates(where, told, ticks, spans, drop, clock, size)
            else:
                ends = [(windows[name][k] - origin_ns) / tick_ns for k in ("start_ns", "end_ns")]
                yield from _rate(where, told, ticks, ends, tick_ns, size)


def _warm_up(told: dict, column: np.ndarray, warm_up: float) -> int | None:
    """How many steps came before the table's, which run.json alone has, as far as it tells; None
    where losses differ at the steps that are in both.

    Which step is the table's first nobody says, so that any place at which all agree will do.
    warm_up: most steps before it. So many may leave none in common, as run.json keeps the first.
    """
    known = dict(zip(told["step"], told["value"], strict=True))
    there = [step for step, value in known.items() if value is not None]
    kept, last = np.flatnonzero(np.isfinite(column)), max(known, default=-1)
    cut = len(known) >= steps.LOSSES_KEPT
    if not len(kept):
        return 0 if cut or not there or not len(column) else None
    for first in (step - kept[0] for step in there):
        both = [(known.get(first + i), column[i]) for i in kept if first + i <= last]
        if all(a is not None and abs(a - b) <= 1e-5 * abs(b) + 2e-6 for a, b in both):
            return first
    return 0 if cut and last < warm_up else None


def _rate(place: str, told: dict, ticks, window: list[float], tick_ns: int, size: int):
    """A tick is the time of a step's end rounded down, so that a step in the tick of the window's
    end may lie on either side of it. window: from and to, in ticks.
    """
    start, end = window
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
