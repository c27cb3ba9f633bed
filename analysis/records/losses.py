"""Was the same work done? Each member's losses against those of alone runs of its workload."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import combinations

import numpy as np

from analysis.records.records import is_baseline

AGREES, DIFFERS = "agrees", "differs"
NEEDS_TWO, NO_LOSS = "needs two alone runs", "no loss recorded"

# A member may differ from the alone runs by this many times their largest difference.
FACTOR = 3.0
# What one pair of alone runs may not show: cuDNN picks its algorithms anew in each process, and
# training magnifies their rounding (seen on an H200: 1.3 % over 100 steps). Relative to the loss.
FLOOR = 0.02
# Alone runs further apart than this are no reference for anything, relative to the loss.
CEILING = 0.1


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a − b (losses by step), relative to that of b; inf if a is not finite."""
    difference, scale = float(((a - b) ** 2).sum()), float((b**2).sum())
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


def compare(
    curve: dict[int, float], alone: list[dict[int, float]]
) -> tuple[str, float | None, float | None]:
    """(verdict, distance, tolerance) of one loss curve (step → loss) against alone curves.

    Only steps that all of them recorded count. distance is the smallest to any alone curve;
    tolerance = FACTOR × largest distance between two alone curves, within FLOOR … CEILING;
    with one alone curve it is FLOOR, and beyond it nothing can be said.
    """
    if not curve:
        return NO_LOSS, None, None
    if not alone:
        return NEEDS_TWO, None, None
    steps = sorted(set(curve).intersection(*alone))
    if not steps:
        return NO_LOSS, None, None
    own, *others = (np.array([losses[s] for s in steps]) for losses in (curve, *alone))
    spread = max((distance(a, b) for a, b in combinations(others, 2)), default=0.0)
    tolerance = min(max(FACTOR * spread, FLOOR), CEILING)
    found = min(distance(own, other) for other in others)
    if found <= tolerance:
        return AGREES, found, tolerance
    # One alone run does not tell how far two of them may be apart.
    return (DIFFERS if len(alone) > 1 else NEEDS_TWO), found, tolerance


def loss_checks(records: list[dict]) -> list[dict]:
    """One result per member: does its loss at step k agree with the alone runs of its workload?

    Compared are members of equal workload, arm, input, seed and data source. Alone runs (the
    baselines of progress) are first checked against the others of their kind; only those that agree
    serve as reference. An alone run among three or more is left out of its own tolerance. A single
    one cannot be checked, but is a reference. `basis` says how many a member is held against.
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
            entry["held_against"] = len(others)
        agreeing = [e["curve"] for e in entries if e["result"][0] == AGREES]
        reference[key] = agreeing if len(entries) > 1 else [entries[0]["curve"]]
    results = []
    for entry in members:
        curves = reference.get(entry["key"], [])
        verdict, found, tolerance = entry.get("result") or compare(entry["curve"], curves)
        count = entry.get("held_against", len(curves)) if tolerance is not None else 0
        results.append(
            {key: entry[key] for key in ("cell", "attempt", "member", "workload")}
            | {"loss_check": verdict, "distance": found, "tolerance": tolerance}
            | {"basis": _basis(count)}
        )
    return results


def _basis(count: int) -> str | None:
    return {0: None, 1: "one alone run"}.get(count, f"{count} alone runs")


def _pair(entries: list[dict]) -> tuple[str, float | None, float | None]:
    """Two alone runs can only be held against the ceiling."""
    first, second = (e["curve"] for e in entries)
    steps = sorted(set(first) & set(second))
    if not steps:
        return NO_LOSS, None, None
    found = distance(*(np.array([curve[s] for s in steps]) for curve in (first, second)))
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
