"""Reading run.json files. A file that cannot be read becomes a line, never a crash."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from analysis.names import ALONE_VARIANTS, parse_scenario

SCHEMA_VERSION = 1

# What `device_of`, `is_baseline` and analysis.records.attempts look at.
_IDENTITY = ("study", "cell", "spec", "status", "gpu", "provenance")
# What was left out of a result: (path or cell id, one line that says why).
Problems = list[tuple[str, str]]


def read_records(
    paths: Iterable[Path], keys: Iterable[str] | None = None
) -> tuple[list[dict], Problems]:
    """Return (records, problems); each record with its "folder", the one that it was found in.

    keys: keep only these of a record, and what says which cell it is of. All of a long study's
    records take hundreds of megabytes.
    """
    records, problems = [], []
    for path in map(Path, paths):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            _check(record)
        except (OSError, ValueError) as error:
            problems.append((str(path), one_line(error)))
            continue
        if keys is not None:
            record = {key: record.get(key) for key in (*_IDENTITY, *keys)}
        records.append(record | {"folder": path.parent})
    return records, problems


def of_study(records: list[dict], study: str) -> tuple[list[dict], Problems]:
    """The study's own records, and a problem for each of another study."""
    own = [record for record in records if record.get("study") == study]
    others = [record for record in records if record.get("study") != study]
    return own, [(r["cell"]["id"], f"belongs to study {r.get('study')!r}") for r in others]


def note_left_out(output: Path, problems: Problems) -> None:
    """Say on stderr and in a note beside OUTPUT what was left out of it; no problem, no note."""
    note = output.with_suffix(".unreadable.txt")
    note.unlink(missing_ok=True)
    if problems:
        lines = "".join(f"{where}: {what}\n" for where, what in problems)
        note.write_text(lines, encoding="utf-8")
        sys.stderr.write(f"left out of {output}:\n{lines}")


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def _check(record: object) -> None:
    """Raise ValueError unless the keys that every reader needs are there."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version is {record.get('schema_version')!r}, not {SCHEMA_VERSION}"
        )
    cell, spec = record.get("cell"), record.get("spec")
    for key in ("id", "scenario", "arm", "method", "replicate", "attempt"):
        if not isinstance(cell, dict) or key not in cell:
            raise ValueError(f"cell.{key} is missing")
    if not isinstance(spec, dict) or not isinstance(spec.get("members"), list):
        raise ValueError("spec.members is missing")
    parse_scenario(str(cell["scenario"]))
    if not isinstance(record.get("status"), str):
        raise ValueError("status is missing")


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Paths as arguments, or one per line in a file: a long study does not fit a command line."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json", help="records to read")
    parser.add_argument("--list", type=Path, metavar="FILE", help="file with one path per line")


def input_paths(arguments: argparse.Namespace) -> list[Path]:
    """All paths that `add_input_arguments` was given."""
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
