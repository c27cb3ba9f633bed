"""How well a rate repeats: within a block, between blocks, and between sittings.

python -m analysis.tables.variance --runs results/h200/runs.parquet \\
    --output results/h200/tables/variance

Of each arm and set of workloads, log rate = cell + block + rest, by least squares over all its
cells measured in a window. A block is a replicate on one GPU. The rest's standard deviation is the
coefficient of variation within blocks, the block effects' that between them, less what the rest
alone would have them differ by. A sitting begins with its anchors, jobs alone, whose rates are held
against each other.
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
from analysis.words import fixed, told

MANY = 7  # members from which on a cell may vary more
BOUND, BOUND_MANY = 0.02, 0.03  # of the variation within blocks, set before the measurement
FEW, CROWD, ALL = f"N < {MANY}", f"N ≥ {MANY}", "all"
WITHIN, BLOCKS, SITTINGS = "within blocks", "between blocks", "between sittings"
COLUMNS = ["kind", "arm", "workloads", "members", "cv", "bound", "values", "groups", "df", "spread"]
_RATE = ["arm", "family", "scenario", "method", "n", "block", "device", "attempt"]


def rates(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per completed cell measured in a window: its place and log rate.

    Of a mix, the geometric mean of its workloads' rates (samples/s, of all their members).
    """
    done = runs[(runs["status"] == "completed") & (runs["window"] == "window")].copy()
    done["family"] = [parse_scenario(name).family for name in done["scenario"]]
    by_workload = done.groupby([*_RATE, "workload"], sort=True)["samples_per_s"].sum(min_count=1)
    by_workload = by_workload[by_workload > 0]
    return np.log(by_workload).groupby(level=_RATE).mean().rename("log_rate").reset_index()


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
    fitted exactly and has none. With less than one there is no CV.
    """
    y = cells["log_rate"].to_numpy()
    cell, names = pd.factorize(pd.MultiIndex.from_frame(cells[["scenario", "method"]]))
    block, blocks = pd.factorize(pd.MultiIndex.from_frame(cells[["block", "device"]]))
    design = np.hstack([np.eye(len(names))[cell], np.eye(len(blocks))[block]])
    inverse = np.linalg.pinv(design)
    solution = inverse @ y
    rest, free = y - design @ solution, 1 - np.einsum("ij,ji->i", design, inverse)
    many = (cells["n"] >= MANY).to_numpy()
    rows = []
    for members, among, bound in ((FEW, ~many, BOUND), (CROWD, many, BOUND_MANY)):
        count = int(among.sum())
        if count:
            own = float(free[among].sum())
            found = {"kind": WITHIN, "members": members, "bound": bound, "values": count}
            found |= {"groups": len(np.unique(block[among])), "df": abs(round(own, 2))}
            rows.append(found | {"cv": _root(_variance(rest[among], own))})
    if len(blocks) > 1:
        effects, weights = solution[len(names) :], inverse[len(names) :]
        effects, weights = effects - effects.mean(), weights - weights.mean(axis=0)
        df, within = len(blocks) - 1, _variance(rest, float(free.sum()))
        own = None
        if within is not None:
            own = (float(effects @ effects) - within * float((weights**2).sum())) / df
        found = {"kind": BLOCKS, "members": ALL, "values": len(y), "groups": len(blocks)}
        found |= {"df": df, "cv": _root(own)}
        rows.append(found | {"spread": math.expm1(effects.max() - effects.min())})
    return rows


def _sittings(runs: pd.DataFrame) -> list[dict]:
    """Of each anchor, how its rate differs from sitting to sitting."""
    rows = []
    for (arm, family), found in rates(runs).groupby(["arm", "family"], sort=True):
        logs = found["log_rate"]
        row = {"kind": SITTINGS, "arm": arm, "workloads": family, "members": "alone"}
        row |= {"values": len(logs), "groups": len(logs), "df": len(logs) - 1}
        if len(logs) > 1:
            row |= {"cv": float(logs.std()), "spread": math.expm1(logs.max() - logs.min())}
        rows.append(row)
    return rows


def _variance(rest: np.ndarray, df: float) -> float | None:
    """None with less than one degree of freedom, but for rounding."""
    return float(rest @ rest) / df if df > 1 - 1e-6 else None


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
        f"*{WITHIN.capitalize()}*: the rest, from which gains, ratios within a block, suffer. "
        f"*{BLOCKS.capitalize()}*: the block effects, which cancel in them, without what the rest "
        "makes of them. A value's degrees of freedom are those that the fit leaves it: none for a "
        "cell with one replicate; below one there is no CV. "
        f"*{SITTINGS.capitalize()}*: the anchors, jobs alone that each sitting begins with. "
        f"Nothing is left out. The study has {sittings} sittings on {machines} machines."
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
