"""What a figure has no place for: groups of cells of which none was run are named once, in words.

A panel or row of nothing but outcomes `not run` would drown what was measured. Groups of which
any cell was run, however it ended, are drawn whole, unless the figure says nothing of that cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from analysis import style
from analysis.cells import NOT_RUN
from analysis.names import method_order, parse_scenario

# What a footer names: workloads and variant, and how many of each.
Place = tuple[str, tuple[int, ...]]


def ran(statuses: Iterable[str]) -> bool:
    """Whether any of these cells was run, however it ended."""
    return any(status != NOT_RUN for status in statuses)


def untouched(cells: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The rows of those groups of which no cell was run."""
    found = (cells["status"] != NOT_RUN).groupby([cells[name] for name in by]).transform("any")
    return cells[~found.astype(bool)]


def nothing_but(cells: pd.DataFrame, trivial: pd.Series) -> tuple[set[str], list[tuple[str, str]]]:
    """Of rows (a workload's variant, or a mix) of which nothing was run but `trivial` cells.

    All their scenarios, and the scenarios and methods that were not run.
    """
    ladder = cells["family"] + "--" + cells["variant"]
    cells = cells.assign(row=cells["scenario"].where(cells["mixed"], ladder))
    own = cells[cells["row"].isin(untouched(cells[~trivial], ["row"])["row"])]
    # Not by cell: of a method that was run replicates may be left.
    absent = untouched(own, ["scenario", "method"])
    return set(own["scenario"]), list(zip(absent["scenario"], absent["method"], strict=True))


def under(
    absent: Iterable[tuple[str, str]], cells: pd.DataFrame, looks: dict[str, style.Look]
) -> dict[Place, str]:
    """The methods of those scenarios in `absent` of which another one of `cells` was run.

    `not run: a at 1` alone would not be true of them.
    """
    touched = {_place(s) for s in cells.loc[cells["status"] != NOT_RUN, "scenario"].unique()}
    found: dict[Place, set[str]] = {}
    for scenario, method in absent:
        if (place := _place(scenario)) in touched:
            found.setdefault(place, set()).add(method)
    return {
        place: ", ".join(looks[method].short for method in sorted(methods, key=method_order))
        for place, methods in found.items()
    }


def phrase(
    scenarios: Iterable[str], what: str = "not run", methods: Mapping[Place, str] | None = None
) -> str:
    """For a footer: `not run: a at 1 (MPS), 2; a (files) at 7; a + b at 1+1`; nothing of none.

    methods: of places, as `under` gives them. Mixes last. It has semicolons, as the footer has
    between its phrases: let it be the last one.
    """
    found: dict[str, set[tuple[int, ...]]] = {}
    for name, counts in map(_place, scenarios):
        found.setdefault(name, set()).add(counts)
    told = []
    for name in sorted(found, key=lambda name: (" + " in name, name)):
        own = {counts: (methods or {}).get((name, counts)) for counts in found[name]}
        told.append(f"{name} at {', '.join(_counts(own))}")
    return f"{what}: {'; '.join(told)}" if told else ""


def _place(scenario: str) -> Place:
    parsed = parse_scenario(scenario)
    return parsed.title, tuple(count for _, count in sorted(parsed.parts))


def _counts(found: dict[tuple[int, ...], str | None]) -> list[str]:
    """The smallest sets first: `1+1`, `1+2 (MPS)`, `2+1`."""
    return [
        "+".join(map(str, counts)) + (f" ({found[counts]})" if found[counts] else "")
        for counts in sorted(found, key=lambda c: (sum(c), c))
    ]


def sentence(arm: str | None, but: str = "") -> str:
    """Where nothing is left to draw; but: what was run besides."""
    but = f" but {but}" if but else ""
    return f"None of the cells planned for this figure{but} was run in arm {arm} yet."
