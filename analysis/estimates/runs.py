"""runs.parquet as a DataFrame of members: who ran what, in which window, on which host."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.estimates.records import flags
from analysis.estimates.records.losses import DIFFERS
from analysis.estimates.records.schema import SCHEMA
from analysis.files import read_table, require
from workflow.collocation.study.names import ALONE_VARIANTS, conditions_of, parse_scenario

COMPLETED, UNVERIFIED = "completed", "unverified"
# A total rate is not steady if it changes by DRIFT or more between the first and the last third of
# the window, and by DRIFT_ERRORS standard errors or more.
DRIFT, DRIFT_ERRORS = 0.01, 2.0
TEXTS = ("window", "device", "session", "started_at", "flags", "reason", "input_mode")
MACHINE = ["machine", "hardware"]


class StudyRuns(NamedTuple):
    """The runs of a study, prepared for estimates (`prepare_runs`).

    members: a row for each job in each window. hosts: a row for each machine. left_out: other GPU
    models → their number of cells.
    """

    members: pd.DataFrame
    hosts: pd.DataFrame
    left_out: dict[str, int]


def read_runs(path: Path) -> pd.DataFrame:
    """Reads runs.parquet. Raises OSError or ValueError."""
    require(path)
    table = read_table(path)
    return pd.DataFrame(table.to_pylist(), columns=table.column_names)


def prepare_runs(rows: pd.DataFrame) -> StudyRuns:
    """Prepares rows of runs.parquet, of the GPU model with most completed cells only.

    A completed cell whose method was not proven in force gets the status UNVERIFIED. Columns that
    the members gain: `run`, a number for each window of each cell; `at`, the cell with its attempt;
    `host`; `jobs`, the number of jobs in the set; `mixed`; `variant`; `measured`, if the cell
    completed and has this window; `baseline`, if other runs are divided by it: a completed job
    alone as a separate process. In an interleaved cell each condition is a run: `scenario` and
    `method` are those of the condition, `condition` is its name, and `again` tells that an earlier
    condition is the same set. `window` is "" for the only window of a cell.
    """
    completed = rows[(rows["status"] == COMPLETED) & rows["current"].astype(bool)]
    cells = completed.groupby("hardware")["cell"].nunique()
    cells = cells.sort_values(ascending=False, kind="stable")
    left_out = {model: int(number) for model, number in cells[1:].items()}
    not_completed = (rows["status"] != COMPLETED) & ~rows["hardware"].isin(left_out)
    members = rows[rows["hardware"].isin(cells.index[:1]) | not_completed].copy()
    numbers = [column.name for column in SCHEMA if column.type == pa.float64()]
    members[numbers] = members[numbers].astype(float)
    for column in TEXTS:
        members[column] = members[column].astype(object).where(members[column].notna(), "")
    members["current"] = members["current"].astype(bool)
    unproven = (members["status"] == COMPLETED) & ~members["method_verified"].eq(True)  # noqa: FBT003
    members.loc[unproven, ["status", "reason"]] = UNVERIFIED, "its method was not proven in force"
    hosts = _hosts(members)
    members = members.merge(hosts[[*MACHINE, "host"]], "left", MACHINE)
    members["host"] = members["host"].astype(object).fillna("")
    members["run"] = members.groupby(["cell", "attempt", "window"], sort=False).ngroup()
    attempts = zip(members["cell"], members["attempt"], strict=True)
    names = [f"{cell}/a{attempt}" for cell, attempt in attempts]
    members["at"] = pd.Series(names, members.index, dtype=object)
    return StudyRuns(_add_conditions(members).reset_index(drop=True), hosts, left_out)


def _hosts(members: pd.DataFrame) -> pd.DataFrame:
    """Machines that completed cells, labelled h1, h2, … in the order of their first use."""
    completed = members[members["status"] == COMPLETED]
    hosts = completed.groupby(MACHINE).agg(
        first=("started_at", lambda times: min(times.replace("", "~"))),
        sessions=("session", "nunique"),
        named=("session", lambda names: ", ".join(sorted(set(names)))),
    )
    hosts["cells"] = completed[completed["current"]].groupby(MACHINE)["cell"].nunique()
    hosts = hosts.fillna({"cells": 0}).reset_index().sort_values(["first", *MACHINE])
    return hosts.assign(host=[f"h{number}" for number in range(1, len(hosts) + 1)])


def _add_conditions(members: pd.DataFrame) -> pd.DataFrame:
    """Replaces scenario, method and window by those of the set that a row belongs to."""
    names = ["scenario", "method", "window"]
    windows = members[names].drop_duplicates().reset_index(drop=True)
    sets = []
    for scenario, method, window in windows.itertuples(index=False):
        condition = conditions_of(scenario, method).get(window)
        columns = {"set": scenario, "by": method, "plain": window, "condition": "", "again": False}
        if condition:
            columns = {"set": condition.scenario, "by": condition.method, "plain": ""}
            columns |= {"condition": window, "again": bool(condition.is_repeat)}
        elif window == "window":
            columns["plain"] = ""
        parsed = parse_scenario(columns["set"])
        columns |= {"set": parsed.id, "jobs": parsed.n, "mixed": parsed.mixed}
        sets.append(columns | {"variant": parsed.variant})
    members = members.merge(windows.join(pd.DataFrame(sets)), on=names, how="left")
    members["measured"] = (members["status"] == COMPLETED) & (members["window"] != "")
    renamed = {"set": "scenario", "by": "method", "plain": "window"}
    members = members.drop(columns=names).rename(columns=renamed)
    members = members.copy()  # defragments the frame
    alone = (members["method"] == "naive") & (members["jobs"] == 1) & (members["window"] == "")
    members["baseline"] = alone & members["measured"] & members["variant"].isin(ALONE_VARIANTS)
    return members


def steady_runs(members: pd.DataFrame) -> pd.Series:
    """Tells for each run whether the total rate of its jobs stayed steady over the window.

    The drift of the total is the mean of its members' drifts, weighted by their rates; in a mix,
    whose samples do not add up, unweighted. NA for turns, and where steps were too few to tell.
    """
    run, rate = members["run"], members["samples_per_s"]
    all_rated = (rate > 0).groupby(run).transform("all")
    alike = members.groupby("run")["workload"].transform("nunique") == 1
    weight = rate.where(all_rated & alike, 1.0).where(members["drift"].notna(), 0.0)
    total = weight.groupby(run).sum().replace(0, np.nan)
    drift = (weight * members["drift"]).groupby(run).sum() / total
    squares = (weight * members["drift_error"].fillna(0.0)) ** 2
    error = np.sqrt(squares.groupby(run).sum()) / total
    steady = drift.abs() < np.maximum(DRIFT, DRIFT_ERRORS * error)
    return steady.astype("boolean").mask(total.isna())


def run_conditions(members: pd.DataFrame) -> pd.DataFrame:
    """Gives the flags, code digests and data sources of each run."""
    data = pd.Series(list(zip(members["dataset"], members["source"], strict=True)), members.index)
    runs = members.assign(data=data).groupby("run")
    conditions = runs.agg(
        flags=("flags", "first"), code=("digest", frozenset), data=("data", frozenset)
    )
    drifted = ~steady_runs(members).fillna(True)
    losses_differ = (members["loss_check"] == DIFFERS).groupby(members["run"]).any()
    conditions["flags"] += np.where(drifted, f";{flags.UNSTEADY}", "")
    conditions["flags"] += np.where(losses_differ, f";{flags.LOSSES_DIFFER}", "")
    return conditions


def mixed_flags(
    columns: Iterable[str], code: Iterable[frozenset], data: Iterable[frozenset]
) -> str:
    """Joins the flags of several runs, and adds flags if they mix code or sources of data.

    code: the digests of each run. data: the (dataset, source) pairs of each run.
    """
    all_flags = list(columns)
    if len(frozenset().union(*code)) > 1:
        all_flags.append(flags.MIXED_CODE)
    pairs = frozenset().union(*data)
    if len(pairs) > len({dataset for dataset, _ in pairs}):
        all_flags.append(flags.MIXED_DATA)
    return flags.union(all_flags)
