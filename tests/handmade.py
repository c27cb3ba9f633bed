"""Estimates for the tests of analysis/: hand-made, or of simulated studies."""

from dataclasses import dataclass, fields

import pandas as pd

from analysis.estimates import build as publish
from analysis.estimates import table as estimates
from analysis.estimates.records.schema import SCHEMA
from analysis.estimates.table import INTERVAL, RANGE
from tests.simulator import simulate

IMPLEMENTATION = "paper_step"


@dataclass(frozen=True)
class Estimate:
    """A row of estimates.parquet, to be changed by dataclasses.replace."""

    quantity: str
    scenario: str = ""
    implementation: str = ""
    method: str = ""
    window: str = ""
    job: str = ""
    host: str = ""
    source: str = "measured"
    name: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    spread: str = "none"
    n: int = 0
    hosts: int = 0
    flags: str = ""
    status: str = ""
    note: str = ""
    design: str = ""
    replicates: tuple = ()


def rows_of(design, seed=1):
    """The numbers of a simulated study."""
    names = [field.name for field in fields(Estimate)]
    found = built(simulate(design, seed))
    return [Estimate(**row) for row in found[names].to_dict("records")]


def number(
    quantity, scenario="", method="mps", *, value=1.0, implementation=IMPLEMENTATION, **fields
):
    """A row; (low, value, high) is a number with an interval."""
    if isinstance(value, tuple):
        low, value, high = value
        fields = {"low": low, "high": high, "spread": INTERVAL} | fields
    place = (
        {"scenario": scenario, "implementation": implementation, "method": method}
        if scenario
        else {}
    )
    return {"quantity": quantity, **place, "value": value, "n": 1} | fields


def on_hosts(quantity, scenario, *hosts, method="mps", **fields):
    """Rows of one place: over all hosts, and one per host; each a value, or (low, value, high)."""
    rows = [
        number(quantity, scenario, method, value=host, host=f"h{place}", **fields)
        for place, host in enumerate(hosts, 1)
    ]
    values = [row["value"] for row in rows]
    over = {"value": sorted(values)[len(values) // 2], "low": min(values), "high": max(values)}
    over |= {"spread": RANGE, "hosts": len(rows), "host": "", "n": sum(r["n"] for r in rows)}
    return [rows[0] | (over if rows[1:] else {"host": "", "hosts": 1}), *rows]


def frame(rows):
    """A table of estimates, as `read_estimates` gives it."""
    return estimates.ordered(table(rows))


def table(rows):
    """Rows (dicts, or Estimates) with their ids."""
    rows = [vars(row) if isinstance(row, Estimate) else row for row in rows]
    rows = [row | {"replicates": list(row.get("replicates", ()))} for row in rows]
    return estimates.combined([pd.DataFrame(rows)])


def written(folder, rows):
    """The folder, with estimates.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    estimates.save_estimates(table(rows), folder / "estimates.parquet")
    return folder


def built(study, change=None):
    """The estimates of a simulated study; `change` changes its rows."""
    rows = change(study.rows) if change else study.rows
    made = publish.measured_estimates(pd.DataFrame(rows, columns=SCHEMA.names), study.plan)
    return estimates.ordered(made)


def simulated(design, seed=1, change=None):
    """id → number of a simulated study."""
    return estimates.by_id(built(simulate(design, seed), change))
