"""Which estimates figures show: sets of copies of one job, and the numbers beside them."""

from collections.abc import Callable

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.report.figures.style import METHODS
from workflow.collocation.study.names import Scenario, parse_scenario

SET = ["scenario", "implementation", "method"]
JOB = ["workload", "implementation"]
MOST = 6  # series of a panel, or panels of a figure
MIN_HOSTS = 1 / 2  # of a drawn set, as a share of the most hosts that any set of its job has
MIN_SETS = 1 / 4  # of a series, as a share of the most sets that any job has
# What `copies` leaves out, for captions.
NOT_DRAWN = "Not drawn: image files, mixes, and what less than half of a job's hosts measured."


def of_scenarios(rows: pd.DataFrame, wanted: Callable[[Scenario], bool]) -> pd.DataFrame:
    """Rows of the wanted scenarios that have a number."""
    chosen = [wanted(parse_scenario(scenario)) for scenario in rows["scenario"]]
    return rows[pd.Series(chosen, rows.index, dtype=bool) & rows["value"].notna()]


def copies(estimates: pd.DataFrame, quantity: str, **where: str) -> pd.DataFrame:
    """A quantity of one job alone and of sets of its copies, with the job in column `workload`.

    Leaves out scenarios with a variant, and numbers of few of the job's hosts: their mean is over
    other hosts, so they are no points of the same line.
    """
    rows = table.select(estimates, quantity, **{"window": "", "job": "", "name": ""} | where)
    rows = rows.assign(workload=[parse_scenario(s).parts[0][0] for s in rows["scenario"]])
    hosts = rows["hosts"].where((rows["jobs"] > 1) & rows["method"].isin(METHODS))
    most = hosts.groupby([rows[column] for column in JOB]).transform("max").fillna(0)
    rows = rows[rows["hosts"] >= MIN_HOSTS * most]
    return of_scenarios(rows, lambda scenario: not scenario.mixed and not scenario.variant)


def sets(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of several jobs, by a method that is drawn."""
    return rows[(rows["jobs"] > 1) & rows["method"].isin(METHODS)]


def series(rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(workload, implementation) → its rows by number of jobs, for those with the most sets."""
    counts = sets(rows).groupby(JOB, sort=False).size()
    counts = counts[counts > MIN_SETS * counts.max()]
    chosen = set(counts.sort_values(ascending=False, kind="stable").index[:MOST])
    groups = rows[rows["method"].isin(METHODS)].groupby(JOB, sort=False)
    return {key: group.sort_values("jobs") for key, group in groups if key in chosen}


def beside(rows: pd.DataFrame, estimates: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Rows whose set has this quantity too, in columns that end in `_beside`."""
    second = table.select(estimates, quantity, window="", job="").dropna(subset="value")
    columns = [*SET, "id", "value", "low", "high"]
    return rows.merge(second[columns], on=SET, suffixes=("", "_beside"))


def with_alone(
    rows: pd.DataFrame, estimates: pd.DataFrame, quantity: str, host: str = ""
) -> pd.DataFrame:
    """Rows of `copies` whose job has this quantity alone, in a column of the quantity's name.

    host: "*" for rows of single hosts, each beside the job alone on that host.
    """
    key = [*JOB, "host"]
    alone = copies(estimates, quantity, method="naive", host=host)
    alone = alone[alone["jobs"] == 1].set_index(key)["value"]
    keys = list(zip(*(rows[column] for column in key), strict=True))
    return rows.assign(**{quantity: alone.reindex(keys).to_numpy()}).dropna(subset=quantity)


def largest(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The set with the most jobs for each combination of these columns."""
    return rows.loc[rows.groupby(by)["jobs"].idxmax()]


def best(rows: pd.DataFrame) -> tuple:
    """The row with the highest value, as a named tuple."""
    return next(rows.loc[[rows["value"].idxmax()]].itertuples(index=False))


def gain(stp: tuple, remark: str = "") -> str:
    """A gain in a title: `3.00 times` and the remark, or why it exceeds the number of jobs."""
    if flags.ABOVE_COUNT in flags.split(stp.flags):
        remark = " (one alone ran slow)"
    return f"{labels.number(stp.value)} times{remark}"
