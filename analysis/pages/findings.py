"""For README and docs/results.md: how hosts differ, and what a crowd of jobs gains."""

import pandas as pd

from analysis import estimates as table
from analysis.figures import select

CROWD, ROOMY = (7, 8), 0.9  # jobs; of their number as STP, from which they have room


def apart(estimates: pd.DataFrame, scenario: str = "*") -> float:
    """By which share one job alone is faster on a host than on another: the most of all jobs."""
    rates = table.of(estimates, "rate", host="*", method="naive", window="", scenario=scenario)
    rates = rates[rates["jobs"] == 1].groupby(["scenario", "implementation"])["value"]
    return float((rates.max() / rates.min()).max() - 1)


def crowded(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone on the same host, of the sets of seven or eight jobs alike
    under MPS that are in each other's way.
    """
    gains = select.copies(estimates, "stp", method="mps", host="*")
    gains = select.with_alone(gains, estimates, "smact", host="*")
    gains = gains[gains["jobs"].isin(CROWD) & (gains["value"] < ROOMY * gains["jobs"])]
    return gains["value"] * gains["smact"]
