"""What a figure has no place for: groups of cells of which none was run are named once, in words.

A panel or row of nothing but outcomes `not run` would drown what was measured. Groups of which
any cell was run, however it ended, are drawn whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis.cells import NOT_RUN
from analysis.names import parse_scenario


def ran(statuses: Iterable[str]) -> bool:
    """Whether any of these cells was run, however it ended."""
    return any(status != NOT_RUN for status in statuses)


def untouched(cells: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The rows of those groups of which no cell was run."""
    found = (cells["status"] != NOT_RUN).groupby([cells[name] for name in by]).transform("any")
    return cells[~found.astype(bool)]


def phrase(scenarios: Iterable[str], what: str = "not run") -> str:
    """For a footer: `not run: a at 1, 2; a (files) at 7; a + b at 1+1, 2+1`; nothing of none.

    Mixes last. It has semicolons, as the footer has between its phrases: let it be the last one.
    """
    found: dict[str, set[tuple[int, ...]]] = {}
    for scenario in scenarios:
        parsed = parse_scenario(scenario)
        names, counts = zip(*sorted(parsed.parts), strict=True)
        variant = f" ({parsed.variant})" if parsed.variant else ""
        found.setdefault(" + ".join(names) + variant, set()).add(counts)
    names = sorted(found, key=lambda name: (" + " in name, name))
    told = [f"{name} at {', '.join(_counts(found[name]))}" for name in names]
    return f"{what}: {'; '.join(told)}" if told else ""


def _counts(found: set[tuple[int, ...]]) -> list[str]:
    """The smallest sets first: `1+1`, `1+2`, `2+1`."""
    return ["+".join(map(str, counts)) for counts in sorted(found, key=lambda c: (sum(c), c))]


def sentence(arm: str | None) -> str:
    """Where nothing is left to draw."""
    return f"None of the cells planned for this figure was run in arm {arm} yet."
