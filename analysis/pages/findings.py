"""For README and docs/results.md: how hosts differ, within a study and from those of another, and
what a crowd of jobs gains.
"""

import pandas as pd

from analysis import estimates as table
from analysis.estimates import PREDICTION
from analysis.figures import select
from workflow.collocation.spec.names import PAPER_IMPLEMENTATION

CROWD = 7


def apart(estimates: pd.DataFrame) -> float:
    """By which share one job alone is faster on a host than on another: the most of all jobs."""
    rates = table.of(estimates, "rate", host="*", method="naive", window="")
    rates = rates[rates["jobs"] == 1].groupby(["scenario", "implementation"])["value"]
    return float((rates.max() / rates.min()).max() - 1)


def on_hosts_of(estimates: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Gains of sets in the paper's style on each host of another study, beside this study's number
    and interval of a new host: value, value_own, inside.
    """
    of = {"window": "", "job": ""}
    own = table.of(estimates, "stp", implementation=PAPER_IMPLEMENTATION, **of)
    own = own[(own["jobs"] > 1) & (own["spread"] == PREDICTION)]
    found = table.of(other, "stp", host="*", **of)
    found = found.merge(
        own[[*select.PLACE, "value", "low", "high"]], on=select.PLACE, suffixes=("", "_own")
    )
    return found.assign(inside=found["value"].between(found["low_own"], found["high_own"]))


def crowded(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone, of the sets of seven or more jobs alike under MPS."""
    gains = select.with_alone(select.copies(estimates, "stp", method="mps"), estimates, "smact")
    gains = gains[gains["jobs"] >= CROWD]
    return gains["value"] * gains["smact"]
