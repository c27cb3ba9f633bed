"""Two studies, cell by cell: gain, throughput alone and energy per sample of each, never a mean."""

from __future__ import annotations

import pandas as pd

from analysis import flags
from analysis.cells import Study, dominant_status, gains, is_baseline
from analysis.names import TWIN, method_order, parse_scenario
from analysis.pooling import pooled
from analysis.statistics import Estimate

# What is compared → (column of the cell table, unit).
QUANTITIES = {
    "gain": ("stp", "× one job alone"),
    "alone": ("samples_per_s", "samples/s"),
    "energy": ("energy_per_sample", "J/sample"),
}
SIDES = ("a", "b")
UNPLANNED = "not planned"
_CELL = ["arm", "scenario", "method"]
_KEY = [*_CELL, "window"]
_PARTS = ("", "_low", "_high", "_n", "_status", "_flags")
COLUMNS = ["quantity", "unit", *_KEY]
COLUMNS += [f"{side}{part}" for side in SIDES for part in _PARTS]
COLUMNS += ["ratio", "intervals"]


def rows(a: Study, b: Study) -> pd.DataFrame:
    """A row per quantity, arm, scenario, method and window that either study has: COLUMNS.

    Means are geometric over replicates, intervals as everywhere (analysis.statistics); `ratio` is
    b over a; `intervals` says whether they overlap or are apart, where both have one.
    """
    found = []
    for quantity, (column, unit) in QUANTITIES.items():
        sides = [_side(study, quantity, column) for study in (a, b)]
        cells = {cell for values, _ in sides for cell in values} | _planned(a, b, quantity)
        for cell in sorted(cells, key=place):
            windows = {window: None for values, _ in sides for window in values.get(cell, {})}
            if not windows and quantity != "gain":
                continue  # how a cell without any value ended is told once
            for window in windows or [None]:
                row = {"quantity": quantity, "unit": unit}
                row |= dict(zip(_KEY, (*cell, window), strict=True))
                estimates = [values.get(cell, {}).get(window) for values, _ in sides]
                for side, estimate, (_, ended) in zip(SIDES, estimates, sides, strict=True):
                    row |= _told(side, estimate, *ended.get(cell, (UNPLANNED, "")))
                found.append(row | _against(*estimates))
    return pd.DataFrame(found, columns=COLUMNS)


def _side(study: Study, quantity: str, column: str) -> tuple[dict, dict]:
    """Of one study: (arm, scenario, method) → window → estimate; and → how it ended, its flags."""
    cells = _of_quantity(study, quantity)
    values: dict[tuple, dict] = {}
    if quantity == "gain":  # pooled over all cells, as everywhere
        estimates = gains(study.cells)
    else:
        measured = cells.dropna(subset=["window"])
        estimates = pooled(measured, column, _KEY, within=("arm", "family"))
    told = set(cells[_CELL].itertuples(index=False, name=None))
    for key, estimate in estimates.items():
        if key[:-1] in told:
            values.setdefault(key[:-1], {})[key[-1]] = estimate
    ended = {
        key: (dominant_status(rows["status"].value_counts().to_dict()), flags.union(rows["flags"]))
        for key, rows in cells.groupby(_CELL)
    }
    return values, ended


def _planned(a: Study, b: Study, quantity: str) -> set[tuple]:
    return {
        cell
        for study in (a, b)
        for cell in _of_quantity(study, quantity)[_CELL].itertuples(index=False, name=None)
    }


def _of_quantity(study: Study, quantity: str) -> pd.DataFrame:
    """Rates alone are the baselines'; their gain is 1 by construction and says nothing."""
    cells = study.cells[study.cells["method"] != TWIN]
    if quantity == "energy":
        return cells
    baseline = is_baseline(cells)
    return cells[baseline if quantity == "alone" else ~baseline]


def place(cell: tuple[str, str, str]) -> tuple:
    """Sort key of (arm, scenario, method): as in tables and figures."""
    arm, name, method = cell
    scenario = parse_scenario(name)
    order = (scenario.mixed, scenario.family, scenario.variant, scenario.n, scenario.id)
    return arm, *order, method_order(method)


def _told(side: str, estimate: Estimate | None, status: str, flagged: str) -> dict:
    if estimate is None:
        return {side: None, f"{side}_n": 0, f"{side}_status": status, f"{side}_flags": flagged}
    return {
        side: estimate.mean,
        f"{side}_low": estimate.low,
        f"{side}_high": estimate.high,
        f"{side}_n": estimate.replicates,
        f"{side}_status": "completed",
        f"{side}_flags": flagged,
    }


def _against(a: Estimate | None, b: Estimate | None) -> dict:
    if a is None or b is None:
        return {"ratio": None, "intervals": None}
    intervals = None
    if a.low is not None and b.low is not None:
        intervals = "overlap" if a.low <= b.high and b.low <= a.high else "apart"
    return {"ratio": b.mean / a.mean, "intervals": intervals}
