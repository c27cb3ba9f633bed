"""How well a rate repeats: within a block, between blocks, and between sittings.

python -m analysis.tables.variance --runs results/h200/runs.parquet \\
    --output results/h200/tables/variance

Of each arm and set of workloads, log rate = cell + block + rest, by least squares over all its
cells measured in a window. A block is a replicate on one GPU, a cell one on one model of GPU. The
rest's standard deviation is the coefficient of variation within blocks, the block effects' that
between them, less what the rest alone would have them differ by. A sitting begins with its anchors,
jobs alone, whose rates are held against each other.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from analysis.cells import is_anchor, read_all_runs
from analysis.names import parse_scenario
from analysis.tables import two_way
from analysis.words import fixed, number_of, told

MANY = 7  # members from which on a cell may vary more
BOUND, BOUND_MANY = 0.02, 0.03  # of the variation within blocks, set before the measurement
BUSY = 0.95  # GRACT, the mean of a cell's replicates: beyond, the GPU hardly waits for its host
FEW, CROWD, ALL = f"N < {MANY}", f"N ≥ {MANY}", "all"
WORKING, WAITING = f"GRACT ≥ {BUSY}", f"GRACT < {BUSY}"
WITHIN, BLOCKS, SITTINGS = "within blocks", "between blocks", "between sittings"
BY_LOAD = "within, by load"
COLUMNS = ["kind", "arm", "workloads", "members", "cv", "bound", "values", "groups", "df", "spread"]
_RATE = ["arm", "family", "scenario", "method", "n", "block", "hardware", "device", "attempt"]


def rates(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per completed cell measured in a window: its place, log rate and GRACT (a share).

    Of a mix, the geometric mean of its workloads' rates (samples/s, of all their members).
    """
    done = runs[(runs["status"] == "completed") & (runs["window"] == "window")].copy()
    done["family"] = [parse_scenario(name).family for name in done["scenario"]]
    by_workload = done.groupby([*_RATE, "workload"], sort=True)["samples_per_s"].sum(min_count=1)
    by_workload = by_workload[by_workload > 0]
    found = np.log(by_workload).groupby(level=_RATE).mean().rename("log_rate").to_frame()
    return found.join(done.groupby(_RATE)["gract"].mean()).reset_index()


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """COLUMNS: `cv` of log rates; `groups`: it is between; `spread`: largest over least, less 1.

    Runs as `read_all_runs` gives them. A `cv` is missing where there is no degree of freedom.
    """
    anchors = is_anchor(runs)
    rows = []
    for (arm, family), cells in rates(runs[~anchors]).groupby(["arm", "family"], sort=True):
        of = {"arm": arm, "workloads": family}
        rows += [of | row for row in additive(cells)]
    rows += _sittings(runs[anchors])
    return pd.DataFrame(rows, columns=COLUMNS)


def additive(cells: pd.DataFrame) -> list[dict]:
    """The rows of an arm's set of workloads, from those of `rates`.

    The degrees of freedom of some of the values are Σ (1 − leverage): a cell with one replicate is
    fitted exactly and has none. With less than one there is no CV. Blocks are held against those
    that they have cells in common with.
    """
    cell, _ = pd.factorize(pd.MultiIndex.from_frame(cells[["scenario", "method", "hardware"]]))
    block, blocks = pd.factorize(pd.MultiIndex.from_frame(cells[["block", "device"]]))
    layout = two_way.fit(cells["log_rate"].to_numpy(), cell, block)
    many = (cells["n"] >= MANY).to_numpy()
    groups = [(FEW, ~many, BOUND), (CROWD, many, BOUND_MANY)]
    groups = [group for group in groups if group[1].any()]
    found = two_way.variances(layout, [among for _, among, _ in groups])
    [noise] = two_way.variances(layout, [np.ones(len(cells), bool)])
    if any(variance is not None and variance < -two_way.ROUNDING for variance in found):
        # As differences may come out, which says that they cannot be told apart.
        found = [None if variance is None else noise for variance in found]
    rest, rows = np.full(len(cells), math.nan if noise is None else noise), []
    for (members, among, bound), variance in zip(groups, found, strict=True):
        if variance is not None:
            rest[among] = max(variance, 0.0)
        row = {"kind": WITHIN, "members": members, "bound": bound}
        rows.append(row | _rest(variance, two_way.freedom(layout, among), block[among]))
    rows += _by_load(cells, cell, block)
    if len(blocks) > 1:
        df, variance, span = two_way.between(layout, rest)
        row = {"kind": BLOCKS, "members": ALL, "values": len(cells), "groups": len(blocks)}
        row |= {"df": df, "cv": None if noise is None else _root(variance)}
        rows.append(row | {"spread": None if span is None else math.expm1(span)})
    return rows


