"""What figures and pages choose alike: sets of copies of one job, and what to call them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from analysis import labels
from analysis.estimates.schema import Estimate
from analysis.estimates.table import Estimates
from analysis.names import TWIN, parse_scenario


def copies(estimates: Estimates, quantity: str, **where: str) -> dict[str, list[Estimate]]:
    """Of sets of one workload without variants, in plain windows: workload → its numbers."""
    found: dict[str, list[Estimate]] = defaultdict(list)
    for e in estimates.of(quantity, **{"window": "", "job": "", "name": ""} | where):
        scenario = parse_scenario(e.scenario)
        plain = not scenario.mixed and not scenario.variant and e.method != TWIN
        if plain and e.value is not None:
            found[scenario.parts[0][0]].append(e)
    return found


def value(e: Estimate) -> float:
    """To sort by."""
    return e.value


def place(e: Estimate) -> dict[str, str]:
    """The set that a number is of: where its other quantities are."""
    return {"scenario": e.scenario, "arm": e.arm, "method": e.method}


def way(method: str) -> str:
    """`under MPS`, `as plain processes`."""
    return "as plain processes" if method == "naive" else f"under {labels.method(method)}"


def update(path: Path, text: str) -> bool:
    """Write a file only if its content changes: what depends on it is then not made anew."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return True
