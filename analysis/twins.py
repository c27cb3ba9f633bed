"""A/A: naive against naive under another name. A difference would be the method of measuring's."""

from __future__ import annotations

import math
from collections import defaultdict

import pandas as pd

from analysis.cells import cell_table
from analysis.names import TWIN
from analysis.statistics import pooled_estimates

_PAIR = ["arm", "family", "scenario", "window"]
_CONFIDENCE = 0.95


def twin_checks(runs: pd.DataFrame) -> list[dict]:
    """For each scenario that has both: the twin's aggregate rate over naive's, by replicate.

    `runs` are member rows (of runs.parquet). A pair is of one replicate and one device; variances
    are pooled over an arm's scenarios of one family, as for STP. `differs` is null where one
    replicate gives no interval.
    """
    paired = runs["scenario"].isin(runs.loc[runs["method"] == TWIN, "scenario"])
    cells = cell_table(runs[runs["current"] & paired]).dropna(subset=["window", "samples_per_s"])
    cells = cells[cells["samples_per_s"] > 0]
    by = [*_PAIR, "block", "device"]
    first, second = (cells[cells["method"] == m].set_index(by) for m in ("naive", TWIN))
    ratios = (second["samples_per_s"] / first["samples_per_s"]).dropna()
    families: dict[tuple, dict[tuple, dict]] = defaultdict(dict)
    for key, values in ratios.groupby(level=_PAIR, sort=True):
        families[key[:2]][key] = values.droplevel(_PAIR).to_dict()
    results = []
    for family in families.values():
        for key, found in pooled_estimates(family, confidence=_CONFIDENCE).items():
            row = dict(zip(_PAIR, key, strict=True))
            del row["family"]
            row |= {"ratio": found.mean, "low": found.low, "high": found.high}
            row |= {"replicates": found.replicates}
            row["differs"] = None if found.low is None else not found.low <= 1 <= found.high
            results.append(row)
    return results


def phrase(rows: list[dict]) -> str:
    """The result of `twin_checks` in words; empty where there is no twin.

    `A/A: 1.002 (0.996-1.009), no difference above 0.9 %`, the most that can hide; for several
    scenarios how many differ, and how many would by chance.
    """
    if not rows:
        return ""
    if len(rows) == 1:
        verdict = {True: "a difference", False: "no difference above ", None: "one replicate"}
        said = verdict[rows[0]["differs"]]
        hidden = f"{100 * hides(rows[0]):.2g} %" if rows[0]["differs"] is False else ""
        return f"A/A: {_ratio(rows[0])}, {said}{hidden}"
    widest = _ratio(max(rows, key=lambda row: abs(math.log(row["ratio"]))))
    told = [row for row in rows if row["differs"] is not None]
    if not told:
        return f"A/A: {len(rows)} scenarios, one replicate each, widest {widest}"
    apart = [f"{row['arm']} {row['scenario']} {_ratio(row)}" for row in told if row["differs"]]
    chance = f"{(1 - _CONFIDENCE) * len(told):.2g} would by chance"
    which = f": {'; '.join(apart)}" if apart else f", widest {widest}"
    return f"A/A: {len(apart)} of {len(told)} scenarios differ ({chance}){which}"


def hides(row: dict) -> float:
    """The largest difference that an interval cannot exclude, as a ratio less 1."""
    return math.expm1(max(-math.log(row["low"]), math.log(row["high"])))


def _ratio(row: dict) -> str:
    interval = "" if row["low"] is None else f" ({row['low']:.3f}-{row['high']:.3f})"
    return f"{row['ratio']:.3f}{interval}"
