"""Reading run.json files. A file that cannot be read becomes a line, never a crash."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from analysis.names import ALONE_VARIANTS, parse_scenario

SCHEMA_VERSION = 1


def read_records(paths: Iterable[Path]) -> tuple[list[dict], list[tuple[str, str]]]:
    """Return (records, problems); a problem is (path, one line that says what is wrong)."""
    records, problems = [], []
    for path in paths:
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            _check(record)
        except (OSError, ValueError) as error:
            problems.append((str(path), " ".join(str(error).split())))
        else:
            records.append(record)
    return records, problems


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
