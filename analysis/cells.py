"""runs.parquet → one row per cell, and one row per scenario and method with its interval."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean, median

import pandas as pd
import pyarrow.parquet

from analysis import flags, metrics
from analysis.records.schema import SCHEMA
from analysis.names import (
    AFTER,
    ALONE_VARIANTS,
    ANCHOR,
    COMPLETION,
    TWIN,
    method_order,
    parse_scenario,
)
from analysis.pooling import pooled
from analysis.statistics import Estimate

NOT_RUN = "not_run"
_KEY = ["arm", "scenario", "method", "block"]


@dataclass(frozen=True)
class Study:
    """What figures and tables draw: runs (member rows, current attempts), cells, and a note.

    with_references: runs, and those of jobs alone on other devices that parts of a block ran on.
    telemetry: the study's telemetry.parquet, if there is one to look at. reported: the paper's
    values (analysis.reported.read), to stand beside ours. mig_layouts: JSON of the layouts that
    the study's MIG cells take on its card.
    """

    runs: pd.DataFrame
    cells: pd.DataFrame
    hardware: str
    note: str
    with_references: pd.DataFrame
    telemetry: Path | None = None
    reported: pd.DataFrame | None = None
    mig_layouts: Path | None = None

    def arms(self) -> list[str]:
        return sorted(self.cells["arm"].unique()) if len(self.cells) else []

    def drawn(self, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """What figures show of an arm: its cells and its runs.

        Without naive's twin, pairs run to completion, which try the rule of a table, and jobs alone
        with a part of the SMs, which stand in the figure of scaling.
        """
        return tuple(t[(t["arm"] == arm) & ~_elsewhere(t)] for t in (self.cells, self.runs))


def _elsewhere(table: pd.DataFrame) -> pd.Series:
    method, scenario = (table[name].astype(str) for name in ("method", "scenario"))
    partial = (table["n"] == 1) & method.str.startswith("mps_")
    return (method == TWIN) | partial | scenario.str.endswith(f"--{COMPLETION}")


def read_runs(path: Path) -> pd.DataFrame:
    """Member rows of a merged study's grid; missing numbers are NaN, missing text None."""
    runs = read_all_runs(path)
    return runs[~is_anchor(runs)].reset_index(drop=True)


def read_all_runs(path: Path) -> pd.DataFrame:
    """The same with the anchors of its sittings."""
    return pyarrow.parquet.read_table(path, schema=SCHEMA).to_pandas()


def is_anchor(runs: pd.DataFrame) -> pd.Series:
    """Which rows are of cells that a sitting begins with."""
    return runs["scenario"].map(lambda name: parse_scenario(name).variant == ANCHOR).astype(bool)


def read_expected(path: Path | None) -> list[dict]:
    """Cells that a study plans: [{"scenario", "arm", "method", "replicate", "n"}]."""
    return [] if path is None else json.loads(path.read_text(encoding="utf-8"))


def read_study(runs: Path, expected: Path | None = None, hardware: str | None = None) -> Study:
    """`load` of these files; several tables in one process read them once."""
    stamps = tuple(path.stat().st_mtime_ns for path in (runs, expected) if path)
    study = _read_study(runs.resolve(), expected and expected.resolve(), hardware, stamps)
    # What one table does to its own is nothing to the next.
    tables = ("runs", "cells", "with_references")
    return replace(study, **{name: getattr(study, name).copy(deep=False) for name in tables})


@lru_cache(maxsize=2)
def _read_study(runs: Path, expected: Path | None, hardware: str | None, _stamps: tuple) -> Study:
    return load(read_runs(runs), read_expected(expected), hardware)


def load(runs: pd.DataFrame, expected: list[dict] = (), hardware: str | None = None) -> Study:
    """Prepare a study for drawing.

    Cells of different GPU models are never drawn together: `hardware` chooses one, else the one
    with most completed cells, and the note says what was left out. Expected cells without a
    record become rows of status `not_run`.
    """
    every, runs = runs, runs[runs["current"]]
    done = runs[runs["status"] == "completed"].drop_duplicates(_KEY)["hardware"].value_counts()
    note = ""
    if hardware is None:
        hardware = (
            str(sorted(done.items(), key=lambda item: (-item[1], item[0]))[0][0])
            if len(done)
            else ""
        )
    # Cells that never got to a device have no hardware to be mixed up with.
    every = every[(every["hardware"] == hardware) | (every["status"] != "completed")]
    runs = every[every["current"]].copy()
    left_out = {name: int(count) for name, count in done.items() if name != hardware}
    if left_out:
        names = ", ".join(f"{count} on {name}" for name, count in sorted(left_out.items()))
        note = f"cells on other hardware left out: {names}"
    return Study(runs, cell_table(runs, expected), hardware, note, every)


