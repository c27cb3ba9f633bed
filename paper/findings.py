"""For README and docs/results.md: how hosts differ, what a crowd gains, what benches found."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from analysis.advice.fit import UNSEEN_FILE
from analysis.advice.predict import AloneActivity, predict_stp
from analysis.estimates import table
from analysis.estimates.table import Row
from analysis.report.figures import select
from workflow.collocation.study.regular_files import read_json

RESULTS = Path(__file__).parents[1] / "results"  # of watching.json and graph_speeds.json
CROWD, ROOMY = (7, 8), 0.9  # jobs; of their number as STP, from which they have room


def apart(estimates: pd.DataFrame, job: str, n: int) -> float:
    """By which share one job alone, in the paper's style, is faster on a host than on another, of
    those that measured n.
    """
    place = {"host": "*", "window": "", "implementation": "paper_step"}
    alone = table.select(estimates, "rate", **place, scenario=f"1x_{job}", method="naive")
    hosts = table.select(estimates, "rate", **place, scenario=f"{n}x_{job}")["host"]
    rates = alone[alone["host"].isin(hosts)]["value"]
    return float(rates.max() / rates.min() - 1)


def crowded(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone on the same host, of the sets of seven or eight jobs alike
    under MPS that are in each other's way; of the jobs that the predictor was not fitted to, too.
    """
    gains = select.copies(estimates, "stp", method="mps", host="*")
    gains = select.with_alone(gains, estimates, "smact", host="*")
    unseen = pd.read_csv(UNSEEN_FILE).query("method == 'mps'")
    unseen = unseen.rename(columns={"n": "jobs", "stp": "value"})
    gains = pd.concat([frame[["jobs", "value", "smact"]] for frame in (gains, unseen)])
    gains = gains[gains["jobs"].isin(CROWD) & (gains["value"] < ROOMY * gains["jobs"])]
    return gains["value"] * gains["smact"]


def beside_server(number: Callable[[str], Row], method: str) -> tuple[float, float]:
    """STP, predicted and measured, of a server and the model that is fine-tuned beside it; a server
    that answers all its requests does all its work.
    """
    alone = [
        AloneActivity(
            *(number(f"{name}:1x_{job}/bf16/naive").value for name in AloneActivity._fields)
        )
        for job in ("serve_6", "lm_b8")
    ]
    rate = number(f"job_rate:1x_serve_6+1x_lm_b8/bf16/{method}/lm_b8").value
    measured = 1 + rate / number("rate:1x_lm_b8/bf16/naive").value
    return predict_stp(method, alone).stp, measured


def watching() -> Iterator[tuple[str, dict]]:
    """Watchers, and of each on which GPU, in which file, in how many blocks, and how a job's
    throughput and the power change beside it (%): value, low, high.
    """
    for path in sorted(RESULTS.glob("watching*.json")):
        [case] = read_json(path).values()
        for name, told in case["watchers"].items():
            yield name, told | {"gpu": case["gpu"], "file": path.name}


def sped(*events: str) -> list[float]:
    """By how much (%) a CUDA graph is faster after such events than before, without profiler."""
    rows = read_json(RESULTS / "graph_speeds.json")
    own = [row for row in rows if row["event"] in events and not row["profiled"]]
    return [100 * (r["rate"] / r["before_rate"] - 1) for r in own]
