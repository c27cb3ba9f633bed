"""Was the same work done? Losses against alone runs, and what differs within a study.

python -m analysis.checks --study smoke --output results/smoke/checks.json CELL/run.json ...
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

from analysis.records import add_input_arguments, input_paths, is_baseline, read_records

AGREES, DIFFERS = "agrees", "differs"
NEEDS_TWO, NO_LOSS = "needs two alone runs", "no loss recorded"

# A member may differ from the alone runs by this many times their largest difference.
FACTOR = 3.0
# What one pair of alone runs may not show: cuDNN picks its algorithms anew in each process, and
# training magnifies their rounding (seen on an H200: 1.3 % over 100 steps). Relative to the loss.
FLOOR = 0.02
# Alone runs further apart than this are no reference for anything, relative to the loss.
CEILING = 0.1


def distance(a: dict[int, float], b: dict[int, float], steps: set[int]) -> float:
    """Root mean square of a − b over `steps`, relative to that of b; inf if a is not finite."""
    difference = sum((a[s] - b[s]) ** 2 for s in steps)
    scale = sum(b[s] ** 2 for s in steps)
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


def compare(
    curve: dict[int, float], alone: list[dict[int, float]]
) -> tuple[str, float | None, float | None]:
    """(verdict, distance, tolerance) of one loss curve (step → loss) against alone curves.

    Only steps that all of them recorded count. distance is the smallest to any alone curve;
    tolerance = FACTOR × largest distance between two alone curves, within FLOOR … CEILING.
    """
    if not curve:
        return NO_LOSS, None, None
    if len(alone) < 2:
        return NEEDS_TWO, None, None
    steps = set(curve).intersection(*alone)
    if not steps:
        return NO_LOSS, None, None
    spread = max(distance(a, b, steps) for a, b in combinations(alone, 2))
    tolerance = min(max(FACTOR * spread, FLOOR), CEILING)
    found = min(distance(curve, a, steps) for a in alone)
    return (AGREES if found <= tolerance else DIFFERS), found, tolerance


def loss_checks(records: list[dict]) -> list[dict]:
    """One result per member: does its loss at step k agree with the alone runs of its workload?

    Compared are members of equal workload, arm, input, seed and data source. Alone runs (the
    baselines of progress) are first checked against the others of their kind; only those that agree
    serve as reference. An alone run among three or more is left out of its own tolerance.
    """
    members = [entry for record in records for entry in _members(record)]
    alone: dict[tuple, list[dict]] = defaultdict(list)
    for entry in members:
        if entry["alone"] and entry["curve"]:
            alone[entry["key"]].append(entry)
    reference = {}
    for key, entries in alone.items():
        for entry in entries:
            others = [e["curve"] for e in entries if e is not entry]
            pair = len(entries) == 2
            entry["result"] = _pair(entries) if pair else compare(entry["curve"], others)
        reference[key] = [e["curve"] for e in entries if e["result"][0] == AGREES]
    results = []
    for entry in members:
        verdict, found, tolerance = entry.get("result") or compare(
            entry["curve"], reference.get(entry["key"], [])
        )
        results.append(
            {key: entry[key] for key in ("cell", "attempt", "member", "workload")}
            | {"loss_check": verdict, "distance": found, "tolerance": tolerance}
        )
    return results


def _pair(entries: list[dict]) -> tuple[str, float | None, float | None]:
    """Two alone runs can only be held against the ceiling."""
    first, second = (e["curve"] for e in entries)
    steps = set(first) & set(second)
    if not steps:
        return NO_LOSS, None, None
    found = distance(first, second, steps)
    return (AGREES if found <= CEILING else DIFFERS), found, CEILING


def _members(record: dict) -> list[dict]:
    spec, cell = record["spec"], record["cell"]
    sources = {d.get("dataset"): d.get("source") for d in record.get("data") or []}
    entries = []
    for member in record.get("members") or []:
        index = member.get("member")
        if not isinstance(index, int) or not 0 <= index < len(spec["members"]):
            continue
        own = spec["members"][index]
        loss = member.get("loss") or {}
        # A null loss is JSON's spelling of NaN here: it must count as a difference.
        curve = {
            step: math.nan if value is None else value
            for step, value in zip(loss.get("step") or [], loss.get("value") or [], strict=False)
        }
        entries.append(
            {
                "cell": cell["id"],
                "attempt": cell["attempt"],
                "member": index,
                "workload": own.get("workload"),
                "key": (
                    own.get("workload"),
                    cell["arm"],
                    json.dumps(own.get("input"), sort_keys=True),
                    own.get("seed", spec.get("seed")),
                    sources.get(own.get("dataset")),
                ),
                "alone": is_baseline(record),
                "curve": curve,
            }
        )
    return entries


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.checks", description=__doc__)
    parser.add_argument("--study", required=True)
    parser.add_argument("--output", required=True, type=Path, metavar="CHECKS.json")
    add_input_arguments(parser)
    arguments = parser.parse_args(argv)
    records, problems = read_records(input_paths(arguments))
    records = [r for r in records if r.get("study") == arguments.study]
    result = {
        "study": arguments.study,
        "mismatches": mismatches(records),
        "loss": [_jsonable(row) for row in loss_checks(records)],
        "unreadable": [{"path": path, "problem": problem} for path, problem in problems],
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.output.with_name(arguments.output.name + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    partial.replace(arguments.output)
    differing = sum(row["loss_check"] == DIFFERS for row in result["loss"])
    sys.stderr.write(
        f"checks: {len(result['loss'])} members, {differing} with a differing loss; "
        f"{len(result['mismatches'])} fields differ within the study\n"
    )
    return 0


def _jsonable(row: dict) -> dict:
    """JSON has no infinity: a distance without bound is written as null."""
    if row["distance"] is not None and math.isinf(row["distance"]):
        return row | {"distance": None}
    return row


if __name__ == "__main__":
    sys.exit(main())
