"""A reader of a study's folder: does what is written there agree with the raw series, and with what
was done to the processes?

It imports nothing that wrote the records: the first is answered by what verifies a release.
"""

import json
from pathlib import Path

import pyarrow.parquet as pq

from release import cells, manifest
from release.contents import Attempt

RESULTS = ("completed", "out_of_memory", "unsupported")
FAULTS = ("failed", "timed_out")
KEPT = (*RESULTS, *FAULTS)
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


def lies(path: Path) -> list[str]:
    """What run.json says that the files beside it do not, as `make verify` finds it."""
    study, files = path.parents[6], [file for file in path.parent.iterdir() if file.is_file()]
    attempt, _ = Attempt.of(path.relative_to(study).as_posix())
    found = {file.name: manifest.sha256(file) for file in files}
    return list(cells.examine(study, attempt, found).wrong)


def _steps(path: Path) -> dict[int, list[int]]:
    """Each member's step ends, ns."""
    table = pq.read_table(path, columns=["member", "tick"])
    told = table.schema.metadata
    tick, origin = int(told[b"tick_ns"]), int(told[b"origin_ns"])
    ends: dict[int, list[int]] = {}
    for member, at in zip(table["member"].to_pylist(), table["tick"].to_pylist(), strict=True):
        ends.setdefault(member, []).append(at * tick + origin)
    return ends


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
            ends = _steps(path.parent / "steps.parquet")
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
            for name, window in member["windows"].items():
                rate = window["samples_per_s"]
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
