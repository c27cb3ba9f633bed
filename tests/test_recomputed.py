"""The numbers of a dozen shipped sets, computed once more from their raw series.

Nothing here is shared with the analysis: run.json says what a cell is, where it ran and when its
window was open; all else comes from steps.parquet and gpu.parquet.

GRACT is computed as the mean of the ten readings a second, weighted by the time each covers. The
estimates take the value of one pair of samples that spans the window (run.json: entities). The two
differ by 0.01 % (median of these cells) to 0.9 %.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tests import warm

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200"
RATE, GRACT = 1e-4, 0.01  # relative tolerances
ROWS, SMALL, BIG = "dlrm_criteo_b2048", "resnet26_cifar10_b32", "resnet152_imagenet_b32"
WIDE = "efficientnetv2_s_imagenet64_b128"
SETS = [
    *((f"{n}x_{SMALL}", method) for n in (2, 3, 7) for method in ("naive", "mps")),
    *((f"{n}x_{BIG}", method) for n in (2, 7) for method in ("naive", "mps")),
    *((f"7x_{WIDE}", method) for method in ("naive", "mps")),
    (f"7x_{SMALL}", "naive_again"),
    *((f"1x_{ROWS}+1x_{BIG}", method) for method in ("naive", "mps")),
]
ALONE = [(f"1x_{name}", "naive") for name in (SMALL, BIG, WIDE, ROWS)]


def folders(scenario, method):
    return sorted((RESULTS / "cells" / scenario / "paper_step" / method).glob("r*/a*"))


def measured(folder):
    """The cell in this folder as its own files tell it, rates in samples/s; where it completed."""
    told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if told["status"] != "completed":
        return {}
    (window,) = told["windows"]
    sizes = [member["batch_size"] for member in told["spec"]["members"]]
    found = {key: told["cell"][key] for key in ("scenario", "method", "replicate", "attempt")}
    found |= {"device": told["gpu"]["uuid"], "machine": told["provenance"]["machine"]}
    found["rates"] = list(rates(folder / "steps.parquet", window, sizes))
    return found | {"gract": gract(folder / "gpu.parquet", window)}


def rates(path, window, sizes):
    """Of each member: samples of the steps after the first in the window, over their time."""
    table = pq.read_table(path)
    told = table.schema.metadata
    end = table["tick"].to_numpy() * int(told[b"tick_ns"]) + int(told[b"origin_ns"])
    member = table["member"].to_numpy()
    for place, size in enumerate(sizes):
        own = np.sort(end[member == place])
        own = own[(own >= window["start_ns"]) & (own < window["end_ns"])]
        yield size * (len(own) - 1) / ((own[-1] - own[0]) / 1e9)


def gract(path, window):
    """A reading covers the time since the one before it."""
    table = pq.read_table(path, columns=["t_ns", "gract"])
    until = table["t_ns"].to_numpy() + int(table.schema.metadata[b"origin_ns"])
    since = np.concatenate([until[:1], until[:-1]])
    shared = np.minimum(until, window["end_ns"]) - np.maximum(since, window["start_ns"])
    values = table["gract"].to_numpy()
    weight = np.where(np.isfinite(values), np.maximum(shared, 0), 0)
    return float(np.average(np.nan_to_num(values), weights=weight))


@pytest.fixture(scope="module")
def cells():
    """Of each replicate of a set its newest completed attempt; of a job alone, which others are
    held against, on each device of the replicate.
    """
    found = [measured(folder) for sort in (*SETS, *ALONE) for folder in folders(*sort)]
    frame = pd.DataFrame([cell for cell in found if cell]).sort_values("attempt", kind="stable")
    frame["on"] = frame["device"].where(frame["scenario"].isin(dict(ALONE)), "")
    return frame.drop_duplicates(["scenario", "method", "replicate", "on"], keep="last")


@pytest.fixture(scope="module")
def estimates(tmp_path_factory):
    """Rows of estimates.parquet by id, of these cells alone."""
    folder = tmp_path_factory.mktemp("recomputed")
    runs = [path / "run.json" for sort in (*SETS, *ALONE) for path in folders(*sort)]
    (folder / "list").write_text("".join(f"{path}\n" for path in runs))
    plan = json.loads((RESULTS / "plan.json").read_text())
    wanted = {scenario for scenario, _ in (*SETS, *ALONE)}
    kept = [c for c in plan if c["scenario"] in wanted and c["implementation"] == "paper_step"]
    (folder / "plan.json").write_text(json.dumps(kept))
    output = str(folder / "runs.parquet")
    run("merge", "--study", "h200", "--output", output, "--list", str(folder / "list"))
    run("estimate", "--folder", str(folder))
    return {row["id"]: row for row in pq.read_table(folder / "estimates.parquet").to_pylist()}


def run(*command):
    done = warm.run("analysis", *command)
    assert done.returncode == 0, done.stderr


def on_hosts(estimates, cells, scenario, method):
    """(host, its cells of a set)."""
    hosts = [row for row in estimates.values() if row["name"] == "host_cells"]
    labels = {row["note"].split(":")[0]: row["host"] for row in hosts}
    own = cells[(cells["scenario"] == scenario) & (cells["method"] == method)]
    for machine, found in own.groupby("machine"):
        yield labels[machine], list(found.itertuples())


def check(row, values, tolerance):
    """Value of geometric means against a row of one host."""
    assert row["n"] == len(values), row["id"]
    assert row["value"] == pytest.approx(np.exp(np.log(values).mean()), rel=tolerance), row["id"]


def test_intervals_of_jobs_alone_follow_from_how_all_their_cells_vary(estimates):
    """Of those that wait for their host, and are no CUDA graphs: those of the same job, where they
    have six degrees of freedom.
    """
    alone = [
        row
        for name, row in estimates.items()
        if name.startswith("rate:1x_") and "/naive" in name and "graph" not in name and row["host"]
        if estimates[f"gract{name[4:].partition('@')[0]}"]["value"] < 0.9
    ]
    logs = [np.log([r["value"] for r in row["replicates"]]) for row in alone]
    jobs = [row["scenario"].partition("--")[0] for row in alone]
    assert len(alone) > 15
    for row, each, job in zip(alone, logs, jobs, strict=True):
        own = [other for other, its in zip(logs, jobs, strict=True) if its == job]
        if sum(len(other) - 1 for other in own) < 6:
            own = logs
        freedom = sum(len(other) - 1 for other in own)
        deviation = math.sqrt(sum(((other - other.mean()) ** 2).sum() for other in own) / freedom)
        half = stats.t.ppf(0.975, freedom) * deviation * math.sqrt(1 + 1 / len(each))
        ends = np.exp(each.mean() - half), np.exp(each.mean() + half)
        assert (row["low"], row["high"]) == pytest.approx(ends, rel=1e-9), row["id"]


@pytest.mark.parametrize(("scenario", "method"), SETS, ids=lambda each: each)
def test_a_sets_numbers_follow_from_its_raw_series(estimates, cells, scenario, method):
    place, mixed = f"{scenario}/paper_step/{method}", "+" in scenario
    parts = [part.split("x_", 1) for part in scenario.split("+")]
    jobs = [f"1x_{name}" for count, name in parts for _ in range(int(count))]
    plain = cells[cells["method"] == "naive"].itertuples()
    plain = {(c.scenario, c.replicate, c.device): c for c in plain}

    def alone(cell):
        return [plain.get((job, cell.replicate, cell.device)) for job in jobs]

    def stp(cell):
        return sum(r / job.rates[0] for r, job in zip(cell.rates, alone(cell), strict=True))

    def busy(cell):
        pairs = zip(cell.rates, alone(cell), strict=True)
        return sum(rate / job.rates[0] * job.gract for rate, job in pairs)

    assert (grouped := list(on_hosts(estimates, cells, scenario, method)))
    for host, found in grouped:
        if not mixed:
            check(estimates[f"rate:{place}@{host}"], [sum(c.rates) for c in found], RATE)
        assert (f"rate:{place}@{host}" in estimates) is not mixed
        held = [cell for cell in found if all(alone(cell))]
        check(estimates[f"stp:{place}@{host}"], list(map(stp, held)), RATE)
        check(estimates[f"s:{place}@{host}"], list(map(busy, held)), GRACT)
        pairs = [(c, plain.get((scenario, c.replicate, c.device))) for c in found]
        over = stp if mixed else lambda cell: sum(cell.rates)
        beside = [over(cell) / over(other) for cell, other in pairs if other]
        if method != "naive" and beside:
            check(estimates[f"rate_over_naive:{place}@{host}"], beside, RATE)
        row, values = estimates[f"gract:{place}@{host}"], [c.gract for c in found]
        assert row["value"] == pytest.approx(np.mean(values), rel=GRACT)
        assert 0 <= (row["low"] or 0) <= row["value"] <= (row["high"] or 1) <= 1


@pytest.mark.parametrize(("scenario", "method"), ALONE, ids=lambda each: each)
def test_so_do_those_of_a_job_alone(estimates, cells, scenario, method):
    for host, found in on_hosts(estimates, cells, scenario, method):
        place = f"{scenario}/paper_step/{method}@{host}"
        if f"rate:{place}" not in estimates:
            continue  # superseded there, and no set of its replicate was measured beside it
        check(estimates[f"rate:{place}"], [c.rates[0] for c in found], RATE)
        read = np.mean([c.gract for c in found])
        assert estimates[f"gract:{place}"]["value"] == pytest.approx(read, rel=GRACT)