def _by_load(cells: pd.DataFrame, cell: np.ndarray, block: np.ndarray) -> list[dict]:
    """The rest of cells that keep the GPU busy, and of those that do not, where there are both.

    Each is fitted by itself: a host that is slow in a block slows those that wait for it only.
    """
    gract = cells["gract"].groupby(cell).transform("mean").to_numpy()
    loads = {WORKING: gract >= BUSY, WAITING: gract < BUSY}
    if not all(among.any() for among in loads.values()):
        return []
    rows = []
    for load, among in loads.items():
        codes = [np.unique(of[among], return_inverse=True)[1] for of in (cell, block)]
        layout = two_way.fit(cells["log_rate"].to_numpy()[among], *codes)
        everyone = np.ones(int(among.sum()), bool)
        [variance] = two_way.variances(layout, [everyone])
        row = {"kind": BY_LOAD, "members": load}
        rows.append(row | _rest(variance, two_way.freedom(layout, everyone), block[among]))
    return rows


def _rest(variance: float | None, df: float, block: np.ndarray) -> dict:
    """What a row tells of the rest of values; `block`: of each of them."""
    of = {"values": len(block), "groups": len(np.unique(block)), "cv": _root(variance)}
    return of | {"df": abs(round(df, 2))}


def _sittings(runs: pd.DataFrame) -> list[dict]:
    """Of each anchor, how its rate differs from sitting to sitting on one model of GPU."""
    rows = []
    for (arm, family), found in rates(runs).groupby(["arm", "family"], sort=True):
        logs = found.groupby("hardware")["log_rate"]
        off = found["log_rate"] - logs.transform("mean")
        row = {"kind": SITTINGS, "arm": arm, "workloads": family, "members": "alone"}
        row |= {"values": len(off), "groups": len(off), "df": len(off) - logs.ngroups}
        if row["df"]:
            span = (logs.max() - logs.min()).max()
            row |= {"cv": math.sqrt(float(off @ off) / row["df"]), "spread": math.expm1(span)}
        rows.append(row)
    return rows


def _root(variance: float | None) -> float | None:
    """0 for a variance that came out below, as differences of two may."""
    return None if variance is None else math.sqrt(max(variance, 0.0))


def markdown(rows: pd.DataFrame, machines: int, sittings: int) -> str:
    shown = []
    for row in rows.to_dict("records"):
        cv, bound = row["cv"], row["bound"]
        judged = pd.notna(cv) and pd.notna(bound)
        shown.append(
            {
                "variation": row["kind"],
                "arm": row["arm"],
                "workloads": row["workloads"].replace("+", " + "),
                "members": row["members"],
                "CV %": fixed(_percent(cv), 2),
                "bound %": fixed(_percent(bound), 0),
                "": ("within" if cv <= bound else "**above**") if judged else "",
                "largest/least - 1, %": fixed(_percent(row["spread"]), 1),
                "values": str(row["values"]),
                "groups": str(row["groups"]),
                "df": f"{row['df']:g}",
            }
        )
    text = tabulate(told(shown), "keys", "github", disable_numparse=True) or "No cell yet."
    notes = (
        "Log rate = cell + block + rest, fitted over all cells of an arm's set of workloads that "
        "were measured in a window; a block is a replicate on one GPU, with baselines of its own. "
        f"*{WITHIN.capitalize()}*: the rest, from which gains, ratios within a block, suffer; of "
        "cells with few members and with many each their own, where the cells that there are tell "
        f"them apart. *{BY_LOAD.capitalize()}*: the same, of cells in which the GPU is busy for so "
        "much of the time (the mean of a cell's replicates), and of the others, where there are "
        "both; each fitted by itself, as a slow host slows only those that wait for it. "
        f"*{BLOCKS.capitalize()}*: the block effects, which cancel in gains, without "
        "what the rest makes of them, 0 where that is all; of blocks with cells in common, on one "
        "model of GPU. A value's degrees of freedom are those that the fit leaves it: none for a "
        "cell with one "
        f"replicate; below one there is no CV. *{SITTINGS.capitalize()}*: the anchors, jobs alone "
        "that each sitting begins with, on one model of GPU. Nothing is left out. The study has "
        f"{number_of(sittings, 'sitting')} on {number_of(machines, 'machine')}."
    )
    return f"# How well rates repeat\n\n{text}\n\n{notes}\n"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.variance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    runs, stem = read_all_runs(arguments.runs), arguments.output
    rows = table(runs)
    stem.parent.mkdir(parents=True, exist_ok=True)
    rows.round({"cv": 6, "spread": 6}).to_csv(f"{stem}.csv", index=False)
    measured = runs[runs["status"] == "completed"]
    counts = {name: measured[name].nunique() for name in ("machine", "sitting")}
    text = markdown(rows, counts["machine"], counts["sitting"])
    stem.with_name(f"{stem.name}.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
