"""Was the same work done, what differs within a study, and which numbers are suspect?

python -m analysis.tables.checks --study smoke --output results/smoke/checks.json \\
    --evidence results/smoke/tables/evidence CELL/run.json ...

--evidence: also write STEM.csv and STEM.md, what proves that each cell's method was in force.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd

from analysis import flags
from analysis.records.losses import DIFFERS, loss_checks
from analysis.records.merge import merge
from analysis.records.records import add_input_arguments, input_paths, read_records
from analysis.tables import evidence
from analysis.twins import phrase, twin_checks


def mismatches(records: list[dict]) -> list[dict]:
    """What should be equal within a study and is not: [{"field", "values": {value: cells}}].

    Cells that started no member tell nothing about versions and data, and are left out.
    """
    seen: dict[str, dict[str, set]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        if not record.get("members"):
            continue
        provenance, gpu = record.get("provenance") or {}, record.get("gpu") or {}
        fields = {
            "digest": provenance.get("digest"),
            "gpu model": gpu.get("name"),
            "gpu uuid": gpu.get("uuid"),
            "gpu driver": gpu.get("driver"),
            "cpu": (record.get("host") or {}).get("cpu"),
            "machine": provenance.get("machine"),
        }
        for name, version in (provenance.get("versions") or {}).items():
            fields[f"version of {name}"] = version
        for data in record.get("data") or []:
            fields[f"source of {data.get('dataset')}"] = data.get("source")
        for field, value in fields.items():
            seen[field][str(value)].add(record["cell"]["id"])
    return [
        {"field": field, "values": {value: len(cells) for value, cells in sorted(values.items())}}
        for field, values in sorted(seen.items())
        if len(values) > 1
    ]


def flagged(runs: pd.DataFrame) -> dict[str, list[str]]:
    """Flag → ids of the cells whose current attempt has it; those of analysis.flags always."""
    cells: dict[str, set] = {flag: set() for flag in flags.KNOWN}
    for row in runs[runs["current"]][["cell", "flags"]].to_dict("records"):
        for flag in flags.split(row["flags"]):
            cells.setdefault(flag, set()).add(row["cell"])
    return {flag: sorted(found) for flag, found in sorted(cells.items())}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.checks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--study", required=True)
    parser.add_argument("--output", required=True, type=Path, metavar="CHECKS.json")
    parser.add_argument("--evidence", type=Path, metavar="STEM", help="writes STEM.csv and STEM.md")
    add_input_arguments(parser)
    arguments = parser.parse_args(argv)
    records, problems = read_records(input_paths(arguments))
    records = [r for r in records if r.get("study") == arguments.study]
    runs = merge(records)[0].to_pandas()
    result = {
        "study": arguments.study,
        "mismatches": mismatches(records),
        "flags": flagged(runs),
        "aa": twin_checks(runs),
        "loss": [_jsonable(row) for row in loss_checks(records)],
        "unreadable": [{"path": path, "problem": problem} for path, problem in problems],
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.output.with_name(arguments.output.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(arguments.output)
    if arguments.evidence:
        evidence.write(evidence.table(records), arguments.evidence)
    differing = sum(row["loss_check"] == DIFFERS for row in result["loss"])
    suspect, seen = (
        set().union(*(result["flags"][flag] for flag in kind))
        for kind in (flags.SUSPECT, flags.TELEMETRY)
    )
    found = [
        f"checks: {len(result['loss'])} members, {differing} with a differing loss",
        f"{len(result['mismatches'])} fields differ within the study",
        f"{len(suspect)} cells unsteady, uneven, unverified, throttled, on a shared GPU or with a "
        "suspect baseline",
        f"{len(seen)} cells with incomplete or contradictory telemetry" if seen else "",
        phrase(result["aa"]),
    ]
    sys.stderr.write("; ".join(part for part in found if part) + "\n")
    return 0


def _jsonable(row: dict) -> dict:
    """JSON has no infinity: a distance without bound is written as null."""
    if row["distance"] is not None and math.isinf(row["distance"]):
        return row | {"distance": None}
    return row


if __name__ == "__main__":
    sys.exit(main())
