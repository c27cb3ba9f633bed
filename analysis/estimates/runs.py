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
# A total that changes by this much between the first and the last third is not steady, unless it is
# within so many standard errors.
DRIFT, DRIFT_ERRORS = 0.01, 2.0


class Runs(NamedTuple):
    """members: a row for each job of each window of the grid, as `prepared` says. hosts: a row for
    each machine. left_out: GPU model → its cells.
    """

    members: pd.DataFrame
    hosts: pd.DataFrame
    left_out: dict[str, int]


def read(path: Path) -> pd.DataFrame:
    """Rows of a merged study. Raises OSError or ValueError."""
    require(path)
    table = read_table(path)
    return pd.DataFrame(table.to_pylist(), columns=table.column_names)


def prepared(rows: pd.DataFrame) -> Runs:
    """Members of the GPU model with most completed cells: models are never mixed.

    A completed cell whose method was not proven in force does not count: its status is UNVERIFIED.
    New columns: `run` numbers the windows of all cells; `at` is the cell with its attempt; `host`;
    `jobs` (of the set), `variant`. Of an interleaved cell each condition is a run of its own:
    `scenario` and `method` are those of the condition, `condition` is its name, `again` if an
    earlier condition is the same set. `window` is "" for a cell's only one. `measured` if it
    completed and has a window; `baseline` if others are normalised by it: a completed job alone,
    without MPS or MIG.
    """
    done = rows[(rows["status"] == COMPLETED) & rows["current"].astype(bool)]
    models = done.groupby("hardware")["cell"].nunique().sort_values(ascending=False, kind="stable")
    left_out = {model: int(cells) for model, cells in models[1:].items()}
    others = (rows["status"] != COMPLETED) & ~rows["hardware"].isin(left_out)
    members = rows[rows["hardware"].isin(models.index[:1]) | others].copy()
    numbers = [column.name for column in SCHEMA if column.type == pa.float64()]
    members[numbers] = members[numbers].astype(float)
    for column in ("window", "device", "session", "started_at", "flags", "reason", "input_mode"):
        members[column] = members[column].astype(object).where(members[column].notna(), "")
    members["current"] = members["current"].astype(bool)
    unproven = (members["status"] == COMPLETED) & ~members["method_verified"].eq(True)  # noqa: FBT003
    members.loc[unproven, ["status", "reason"]] = UNVERIFIED, "its method was not proven in force"
    hosts = _hosts(members)
    where = ["machine", "hardware"]
    members = members.merge(hosts[[*where, "host"]], "left", where)
    members["host"] = members["host"].astype(object).fillna("")
    members["run"] = members.groupby(["cell", "attempt", "window"], sort=False).ngroup()
    tried = zip(members["cell"], members["attempt"], strict=True)
    members["at"] = pd.Series([f"{c}/a{a}" for c, a in tried], members.index, dtype=object)
    return Runs(_conditions(members).reset_index(drop=True), hosts, left_out)


def _hosts(members: pd.DataFrame) -> pd.DataFrame:
    """Machines that measured something, labelled h1, h2, … as they were first used."""
    done = members[members["status"] == COMPLETED]
    machine = done.groupby(["machine", "hardware"])
    hosts = machine.agg(
        first=("started_at", lambda began: min(began.replace("", "~"))),
        sessions=("session", "nunique"),
        named=("session", lambda names: ", ".join(sorted(set(names)))),
    )
    hosts["cells"] = done[done["current"]].groupby(["machine", "hardware"])["cell"].nunique()
    hosts = hosts.fillna({"cells": 0}).reset_index().sort_values(["first", "machine", "hardware"])
    return hosts.assign(host=[f"h{place}" for place in range(1, len(hosts) + 1)])


def _conditions(members: pd.DataFrame) -> pd.DataFrame:
    """With the set that each row belongs to, which in an interleaved cell is one of its
    conditions.
    """
    names = ["scenario", "method", "window"]
    known = members[names].drop_duplicates().reset_index(drop=True)
    found = []
    for scenario, method, window in known.itertuples(index=False):
        condition = conditions_of(scenario, method).get(window)
        parsed = parse_scenario(condition.scenario if condition else scenario)
        of = {"set": parsed.id, "by": condition.method if condition else method}
        of |= {"plain": "" if condition or window == "window" else window}
        of |= {
            "condition": window if condition else "",
            "again": bool(condition and condition.is_repeat),
        }
        found.append(of | {"jobs": parsed.n, "mixed": parsed.mixed, "variant": parsed.variant})
    members = members.merge(known.join(pd.DataFrame(found)), on=names, how="left")
    members["measured"] = (members["status"] == COMPLETED) & (members["window"] != "")
    members = members.drop(columns=names).rename(
        columns={"set": "scenario", "by": "method", "plain": "window"}
    )
    members = members.copy()  # in one piece
    alone = (members["method"] == "naive") & (members["jobs"] == 1) & (members["window"] == "")
    members["baseline"] = alone & members["measured"] & members["variant"].isin(ALONE_VARIANTS)
    return members


def steady(members: pd.DataFrame) -> pd.Series:
    """Run → whether the set's total kept its rate over the window; NA if it took turns, or its
    steps were too few to tell.

    The total's drift is that of its members weighted by their rates; in a mix, whose samples do not
    add up, each counts alike. It is unsteady where the drift between first and last third is 1 % or
    more and beyond two standard errors.
    """
    run, rate = members["run"], members["samples_per_s"]
    known = (rate > 0).groupby(run).transform("all")
    alike = members.groupby("run")["workload"].transform("nunique") == 1
    weight = rate.where(known & alike, 1.0).where(members["drift"].notna(), 0.0)
    total = weight.groupby(run).sum().replace(0, np.nan)
    drift = (weight * members["drift"]).groupby(run).sum() / total
    squares = (weight * members["drift_error"].fillna(0.0)) ** 2
    error = np.sqrt(squares.groupby(run).sum()) / total
    kept = drift.abs() < np.maximum(DRIFT, DRIFT_ERRORS * error)
    return kept.astype("boolean").mask(total.isna())


def conditions(members: pd.DataFrame) -> pd.DataFrame:
    """Run → its flags, and which code and data its members had: what several runs may mix."""
    data = pd.Series(list(zip(members["dataset"], members["source"], strict=True)), members.index)
    run = members.assign(data=data).groupby("run")
    found = run.agg(flags=("flags", "first"), code=("digest", frozenset), data=("data", frozenset))
    drifted = ~steady(members).fillna(True)
    differs = (members["loss_check"] == DIFFERS).groupby(members["run"]).any()
    for flag, of in ((flags.UNSTEADY, drifted), (flags.LOSSES_DIFFER, differs)):
        found["flags"] = found["flags"] + np.where(of, f";{flag}", "")
    return found


def mixed(columns: Iterable[str], code: Iterable[frozenset], data: Iterable[frozenset]) -> str:
    """Flags of several runs, with those that only several together can have."""
    pairs = frozenset().union(*data)
    found = list(columns)
    found += [flags.MIXED_CODE] * (len(frozenset().union(*code)) > 1)
    found += [flags.MIXED_DATA] * (len(pairs) > len({dataset for dataset, _ in pairs}))
    return flags.union(found)