def cell_table(runs: pd.DataFrame, expected: list[dict] = ()) -> pd.DataFrame:
    """One row per cell (a departure cell: one per window) with its metrics.

    stp, antt, jain, makespan_s and saving are set only for completed cells in which every member
    of the window has a baseline; `note` says why they are missing. Makespan is that of one
    nominal epoch of each member. An out-of-memory cell keeps its survivors' rates in `runs` only.
    """
    rows, seen = [], set()
    for key, members in _grouped(runs[_USED], _KEY):
        seen.add(key)
        base = {column: members[0][column] for column in _OF_A_CELL}
        windows = _by_window(members)
        if base["status"] != "completed" or not windows:
            rows.append(base)
        else:
            rows += [base | {"window": w} | _cell_metrics(own) for w, own in windows.items()]
    for cell in expected:
        key = (cell["arm"], cell["scenario"], cell["method"], cell["replicate"])
        if key not in seen:
            row = dict(zip(_KEY, key, strict=True))
            rows.append(row | {"n": cell["n"], "status": NOT_RUN, "attempt": 0, "flags": ""})
    table = pd.DataFrame(rows, columns=[*_CELL_TEXT, *_CELL_NUMBERS])
    table = table.astype(dict.fromkeys(_CELL_NUMBERS, float))
    scenarios = [parse_scenario(s) for s in table["scenario"]]
    table["family"] = [s.family for s in scenarios]
    table["variant"] = pd.Series([s.variant for s in scenarios], index=table.index, dtype=object)
    table["mixed"] = pd.Series([s.mixed for s in scenarios], index=table.index, dtype=bool)
    return table.sort_values(_KEY, kind="stable", ignore_index=True)


_CELL_TEXT = [
    *("study", "cell", "arm", "scenario", "method", "block", "attempt", "n", "measure"),
    *("window", "status", "reason", "phase", "hardware", "device", "flags", "note"),
]
# What the set's GPU did in the window; the same in all of its rows.
OF_THE_GPU = ["gract", "smact", "power", "energy_per_sample", "energy_saving"]
_CELL_NUMBERS = [
    *("samples_per_s", "epoch_time_s", "stp", "antt", "jain", "makespan_s", "serial_s", "saving"),
    *OF_THE_GPU,
]


# What cell_table reads of runs: of a cell's first row, and of each member.
_OF_A_CELL = [*_KEY, "study", "cell", "attempt", "n", "status", "reason", "phase", "hardware"]
_OF_A_CELL += ["device", "measure", "flags"]
_USED = [*_OF_A_CELL, "window", "samples_per_s", "progress", "epoch_time_s", "nominal_train_size"]
_USED += ["baseline_samples_per_s", *OF_THE_GPU]


def _grouped(table: pd.DataFrame, by: list[str]) -> Iterator[tuple[tuple, list[dict]]]:
    """Groups of rows as dicts, in the order of their keys: a frame for each takes far longer."""
    rows = table.sort_values(by, kind="stable").to_dict("records")
    for key, group in groupby(rows, key=itemgetter(*by)):
        yield key, list(group)


