"""Estimates for the tests of analysis/: hand-made, or of simulated studies."""

import pandas as pd

from analysis import estimates, publish
from analysis.estimates import INTERVAL, RANGE
from analysis.records.schema import SCHEMA
from tests.simulator import simulate

ARM = "paper_step"


def number(quantity, scenario="", method="mps", *, value=1.0, arm=ARM, **fields):
    """A row; (low, value, high) is a number with an interval."""
    if isinstance(value, tuple):
        low, value, high = value
        fields = {"low": low, "high": high, "spread": INTERVAL} | fields
    place = {"scenario": scenario, "arm": arm, "method": method} if scenario else {}
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
    """A table of estimates, as `estimates.read` gives it."""
    return estimates.ordered(estimates.combined([pd.DataFrame(list(rows))]))


def written(folder, rows):
    """The folder, with estimates.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    estimates.write(estimates.combined([pd.DataFrame(list(rows))]), folder / "estimates.parquet")
    return folder


def built(study, work=None, change=None):
    """The estimates of a simulated study; `change` changes its rows."""
    rows = change(study.rows) if change else study.rows
    made = publish.build(pd.DataFrame(rows, columns=SCHEMA.names), study.plan, work or {})
    return estimates.ordered(made)


def simulated(design, seed=1, work=None, change=None):
    """id → number of a simulated study."""
    return estimates.by_id(built(simulate(design, seed), work, change))
