"""What measuring took: the minutes of cells, and of the cells that a figure is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.figures import stem
from analysis.names import METHODS, Scenario, parse_scenario

PLANNED_ONLY = "mig_layouts"  # drawn from the plan and the card's profiles: needs no cell measured
_JOBS = ("jobs", "workload", "panel", "group")  # columns that name a set of jobs, the best first
_OTHER = ("scenario", "n", "variant", "method", "arm", "block")


@dataclass(frozen=True)
class Cost:
    """Minutes, and whether they are of a figure's own cells: else they are of its whole arm."""

    minutes: float
    own: bool


def cost(runs: pd.DataFrame, cells: Iterable[str] | None = None) -> float:
    """Minutes that the cells took to measure, all attempts in the table; None: all cells."""
    own = runs if cells is None else runs[runs["cell"].isin(list(cells))]
    return float(own.drop_duplicates(["cell", "attempt"])["total_s"].sum() / 60)


def of_figure(study: Path, name: str, arm: str | None, runs: pd.DataFrame) -> Cost:
    """What the cells took that a figure's CSV names, and those alone that they are normalised by.

    arm: None for a figure over all arms. Where no CSV names any cell, the whole arm's.
    """
    if name == PLANNED_ONLY:
        return Cost(0.0, True)
    own = runs if arm is None else runs[runs["arm"] == arm]
    path = study / "figures" / f"{stem(name, arm)}.csv"
    cells = cells_drawn(pd.read_csv(path), own) if path.exists() else None
    if cells is None:
        return Cost(cost(own), False)
    alone = own.loc[own["cell"].isin(cells), "baseline_cell"].dropna()
    return Cost(cost(own, cells | set(alone)), True)


def cells_drawn(drawn: pd.DataFrame, runs: pd.DataFrame) -> set[str] | None:
    """The measured cells that the rows of a figure's data are of; None where no row can name one.

    A row names a cell, or a set of jobs (a scenario, a label, or workloads with n and variant) and
    a method. A row without a block is of all blocks; data without a method column have a column
    per method.
    """
    if "cell" in drawn:
        return set(drawn["cell"].dropna()) & set(runs["cell"])
    methods = [column for column in drawn if column in METHODS]
    sets = "scenario" in drawn or ("n" in drawn and any(column in drawn for column in _JOBS))
    if not sets or not ("method" in drawn or methods):
        return None
    known: dict[tuple, list[dict]] = {}
    for cell in runs.drop_duplicates("cell").to_dict("records"):
        for key in _names(parse_scenario(cell["scenario"])):
            known.setdefault((*key, cell["method"]), []).append(cell)
    columns = [column for column in (*_JOBS, *_OTHER) if column in drawn]
    found = set()
    for row in drawn[columns].drop_duplicates().to_dict("records"):
        told = {column: value for column, value in row.items() if pd.notna(value)}
        key = _named(told)
        for method in methods if "method" not in drawn else [told.get("method")]:
            found |= {
                cell["cell"]
                for cell in known.get((*key, method), ())
                if all(cell[c] == told[c] for c in ("arm", "block") if c in told)
            }
    return found


def _names(scenario: Scenario) -> Iterator[tuple]:
    """All that figures' data may call a set of jobs."""
    yield (scenario.id,)
    yield (scenario.label,)
    yield scenario.family, scenario.n, scenario.variant


def _named(row: dict) -> tuple:
    """What a row calls its set of jobs; empty where it names none."""
    if "scenario" in row or "jobs" in row:
        return (row.get("scenario") or row["jobs"],)
    name = next((row[column] for column in _JOBS if column in row), None)
    if name is None or "n" not in row:
        return ()
    return "+".join(sorted(str(name).split(" + "))), int(row["n"]), row.get("variant", "")