def _by_window(rows: list[dict]) -> dict[str, list[dict]]:
    """Window → its rows, of those that have one, in the order in which they come."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        if pd.notna(row["window"]):
            found.setdefault(row["window"], []).append(row)
    return found


def _median(rows: list[dict], column: str) -> float:
    """Of the values that are there; NaN without any."""
    values = [row[column] for row in rows if pd.notna(row[column])]
    return median(values) if values else math.nan


def _cell_metrics(members: list[dict]) -> dict:
    rates, progress, work, alone = (
        [member[column] for member in members]
        for column in ("samples_per_s", "progress", "nominal_train_size", "baseline_samples_per_s")
    )
    result = {
        "samples_per_s": metrics.aggregate_throughput(rates) if _whole(rates) else None,
        "epoch_time_s": _median(members, "epoch_time_s"),
        **{column: members[0][column] for column in OF_THE_GPU},
    }
    if not _whole(progress):
        fixed = members[0]["window"] == COMPLETION
        return result | {"note": "fixed work" if fixed else "no baseline"}
    result |= {"stp": metrics.stp(progress), "antt": metrics.antt(progress)}
    result |= {"jain": metrics.jain(progress)}
    if _whole(work):
        result["makespan_s"] = metrics.makespan(work, rates, alone)
        result["serial_s"] = metrics.serial_time(work, alone)
        result["saving"] = metrics.saving(result["makespan_s"], result["serial_s"])
    return result


def _whole(values: list[float | None]) -> bool:
    return all(pd.notna(value) for value in values)


def is_baseline(cells: pd.DataFrame) -> pd.Series:
    """Cells whose progress is 1 by construction: alone, naive, no variant."""
    alone = (cells["n"] == 1) & (cells["method"] == "naive")
    return alone & cells["variant"].isin(ALONE_VARIANTS)


def of_baselines(rows: pd.DataFrame) -> pd.Series:
    """The same of rows that know their variant by their scenario's id alone."""
    variants = [parse_scenario(scenario).variant for scenario in rows["scenario"]]
    return is_baseline(rows.assign(variant=variants))


def gains(cells: pd.DataFrame) -> dict[tuple, Estimate]:
    """Arm, scenario, method and window → STP over its replicates.

    The variance is pooled over the cells of one arm and family (analysis.statistics), of what is
    left after a departure by itself. `cells` are all that a study has of an arm, also for a figure
    that draws some: others would give other intervals.
    """
    marked = cells.assign(left=cells["window"] == AFTER)
    keys = ["arm", "scenario", "method", "window"]
    return pooled(marked, "stp", keys, ("arm", "family", "left"), is_baseline(cells))


def summarise(cells: pd.DataFrame, every: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per arm, scenario, method and window: replicates by status, STP with its interval.

    stp is the geometric mean over replicates; low and high are None below two (see `gains`).
    every: all that the study has, if `cells` are some of it.
    """
    group = ["arm", "scenario", "method"]
    cells = cells.assign(window=cells["window"].astype(object))
    estimates = gains(cells if every is None else every)
    rows = []
    for key, cell in _grouped(cells, group):
        statuses = Counter({row["block"]: row["status"] for row in reversed(cell)}.values())
        base = dict(zip(group, key, strict=True))
        base |= {c: cell[0][c] for c in ("n", "family", "variant", "mixed")}
        base |= {"replicates": statuses.total(), "completed": statuses["completed"]}
        base["statuses"] = dict(statuses.most_common())
        base["flags"] = flags.union(row["flags"] for row in cell)
        reasons = (row["reason"] for row in cell)
        base["reason"] = next((r for r in reasons if isinstance(r, str) and r), None)
        windows = _by_window(cell)
        for name, window in windows.items():
            estimate = estimates.get((*key, name))
            rows.append(
                base
                | {"window": name}
                | {c: _median(window, c) for c in _MEDIANS}
                | {"antt": _geometric(window, "antt")}
                | {
                    "stp": estimate.mean if estimate else None,
                    "low": estimate.low if estimate else None,
                    "high": estimate.high if estimate else None,
                }
            )
        if not windows:
            rows.append(base)
    by = ("arm", "mixed", "family", "variant", "n", "scenario")
    rows.sort(key=lambda r: (*(r[k] for k in by), method_order(r["method"])))
    columns = [*group, "n", "family", "variant", "mixed", "window", "replicates", "completed"]
    columns += ["statuses", "reason", "flags", "epoch_time_s", "stp", "low", "high", "antt", "jain"]
    columns += ["saving", *OF_THE_GPU]
    return pd.DataFrame(rows, columns=columns).astype({"mixed": bool})


_MEDIANS = ("epoch_time_s", "jain", "saving", *OF_THE_GPU)


def _geometric(rows: list[dict], column: str) -> float | None:
    """The geometric mean, as figures have it, of the values above 0."""
    values = [row[column] for row in rows if pd.notna(row[column]) and row[column] > 0]
    return geometric_mean(values) if values else None


def small_first(cells: pd.DataFrame) -> list[str]:
    """Families in the order of figures: by the shortest epoch measured, unmeasured ones last."""
    shortest = cells.groupby("family")["epoch_time_s"].min().fillna(float("inf"))
    return sorted(shortest.index, key=lambda family: (shortest[family], family))


def dominant_status(statuses: dict[str, int]) -> str:
    """The status that stands for a group without a completed cell: the most frequent one."""
    return max(sorted(statuses), key=lambda s: statuses[s])
