"""A reader of a study's folder: does what is written there agree with the raw series, and with what
was done to the processes?

It imports nothing that wrote the records: the first is answered by what verifies a release.
"""

import json
from pathlib import Path

import pyarrow.parquet as pq

from release import cells, manifest
from release.manifest import Attempt

RESULTS = ("completed", "out_of_memory", "unsupported")
FAULTS = ("failed", "timed_out")
KEPT = (*RESULTS, *FAULTS)
SETTLE_NS = 150_000_000  # for a signal to have been taken in


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


def denied(path: Path, record: dict, done: list[dict]) -> list[str]:
    """Where the record denies what was done to its members in this run, as Scene.deeds has it."""
    wrong = []
    members = {member["pid"]: member for member in record["members"]}
    last = max((window["end_ns"] for window in record["windows"]), default=0)
    for deed in done:
        member = members.get(deed["pid"]) if deed["victim"] == "member" else None
        if member is None:
            continue
        told = f"{deed['what']} to member {member['member']}"
        statuses = [record["status"], *([member["status"]] if deed["what"] != "HANG" else [])]
        ends_it = deed["what"] in ("KILL", "SEGV", "HANG") and deed["t_ns"] < last
        if ends_it and "completed" in statuses:
            wrong.append(f"{record['status']} after {told} in its window")
        steps = path.with_name("steps.parquet")
        if deed["what"] in ("STOP", "HANG") and steps.exists():
            since, until = deed["t_ns"] + SETTLE_NS, deed["until_ns"] or float("inf")
            if made := [t for t in _ends(steps, member["member"]) if since < t < until]:
                wrong.append(f"{len(made)} steps while it was stopped: {told}")
    return wrong


def _ends(path: Path, member: int) -> list[int]:
    """A member's step ends, ns."""
    table = pq.read_table(path, columns=["member", "tick"], filters=[("member", "==", member)])
    told = table.schema.metadata
    tick, origin = int(told[b"tick_ns"]), int(told[b"origin_ns"])
    return [at * tick + origin for at in table["tick"].to_pylist()]


def unfinished(results: Path) -> list[str]:
    """Planned cells without a result."""
    if not (results / "plan.json").exists():
        return ["all: there is no plan"]
    have = {r["cell"]["id"] for r in records(results).values() if r["status"] in RESULTS}
    planned = json.loads((results / "plan.json").read_text())
    return sorted({cell["id"] for cell in planned} - have)
