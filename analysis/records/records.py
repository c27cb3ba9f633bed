"""Reading run.json files. One that is no record becomes a line, never a crash."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from analysis.records.safe import one_line, printable
from workflow.collocation.record import run_json
from workflow.collocation.spec.names import ALONE_VARIANTS, parse_scenario

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
            record = run_json.read(path).model_dump(exclude_unset=True)
        except (OSError, run_json.NoRecord) as error:
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
