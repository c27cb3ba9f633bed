"""An independent reader of a study's folder: does what is written there agree with the raw series,
and with what was done to the processes?

It knows the formats from docs/study.md alone, and imports nothing that wrote or analyses them.
"""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq

RESULTS = ("completed", "out_of_memory", "unsupported")
FAULTS = ("failed", "timed_out")
KEPT = (*RESULTS, *FAULTS)
RATE = 1e-5  # relative; a tick is 10 µs
SETTLE_NS = 150_000_000  # for a signal to have been taken in
BARRED = "KILL", "SEGV"


def records(results: Path) -> dict[Path, dict]:
    """Every run.json that is one."""
    found = {}
    for path in sorted(results.glob("cells/*/*/*/r*/a*/run.json")):
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("status") in KEPT:
            found[path] = content
    return found


def lies(path: Path, record: dict) -> tuple[list[str], int]:
    """What run.json says that the files beside it do not, and how many rates were computed."""
    wrong = []
    folder = path.parent
    for name, told in record["files"].items():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            wrong.append(f"{name} is missing")
            continue
        if hashlib.sha256(content).hexdigest() != told["sha256"]:
            wrong.append(f"{name} is not the file that run.json names")
    for member in record["members"]:
        ended_well = member["exit_code"] == 0 and member["signal"] is None
        if member["status"] in ("completed", "departed") and not ended_well:
            how = f"exit {member['exit_code']}, signal {member['signal']}"
            wrong.append(f"member {member['member']} is {member['status']} with {how}")
    if record["status"] == "completed":
        wrong += _incomplete(record)
    if not (folder / "steps.parquet").exists():
        rates = [m["member"] for m in record["members"] if any(_rates(m).values())]
        return wrong + [f"member {m} has rates and no steps.parquet" for m in rates], 0
    read = 0
    ends, tick = _steps(folder / "steps.parquet")
    for member in record["members"]:
        index = member["member"]
        batch = record["spec"]["members"][index]["batch_size"]
        for window in record["windows"]:
            if (told := member["windows"].get(window["name"])) is None:
                continue
            read += 1
            own = ends.get(index, [])
            if window["name"] == "epochs":
                wrong += _epochs(index, told, member["epochs"], own, batch)
            else:
                wrong += _window(index, told, window, own, tick, batch)
    return wrong, read


def _incomplete(record: dict) -> list[str]:
    """What a completed cell lacks."""
    wrong = []
    if not record["windows"] or len(record["members"]) != len(record["spec"]["members"]):
        wrong.append("completed without a window, or with too few members")
    for member in record["members"]:
        if member["status"] not in ("completed", "departed"):
            wrong.append(f"completed, and member {member['member']} is {member['status']}")
        names = {w["name"] for w in record["windows"]} - (
            {"after"} if member["status"] == "departed" else set()
        )
        if member["windows"].keys() != names:
            wrong.append(f"completed, and member {member['member']} has not all windows")
        if not all(_rates(member).values()):
            wrong.append(f"completed, and member {member['member']} has no rate")
    return wrong


def _rates(member: dict) -> dict:
    return {name: window["samples_per_s"] for name, window in member["windows"].items()}


def _steps(path: Path) -> tuple[dict[int, list[int]], int]:
    """Each member's step ends, ns; and a tick's length."""
    table = pq.read_table(path, columns=["member", "tick"])
    told = table.schema.metadata
    tick, origin = int(told[b"tick_ns"]), int(told[b"origin_ns"])
    ends: dict[int, list[int]] = {}
    for member, at in zip(table["member"].to_pylist(), table["tick"].to_pylist(), strict=True):
        ends.setdefault(member, []).append(at * tick + origin)
    return ends, tick


def _window(
    index: int, told: dict, window: dict, ends: list[int], tick: int, batch: int
) -> list[str]:
    """A step's end is known to a tick, so which steps are inside may be open at both edges."""
    start, end = window["start_ns"], window["end_ns"]
    if abs((end - start) / 1e9 - window["seconds"]) > 1e-6:
        return [f"window {window['name']} is not as long as it says"]
    possible = []
    for first in (start, start - tick):
        for last in (end, end - tick):
            inside = [t for t in ends if first <= t < last]
            took = (inside[-1] - inside[0]) / 1e9 if len(inside) > 1 else 0
            possible.append((len(inside), batch * (len(inside) - 1) / took if took else None, took))
    for steps, rate, took in possible:
        if steps == told["steps"]:
            if rate is None or told["samples_per_s"] is None:
                if rate is told["samples_per_s"]:
                    return []
            elif abs(rate / told["samples_per_s"] - 1) <= RATE + 2 * tick / 1e9 / took:
                return []
    said = f"{told['steps']} steps, {told['samples_per_s']} samples/s"
    return [f"member {index}, {window['name']}: run.json says {said}; steps.parquet {possible[0]}"]


