"""Reading run.json files. A file that cannot be read becomes a line, never a crash."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from analysis.records.safe import one_line, printable, read_text
from workflow.collocation.spec.names import ALONE_VARIANTS, parse_scenario

SCHEMA_VERSION = 1

# What `device_of`, `is_baseline` and analysis.records.attempts look at.
_IDENTITY = ("study", "cell", "spec", "status", "gpu", "provenance")
# What was left out of a result: (path or cell id, one line that says why).
Problems = list[tuple[str, str]]


def read_records(
    paths: Iterable[Path], keys: Iterable[str] | None = None
) -> tuple[list[dict], Problems]:
    """Return (records, problems); each record with its "path", and the "folder" that holds it.

    keys: keep only these of a record, and what says which cell it is of: all that a long study's
    records hold takes hundreds of megabytes.
    """
    records, problems = [], []
    for path in map(Path, paths):
        try:
            record = json.loads(read_text(path))
            _check(record)
        except RecursionError:
            problems.append((str(path), "nested too deeply"))
            continue
        except (OSError, ValueError) as error:
            problems.append((str(path), one_line(error)))
            continue
        if keys is not None:
            record = {key: record.get(key) for key in (*_IDENTITY, *keys)}
        records.append(record | {"folder": path.parent, "path": path})
    return records, problems


def of_study(records: list[dict], study: str) -> tuple[list[dict], Problems]:
    """The study's own records, and a problem for each of another study."""
    own = [record for record in records if record.get("study") == study]
    others = [record for record in records if record.get("study") != study]
    return own, [(place_of(r), f"belongs to study {r.get('study')!r}") for r in others]


def note_left_out(output: Path, problems: Problems) -> None:
    """Say on stderr and in a note beside OUTPUT what was left out of it; no problem, no note."""
    note = output.with_suffix(".unreadable.txt")
    note.unlink(missing_ok=True)
    if problems:
        lines = "".join(f"{printable(f'{where}: {what}')}\n" for where, what in problems)
        note.write_text(lines, encoding="utf-8")
        sys.stderr.write(f"left out of {output}:\n{lines}")


def place_of(record: dict) -> str:
    """What a problem of a record is named by: its file; of one that was not read, its cell."""
    return str(record.get("path") or record["cell"]["id"])


def _check(record: object) -> None:
    """Raise ValueError unless the parts that every reader needs are there, and of their types.

    A completed cell without any member's window has measured nothing, whatever its status says.
    """
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version is {record.get('schema_version')!r}, not {SCHEMA_VERSION}"
        )
    _need(record, "", {"cell": dict, "spec": dict, "status": str})
    _need(record, "", {key: kind for key, kind in _PARTS.items() if record.get(key) is not None})
    _need(record["cell"], "cell.", _CELL)
    _need(record["spec"], "spec.", {"members": list})
    parse_scenario(record["cell"]["scenario"])
    if not isinstance((record.get("gpu") or {}).get("uuid") or "", str):
        raise ValueError("gpu.uuid is no text")
    jobs, windows = record["spec"]["members"], 0
    if not all(isinstance(job, dict) and isinstance(job.get("workload", ""), str) for job in jobs):
        raise ValueError("spec.members: not all are objects with a workload")
    for member in record.get("members") or []:
        index = member.get("member") if isinstance(member, dict) else None
        if type(index) is not int or not 0 <= index < len(jobs):
            raise ValueError(f"members: {index!r} is none of spec.members")
        _need(member, f"members[{index}].", {"windows": dict} if member.get("windows") else {})
        for name, window in (member.get("windows") or {}).items():
            windows += 1
            rate = window.get("samples_per_s") if isinstance(window, dict) else window
            known = isinstance(rate, int | float) and 0 <= rate < math.inf
            if rate is not None and not known:
                raise ValueError(f"members[{index}].windows.{name}: its rate is {rate!r}")
    if record["status"] == "completed" and not (windows and record.get("windows")):
        raise ValueError("completed without any member's window: nothing was measured")


_TEXT = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
_CELL = dict.fromkeys(("id", "scenario", "arm", "method"), str)
_CELL |= dict.fromkeys(("replicate", "attempt"), int)
_PARTS = dict.fromkeys(("gpu", "host", "method", "provenance", "telemetry", "timing"), dict)
_PARTS |= dict.fromkeys(("members", "windows", "data", "flags"), list) | {"study": str}


def _need(holder: dict, prefix: str, kinds: dict[str, type]) -> None:
    """Raise ValueError unless all these keys are there, with a value of that type."""
    for key, kind in kinds.items():
        if not isinstance(holder.get(key), kind):
            raise ValueError(f"{prefix}{key} is missing or not {_TEXT[kind]}")


def input_paths(arguments: argparse.Namespace) -> list[Path]:
    """The records that a command was given: as arguments, or a path a line in a file."""
    listed = arguments.list.read_text(encoding="utf-8").splitlines() if arguments.list else []
    return [*arguments.runs, *(Path(line) for line in listed if line.strip())]


def device_of(record: dict) -> str:
    """The GPU's UUID; on a machine without one, its alias, so that machines are never mixed."""
    gpu = record.get("gpu") or {}
    return gpu.get("uuid") or f"cpu:{(record.get('provenance') or {}).get('machine')}"


def is_baseline(record: dict) -> bool:
    """Completed alone, naive, in a window, with its share of the cores: what progress refers to."""
    scenario = parse_scenario(record["cell"]["scenario"])
    return (
        record["status"] == "completed"
        and record["cell"]["method"] == "naive"
        and scenario.n == 1
        and scenario.variant in ALONE_VARIANTS
    )
