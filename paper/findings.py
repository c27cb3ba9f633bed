"""For README and docs/results.md: how hosts differ, what a crowd gains, what benches found."""

import json
from collections.abc import Callable, Iterator

import pandas as pd

from analysis.advice.fit import UNSEEN_FILE
from analysis.advice.predict import AloneActivity, predict_stp
from analysis.estimates import table
from analysis.estimates.table import Row
from analysis.report.figures import select
from workflow.collocation import ROOT
from workflow.collocation.study.regular_files import read_json

# watching*.json and sm_limits*.csv are by bench/, graph_speeds.json by an older version of it.
RESULTS = ROOT / "results"
CROWD = (7, 8)  # jobs of a set
ROOMY = 0.9  # of the number of jobs as STP: from here on they are not in each other's way


def difference_between_hosts(estimates: pd.DataFrame, job: str, n: int) -> float:
    """By which share one job alone is faster on the fastest host than on the slowest.

    It is in the paper's style; hosts are those that measured n of it together.
    """
    place = {"host": "*", "window": "", "implementation": "paper_step"}
    alone = table.select(estimates, "rate", **place, scenario=f"1x_{job}", method="naive")
    hosts = table.select(estimates, "rate", **place, scenario=f"{n}x_{job}")["host"]
    rates = alone[alone["host"].isin(hosts)]["value"]
    return float(rates.max() / rates.min() - 1)


def gains_times_smact(estimates: pd.DataFrame) -> pd.Series:
    """STP times SMACT of one job alone, of sets under MPS whose jobs are in each other's way.

    Of seven or eight jobs alike, on each host; also of the jobs that the predictor was not fitted
    to.
    """
    gains = select.copies(estimates, "stp", method="mps", host="*")
    gains = select.with_alone(gains, estimates, "smact", host="*")
    unseen = pd.read_csv(UNSEEN_FILE).query("method == 'mps'")
    unseen = unseen.rename(columns={"n": "jobs", "stp": "value"})
    gains = pd.concat([frame[["jobs", "value", "smact"]] for frame in (gains, unseen)])
    gains = gains[gains["jobs"].isin(CROWD) & (gains["value"] < ROOMY * gains["jobs"])]
    return gains["value"] * gains["smact"]


def gains_beside_server(number: Callable[[str], Row], method: str) -> tuple[float, float]:
    """STP, predicted and measured, of a server and the model that is fine-tuned beside it.

    A server that answers all its requests does all its work. number: id → estimate.
    """
    alone = []
    for job in ("serve_6", "lm_b8"):
        values = {
            name: number(f"{name}:1x_{job}/bf16/naive").value for name in AloneActivity._fields
        }
        alone.append(AloneActivity(**values))
    rate = number(f"job_rate:1x_serve_6+1x_lm_b8/bf16/{method}/lm_b8").value
    measured = 1 + rate / number("rate:1x_lm_b8/bf16/naive").value
    return predict_stp(method, alone).stp, measured


def watching_costs() -> Iterator[tuple[str, dict]]:
    """(watcher, what it costs): gpu, file, blocks; throughput and power, as changes in %.

    A change is (value, low, high).
    """
    for path in sorted(RESULTS.glob("watching*.json")):
        [case] = read_json(path).values()
        for name, costs in case["watchers"].items():
            yield name, costs | {"gpu": case["gpu"], "file": path.name}


def graph_speedups(*events: str) -> list[float]:
    """By how much (%) a CUDA graph is faster after such events than before, without profiler."""
    speedups = []
    for row in read_json(RESULTS / "graph_speeds.json"):
        if row["event"] in events and not row["profiled"]:
            speedups.append(100 * (row["rate"] / row["before_rate"] - 1))
    return speedups


def sm_limits() -> Iterator[dict]:
    """Of each recorded card: gpu, driver, file, and the limits of SMs (%) that were `right`.

    That is, under which all products in half precision were made, and none was wrong.
    """
    for path in sorted(RESULTS.glob("sm_limits*.csv")):
        products = pd.read_csv(path, dtype={"driver": str})
        half = products[products["dtype"].isin(["bf16", "fp16"]) & (products["percent"] < 100)]
        limits = half.groupby("percent")["wrong_repeats"].agg(["count", "sum"])
        right = limits[(limits["count"] == limits["count"].max()) & (limits["sum"] == 0)].index
        about = products.iloc[0][["gpu", "driver"]].to_dict()
        yield about | {"file": path.name, "right": [f"{percent:g}" for percent in right[::-1]]}


def limited_training() -> pd.DataFrame:
    """Training in bf16 under limits of SMs, by limit (%), all recorded cards and models together.

    Columns: runs, steps (of the shortest run), steps_until_nan (the most steps that a run made
    until its loss was NaN; NaN where no loss was).
    """
    losses = pd.read_csv(RESULTS / "limited_training.csv")
    runs = losses.groupby(["percent", "gpu", "width"])["loss"]
    by_run = pd.DataFrame({"steps": runs.size(), "until_nan": runs.apply(_steps_until_nan)})
    by_limit = by_run.groupby("percent")
    return pd.DataFrame(
        {
            "runs": by_limit.size(),
            "steps": by_limit["steps"].min(),
            "steps_until_nan": by_limit["until_nan"].max(),
        }
    )


def _steps_until_nan(losses: pd.Series) -> float:
    is_nan = losses.isna().to_numpy()
    return float(is_nan.argmax() + 1) if is_nan.any() else float("nan")


def answers() -> dict:
    """How what `collocate advise` stated compares with fresh starts, by `bench.answers`.

    jobs: how many scripts; undecided: for how many of them advice was. rates, gains: the lowest and
    highest of stated over true. held: how many gains lie in their stated intervals.
    """
    recorded = json.loads((RESULTS / "answers_h200.json").read_text("utf-8"))
    sets = [answer["set"] for answer in recorded.values() if "set" in answer]
    ranges = {}
    for name, quantity in (("rates", "rate"), ("gains", "stp")):
        ratios = [each[quantity]["ratio"] for each in sets]
        ranges[name] = min(ratios), max(ratios)
    undecided = sum(not each["advised"] for each in sets)
    held = sum(each["stp"]["holds"] for each in sets)
    return {"jobs": len(sets), "undecided": undecided, "held": held, **ranges}
