"""For README and docs/results.md: how hosts differ, what a crowd gains, what watching costs."""

import json
from functools import partial
from pathlib import Path

import pandas as pd

from analysis import estimates as table
from analysis.figures import select
from analysis.fit import UNSEEN
from analysis.predict import Alone, predict

WATCHING = Path(__file__).parents[2] / "results" / "watching.json"  # by `make bench`
CROWD, ROOMY = (7, 8), 0.9  # jobs; of their number as STP, from which they have room


def apart(estimates: pd.DataFrame, scenario: str) -> float:
    """By which share one job alone is faster on a host than on another: the most of its ways."""
    rates = table.of(estimates, "rate", host="*", method="naive", window="", scenario=scenario)
    rates = rates[rates["jobs"] == 1].groupby(["scenario", "implementation"])["value"]
    return float((rates.max() / rates.min()).max() - 1)


def crowded(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone on the same host, of the sets of seven or eight jobs alike
    under MPS that are in each other's way; of the jobs that the predictor was not fitted to, too.
    """
    gains = select.copies(estimates, "stp", method="mps", host="*")
    gains = select.with_alone(gains, estimates, "smact", host="*")
    unseen = pd.read_csv(UNSEEN).query("method == 'mps'")
    unseen = unseen.rename(columns={"n": "jobs", "stp": "value"})
    gains = pd.concat([frame[["jobs", "value", "smact"]] for frame in (gains, unseen)])
    gains = gains[gains["jobs"].isin(CROWD) & (gains["value"] < ROOMY * gains["jobs"])]
    return gains["value"] * gains["smact"]


def beside_server(estimates: pd.DataFrame, method: str) -> tuple[float, float]:
    """STP, predicted and measured, of a server and the model that is fine-tuned beside it; a server
    that answers all its requests does all its work.
    """
    where = {"implementation": "bf16", "method": "naive"}
    server, tuned = (where | {"scenario": f"1x_{job}"} for job in ("serve_6", "lm_b8"))
    both = where | {"method": method, "scenario": "1x_serve_6+1x_lm_b8", "job": "lm_b8"}
    of = partial(table.get, estimates)
    alone = [Alone(*(of(name, **job).value for name in Alone._fields)) for job in (server, tuned)]
    measured = 1 + of("job_rate", **both).value / of("rate", **tuned).value
    return predict(method, alone).stp, measured


def watching() -> dict[str, dict]:
    """Watcher → how a job's throughput and the power change beside it (%): value, low, high."""
    [case] = json.loads(WATCHING.read_text(encoding="utf-8")).values()
    return case["watchers"]