def _epochs(index: int, told: dict, epochs: list[dict], ends: list[int], batch: int) -> list[str]:
    """Steps of the epochs are the member's first, and lie in the epochs' time."""
    samples, took = sum(e["samples"] for e in epochs), sum(e["train_s"] for e in epochs)
    rate = samples / took if took else None
    if rate is None or abs(rate / told["samples_per_s"] - 1) > RATE:
        return [f"member {index}, epochs: run.json says {told['samples_per_s']}, its epochs {rate}"]
    steps = samples // batch
    if steps != told["steps"] or len(ends) < steps:
        return [f"member {index}, epochs: {told['steps']} steps, steps.parquet has {len(ends)}"]
    # From the first to the last step's end: training and validation, less the first step.
    spent = (ends[steps - 1] - ends[0]) / 1e9
    most = took + sum(epoch["validation_s"] for epoch in epochs)
    if not took / 2 * (1 - 2 / steps) <= spent <= most + 0.5:
        return [f"member {index}, epochs: {most:.3f} s told, steps.parquet shows {spent:.3f} s"]
    return []


def denied(path: Path, record: dict, done: list[dict]) -> list[str]:
    """Where the record denies what was done to its processes.

    done: {"victim", "what", "pid", "t_ns", "until_ns", "cell"} on the monotonic clock, of this run.
    """
    wrong = []
    pids = {member["pid"]: member for member in record["members"]}
    last = max((window["end_ns"] for window in record["windows"]), default=0)
    for deed in done:
        member = pids.get(deed["pid"]) if deed["victim"] in ("member", "script") else None
        told = f"{deed['what']} to {deed['victim']} {deed['pid']}"
        barred = member and deed["what"] in BARRED and deed["t_ns"] < last
        if barred and "completed" in (member["status"], record["status"]):
            wrong.append(f"{record['status']} after {told} in its window")
        if member and deed["what"] in ("STOP", "HANG") and (path.parent / "steps.parquet").exists():
            ends, _ = _steps(path.parent / "steps.parquet")
            since, until = deed["t_ns"] + SETTLE_NS, deed["until_ns"] or float("inf")
            made = [t for t in ends.get(member["member"], []) if since < t < until]
            if made:
                wrong.append(f"{len(made)} steps while it was stopped: {told}")
        hung = deed["what"] == "HANG" and member and deed["t_ns"] < last
        if hung and record["status"] == "completed":
            wrong.append(f"completed after {told}")
    return wrong


def stalls(record: dict, done: list[dict], flags: set[str]) -> list[str]:
    """Stops of members well inside a window that no flag tells of. flags: of the cell."""
    if record["status"] != "completed" or flags - {"cores_shared"}:
        return []
    found = []
    pids = {member["pid"] for member in record["members"]}
    for deed in done:
        if deed["what"] != "STOP" or deed["pid"] not in pids or not deed["until_ns"]:
            continue
        for window in record["windows"]:
            long = window["end_ns"] - window["start_ns"]
            since = max(deed["t_ns"], window["start_ns"])
            lost = min(deed["until_ns"], window["end_ns"]) - since
            timed = window["name"] in ("window", "before", "after")
            if timed and lost > max(0.25 * long, 6e8):
                found.append(f"a stop of {lost / long:.0%} of {window['name']} carries no flag")
    return found


def flags(results: Path) -> dict[str, set[str]]:
    """Attempt "cell/a1" → its flags: its own, and those of the numbers that come from it."""
    found: dict[str, set[str]] = {}
    for row in pq.read_table(results / "runs.parquet").to_pylist():
        cell = f"{row['cell']}/a{row['attempt']}"
        found.setdefault(cell, set()).update(_split(row["flags"]))
    for row in pq.read_table(results / "estimates.parquet").to_pylist():
        for replicate in row["replicates"] or []:
            found.setdefault(replicate["cell"], set()).update(_split(row["flags"]))
    return found


def _split(text: str | None) -> set[str]:
    return {flag for flag in (text or "").split(";") if flag}


def tables(results: Path, found: dict[Path, dict]) -> list[str]:
    """Where runs.parquet and run.json differ in a rate."""
    wrong = []
    rows = pq.read_table(results / "runs.parquet").to_pylist()
    told = {
        (row["cell"], row["attempt"], row["member"], row["window"]): row["samples_per_s"]
        for row in rows
        if row["window"] is not None
    }
    for record in found.values():
        cell = record["cell"]
        for member in record["members"]:
            for name, rate in _rates(member).items():
                key = (cell["id"], cell["attempt"], member["member"], name)
                if key in told and told[key] != rate:
                    wrong.append(f"runs.parquet has {told[key]} for {key}, run.json {rate}")
                elif key not in told and record["status"] == "completed":
                    wrong.append(f"runs.parquet lacks {key}")
    return wrong


def unfinished(results: Path, found: dict[Path, dict]) -> list[str]:
    """Planned cells without a result."""
    have = {r["cell"]["id"] for r in found.values() if r["status"] in RESULTS}
    planned = json.loads((results / "plan.json").read_text())
    return sorted({cell["id"] for cell in planned} - have)
