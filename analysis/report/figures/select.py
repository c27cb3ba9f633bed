"""Which numbers figures show: sets of copies of one job, and what stands beside them."""

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.report.figures.style import METHODS
from workflow.collocation.study.names import parse_scenario

PLACE = ["scenario", "implementation", "method"]
MOST = 6  # series of a panel, or panels of a figure
HOSTS_OF_EACH = 1 / 2  # of the most on which a set of the job that is drawn was measured
SETS_OF_EACH = 1 / 4  # a job with fewer sets, as a share of the most, is no series
# What `copies` leaves out, for captions.
DRAWN = "Not drawn: image files, mixes, and sets measured on less than half of a job's hosts."


def copies(estimates: pd.DataFrame, quantity: str, **where: str) -> pd.DataFrame:
    """Numbers of sets of one job (in column `workload`), without variants, in plain windows; not
    of few hosts: another mean of hosts is no point of a job's line.
    """
    rows = table.select(estimates, quantity, **{"window": "", "job": "", "name": ""} | where)
    parsed = rows["scenario"].map(parse_scenario)
    alike = parsed.map(lambda each: not each.mixed and not each.variant).astype(bool)
    rows = rows.assign(workload=[each.parts[0][0] for each in parsed])
    most = rows["hosts"].where((rows["jobs"] > 1) & rows["method"].isin(METHODS))
    most = most.groupby([rows["workload"], rows["implementation"]]).transform("max").fillna(0)
    return rows[alike & (rows["hosts"] >= HOSTS_OF_EACH * most) & rows["value"].notna()]


def sets(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of several jobs, by a method that is drawn."""
    return rows[(rows["jobs"] > 1) & rows["method"].isin(METHODS)]


def series(rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(workload, implementation) → its numbers by jobs, of those that were measured in the most
    sets; rows of methods that are not drawn are left out.
    """
    counted = sets(rows).groupby(["workload", "implementation"], sort=False).size()
    counted = counted[counted > SETS_OF_EACH * counted.max()]
    chosen = set(counted.sort_values(ascending=False, kind="stable").index[:MOST])
    found = rows[rows["method"].isin(METHODS)].groupby(["workload", "implementation"], sort=False)
    return {key: each.sort_values("jobs") for key, each in found if key in chosen}


def beside(rows: pd.DataFrame, estimates: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Rows of which this quantity is known too: its columns end in `_beside`."""
    others = table.select(estimates, quantity, window="", job="")
    return rows.merge(others[[*PLACE, "id", "value", "low", "high"]].dropna(subset="value"),
                      on=PLACE, suffixes=("", "_beside"))  # fmt: skip


def with_alone(
    rows: pd.DataFrame, estimates: pd.DataFrame, quantity: str, host: str = ""
) -> pd.DataFrame:
    """Rows of `copies` of which this quantity of one such job alone is known: in a column of its
    name. host: "*" for rows of single hosts, each beside its own.
    """
    key = ["workload", "implementation", "host"]
    alone = copies(estimates, quantity, method="naive", host=host)
    alone = alone[alone["jobs"] == 1].set_index(key)["value"]
    keys = list(zip(*(rows[column] for column in key), strict=True))
    return rows.assign(**{quantity: alone.reindex(keys).to_numpy()}).dropna(subset=quantity)


def largest(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Of each of these the set with the most jobs."""
    return rows.loc[rows.groupby(by)["jobs"].idxmax()]


def best(rows: pd.DataFrame) -> tuple:
    """The row with the highest value, as a named tuple."""
    return next(rows.loc[[rows["value"].idxmax()]].itertuples(index=False))


def gain(row: tuple, more: str = "") -> str:
    """What a title says of a row of STP, with `more`; of a gain above the number of jobs, why."""
    slow = flags.ABOVE_COUNT in flags.split(row.flags)
    return f"{labels.number(row.value)} times{' (one alone ran slow)' if slow else more}"
