"""For README and docs/results.md: how hosts differ, and what a crowd of jobs gains."""

import pandas as pd

from analysis import estimates as table
from analysis.figures import select

CROWD = 7


def apart(estimates: pd.DataFrame) -> float:
    """By which share one job alone is faster on a host than on another: the most of all jobs."""
    rates = table.of(estimates, "rate", host="*", method="naive", window="")
    rates = rates[rates["jobs"] == 1].groupby(["scenario", "implementation"])["value"]
    return float((rates.max() / rates.min()).max() - 1)


def crowded(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone, of the sets of seven or more jobs alike under MPS."""
    gains = select.with_alone(select.copies(estimates, "stp", method="mps"), estimates, "smact")
    gains = gains[gains["jobs"] >= CROWD]
    return gains["value"] * gains["smact"]
