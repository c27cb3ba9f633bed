"""The numbers of a dozen shipped sets, computed once more from their raw series.

Nothing here is shared with the analysis: run.json says what a cell is, where it ran and when its
window was open; all else comes from steps.parquet and gpu.parquet.

GRACT is computed as the mean of the ten readings a second, weighted by the time each covers. The
estimates take the value of one pair of samples that spans the window (run.json: entities). The two
differ by 0.01 % (median of these cells) to 0.9 %.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from tests import warm

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "results" / "h200"
RATE, GRACT = 1e-4, 0.01  # relative tolerances
ROWS = "dlrm_criteo_b2048"
SMALL, BIG, WIDE = (
    "resnet26_cifar10_b32",
    "resnet152_imagenet_b32",
    "efficientnetv2_s_imagenet64_b128",
)
SETS = [
    *((f"{n}x_{SMALL}", method) for n in (2, 3, 7) for method in ("naive", "mps")),
    *((f"{n}x_{BIG}", method) for n in (2, 7) for method in ("naive", "mps")),
    *((f"7x_{WIDE}", method) for method in ("naive", "mps")),
    (f"7x_{SMALL}", "naive_again"),
    *((f"1x_{ROWS}+1x_{BIG}", method) for method in ("naive", "mps")),
]
ALONE = [(f"1x_{name}", "naive") for name in (SMALL, BIG, WIDE, ROWS)]


@dataclass(frozen=True)
class Cell:
    """A completed cell as its own files tell it; rates in samples/s."""

    block: int
    attempt: int
    device: str
    machine: str
    rates: tuple[float, ...]
    gract: float


def folders(scenario, method):
    return sorted((RESULTS / "cells" / scenario / "paper_step" / method).glob("r*/a*"))


def measured(folder):
    """The cell in this folder, or None where it did not complete."""
    told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if told["status"] != "completed":
        return None
    (window,) = told["windows"]
    sizes = [member["batch_size"] for member in told["spec"]["members"]]
    return Cell(
        told["cell"]["replicate"],
        told["cell"]["attempt"],
        told["gpu"]["uuid"],
        told["provenance"]["machine"],
        tuple(rates(folder / "steps.parquet", window, sizes)),
        gract(folder / "gpu.parquet", window),
    )


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


def completed(scenario, method):
    """Attempts that completed, the newest last."""
    every = filter(None, map(measured, folders(scenario, method)))
    return sorted(every, key=lambda cell: cell.attempt)


@cache
def cells(scenario, method):
    """Block → its newest completed attempt; of a job alone, which others are held against, on each
    device of the block.
    """
    found, reference = {}, scenario.startswith("1x_") and "+" not in scenario and method == "naive"
    for cell in completed(scenario, method):
        found[(cell.block, cell.device) if reference else cell.block] = cell
    return found


@cache
def alone(scenario):
    """Of each member of a set: (block, device) → its newest job alone there."""
    found = []
    for part in scenario.split("+"):
        count, name = part.split("x_", 1)
        every = completed(f"1x_{name}", "naive")
        found += [{(cell.block, cell.device): cell for cell in every}] * int(count)
    return found


@pytest.fixture(scope="module")
def estimates(tmp_path_factory):
    """Rows of estimates.parquet by id, of these cells alone."""
    folder = tmp_path_factory.mktemp("recomputed")
    runs = [path / "run.json" for sort in (*SETS, *ALONE) for path in folders(*sort)]
    (folder / "list").write_text("".join(f"{path}\n" for path in runs))
    merge = ["merge", "--study", "h200", "--output", str(folder / "runs.parquet")]
    run(*merge, "--list", str(folder / "list"))
    wanted = {scenario for scenario, _ in (*SETS, *ALONE)}
    plan = json.loads((RESULTS / "plan.json").read_text())
    kept = [c for c in plan if c["scenario"] in wanted and c["arm"] == "paper_step"]
    (folder / "plan.json").write_text(json.dumps(kept))
    rules = ["--claims", "config/claims.yaml", "--reported", "config/reported.csv"]
    run("estimate", "--folder", str(folder), *rules)
    return {row["id"]: row for row in pq.read_table(folder / "estimates.parquet").to_pylist()}


def run(*command):
    done = warm.run("analysis", *command)
    assert done.returncode == 0, done.stderr


def hosts(estimates):
    """Machine → label."""
    rows = estimates.values()
    return {r["note"].split(":")[0]: r["host"] for r in rows if r["name"] == "host_cells"}


def check(row, values, tolerance):
    """Value and t interval of geometric means against a row of one host."""
    assert row["n"] == len(values), row["id"]
    logs = np.log(values)
    assert row["value"] == pytest.approx(np.exp(logs.mean()), rel=tolerance), row["id"]
    if len(values) == 1:
        assert row["low"] is row["high"] is None
        return
    t = stats.t.ppf(0.975, len(logs) - 1)
    half = t * logs.std(ddof=1) / math.sqrt(len(logs))
    # Replicates that are off by the tolerance, in the worst way, move an end by so much.
    ends = tolerance * (1 + t / math.sqrt(len(logs) - 1))
    assert row["low"] == pytest.approx(np.exp(logs.mean() - half), rel=ends), row["id"]
    assert row["high"] == pytest.approx(np.exp(logs.mean() + half), rel=ends), row["id"]


def by_host(found, labels):
    grouped = defaultdict(list)
    for cell in found.values():
        grouped[labels[cell.machine]].append(cell)
    return grouped


@pytest.mark.parametrize(("scenario", "method"), SETS, ids=lambda each: each)
def test_a_sets_numbers_follow_from_its_raw_series(estimates, scenario, method):
    place, mixed = f"{scenario}/paper_step/{method}", "+" in scenario
    bases, plain = alone(scenario), cells(scenario, "naive")

    def progress(cell):
        """Of each member of a cell, and the GRACT of its job alone."""
        jobs = [every[cell.block, cell.device] for every in bases]
        return [(r / job.rates[0], job.gract) for r, job in zip(cell.rates, jobs, strict=True)]

    def stp(cell):
        return sum(each for each, _ in progress(cell))

    assert (grouped := by_host(cells(scenario, method), hosts(estimates)))
    for host, found in grouped.items():
        if not mixed:
            check(estimates[f"rate:{place}@{host}"], [sum(c.rates) for c in found], RATE)
        assert (f"rate:{place}@{host}" in estimates) is not mixed
        held = [c for c in found if all((c.block, c.device) in every for every in bases)]
        check(estimates[f"stp:{place}@{host}"], [stp(c) for c in held], RATE)
        busy = [sum(each * gract for each, gract in progress(c)) for c in held]
        check(estimates[f"s:{place}@{host}"], busy, GRACT)
        beside = [
            (stp(c) / stp(plain[c.block])) if mixed else sum(c.rates) / sum(plain[c.block].rates)
            for c in found
            if c.block in plain and plain[c.block].device == c.device
        ]
        if method != "naive" and beside:
            check(estimates[f"rate_over_naive:{place}@{host}"], beside, RATE)
        row, values = estimates[f"gract:{place}@{host}"], [c.gract for c in found]
        assert row["value"] == pytest.approx(np.mean(values), rel=GRACT)
        assert 0 <= (row["low"] or 0) <= row["value"] <= (row["high"] or 1) <= 1


@pytest.mark.parametrize(("scenario", "method"), ALONE, ids=lambda each: each)
def test_so_do_those_of_a_job_alone(estimates, scenario, method):
    for host, found in by_host(cells(scenario, method), hosts(estimates)).items():
        place = f"{scenario}/paper_step/{method}@{host}"
        if f"rate:{place}" not in estimates:
            continue  # superseded there, and no set of its block was measured beside it
        check(estimates[f"rate:{place}"], [c.rates[0] for c in found], RATE)
        read = np.mean([c.gract for c in found])
        assert estimates[f"gract:{place}"]["value"] == pytest.approx(read, rel=GRACT)


def test_every_set_is_there_and_over_hosts_stands_the_range(estimates):
    for scenario, method in SETS:
        row = estimates[f"stp:{scenario}/paper_step/{method}"]
        on = [e for e in estimates.values() if e["host"] and e["id"].startswith(f"{row['id']}@")]
        assert row["n"] == sum(e["n"] for e in on) == len(cells(scenario, method))
        if len(on) > 1:
            assert row["low"] == min(e["value"] for e in on)
            assert row["high"] == max(e["value"] for e in on)
