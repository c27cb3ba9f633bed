"""The numbers of some shipped sets, computed once more from their raw series.

Nothing here is shared with the analysis: run.json says what a cell is, where it ran and when each
of its sets had the GPU; all else comes from steps.parquet and gpu.parquet.
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

RESULTS = Path(__file__).resolve().parents[2] / "results" / "ladder"
RATE, GRACT = 1e-4, 0.01  # relative tolerances
LAG_NS = 100_000_000  # readings at a slice's start may be of the set before
SMALL, MIDDLE, BIG = "resnet26_cifar10_b32", "resnet26_cifar10_b128", "resnet152_imagenet_b32"
WIDE, CAIT = "efficientnetv2_s_imagenet64_b128", "cait_xxs24_imagenet_b128"
ROWS, PAIR = "dlrm_criteo_small_b2048", f"1x_resnet50_imagenet64_b128+3x_{MIDDLE}"
SETS = [
    *(f"{n}x_{SMALL}" for n in (2, 3, 7)),
    *(f"7x_{name}" for name in (MIDDLE, WIDE, BIG)),
    *(f"2x_{name}" for name in (CAIT, BIG)),
    *(f"3x_{name}" for name in (ROWS, f"{MIDDLE}--files")),
    PAIR,
]
ALONE = [f"1x_{name}" for name in (SMALL, MIDDLE, WIDE, BIG, ROWS)]


def measured(path):
    """A row for each set that the cell measured, as its own files tell it, rates in samples/s."""
    told = json.loads(path.read_text(encoding="utf-8"))
    jobs, how = told["spec"]["members"], told["spec"]["measure"]
    if told["status"] != "completed" or how["kind"] not in ("window", "interleaved"):
        return
    slices = how["kind"] == "interleaved"
    where = str(path) if slices else (told["cell"]["replicate"], told["gpu"]["uuid"])
    cell = {"within": where, "slices": slices, "machine": told["provenance"]["machine"]}
    for window in told["windows"]:
        own = {member: jobs[member] for member in window["members"] or range(len(jobs))}
        name, method = window["name"], told["cell"]["method"]
        if name == "naive_2":
            continue  # the same set again
        if slices:
            method = "naive" if name.startswith("alone") else name.split("x")[-1]
        counts = pd.Series([job["workload"] for job in own.values()]).value_counts(sort=False)
        scenario = "+".join(f"{count}x_{job}" for job, count in counts.items())
        variant = told["cell"]["scenario"].partition("--")[2]
        yield cell | {
            "scenario": f"{scenario}--{variant}" if variant == "files" else scenario,
            "method": method,
            "jobs": [job["workload"] for job in own.values()],
            "rates": rates(path.parent, window, own, how),
            "gract": gract(path.parent, window),
        }


def rates(folder, window, jobs, how):
    """Of each member: in a window samples of the steps after the first, over their time; in slices
    its steps, of those at the edges the part inside.
    """
    table = pq.read_table(folder / "steps.parquet")
    told = table.schema.metadata
    end = table["tick"].to_numpy() * int(told[b"tick_ns"]) + int(told[b"origin_ns"])
    member, found = table["member"].to_numpy(), []
    for place, job in jobs.items():
        own, done, seconds = np.sort(end[member == place]), 0, 0
        for start, stop in window["spans"] or []:
            resumed = start - how["drop_s"] * 1e9
            known = np.concatenate([[resumed], own[own > resumed]])
            done += np.diff(np.interp([start, stop], known, np.arange(len(known))))[0]
            seconds += (stop - start) / 1e9
        if not seconds:
            own = own[(own >= window["start_ns"]) & (own < window["end_ns"])]
            done, seconds = len(own) - 1, (own[-1] - own[0]) / 1e9
        found.append(job["batch_size"] * done / seconds)
    return found


def gract(folder, window):
    """A reading covers the time since the one before it; of slices, only whole ones count."""
    table = pq.read_table(folder / "gpu.parquet", columns=["t_ns", "gract"])
    values = table["gract"].to_numpy()
    known = np.isfinite(values)
    until = table["t_ns"].to_numpy()[known] + int(table.schema.metadata[b"origin_ns"])
    since = np.concatenate([until[:1], until[:-1]])
    if window["spans"]:
        inside = [(since >= a + LAG_NS) & (until <= b) for a, b in window["spans"]]
        shared = np.where(np.any(inside, axis=0), until - since, 0)
    else:
        shared = np.minimum(until, window["end_ns"]) - np.maximum(since, window["start_ns"])
    return float(np.average(values[known], weights=np.maximum(shared, 0)))


@pytest.fixture(scope="module")
def cells():
    paths = sorted(RESULTS.glob("cells/*/paper_step/*/r*/a*/run.json"))
    return pd.DataFrame([row for path in paths for row in measured(path)])


@pytest.fixture(scope="module")
def estimates(tmp_path_factory):
    """Rows of estimates.parquet by id, derived once more."""
    folder = tmp_path_factory.mktemp("recomputed")
    (folder / "list").write_text("\n".join(map(str, RESULTS.glob("cells/*/*/*/*/*/run.json"))))
    (folder / "plan.json").write_bytes((RESULTS / "plan.json").read_bytes())
    output = str(folder / "runs.parquet")
    run("records", "--study", "ladder", "--output", output, "--list", str(folder / "list"))
    run("estimates", "--folder", str(folder))
    return {row["id"]: row for row in pq.read_table(folder / "estimates.parquet").to_pylist()}


def run(*command):
    done = warm.run("collocate", "step", *command)
    assert done.returncode == 0, done.stderr


def on_hosts(estimates, cells, scenario, method):
    """(host, its cells of a set): those in slices, where it has some."""
    hosts = [row for row in estimates.values() if row["name"] == "host_cells"]
    labels = {row["note"].split(":")[0]: row["host"] for row in hosts}
    own = cells[(cells["scenario"] == scenario) & (cells["method"] == method)]
    for machine, found in own.groupby("machine"):
        kept = found["slices"] | (not found["slices"].any())
        yield labels[machine], list(found[kept].itertuples())


def check(row, values, tolerance):
    """Value of geometric means against a row of one host."""
    assert row["n"] == len(values), row["id"]
    assert row["value"] == pytest.approx(np.exp(np.log(values).mean()), rel=tolerance), row["id"]


def test_intervals_of_jobs_alone_follow_from_how_all_their_cells_vary(estimates):
    """Of those that wait for their host, and are no CUDA graphs: those of the same job, where they
    have six degrees of freedom. Numbers of one cell err together, and have one among them.
    """
    alone = [
        row
        for name, row in estimates.items()
        if name.startswith("rate:1x_") and row["method"] == "naive" and row["host"]
        if row["implementation"] in ("paper_step", "eager") and row["design"] == "interleaved"
        if estimates[f"gract{name[4:].partition('@')[0]}"]["value"] < 0.9
    ]
    logs = [np.log([cell["value"] for cell in row["replicates"]]) for row in alone]
    several = [cell["cell"] for row in alone if row["n"] > 1 for cell in row["replicates"]]
    assert len(alone) > 15

    def freedom(rows):
        shares = (
            (1 - 1 / row["n"]) / several.count(cell["cell"])
            for row in rows
            if row["n"] > 1
            for cell in row["replicates"]
        )
        return round(sum(shares), 6)

    for row, each in zip(alone, logs, strict=True):
        own = [other for other in alone if other["scenario"] == row["scenario"]]
        pool = own if freedom(own) >= 6 else alone
        among = [other for other, its in zip(logs, alone, strict=True) if its in pool]
        squares = sum(((other - other.mean()) ** 2).sum() for other in among)
        deviation = math.sqrt(squares / sum(len(other) - 1 for other in among))
        t = stats.t.ppf(0.975, freedom(pool))
        half = t * deviation * math.sqrt(1 + 1 / len(each))
        ends = np.exp(each.mean() - half), np.exp(each.mean() + half)
        assert (row["low"], row["high"]) == pytest.approx(ends, rel=1e-9), row["id"]


@pytest.mark.parametrize("method", ["naive", "mps"])
@pytest.mark.parametrize("scenario", SETS)
def test_a_sets_numbers_follow_from_its_raw_series(estimates, cells, scenario, method):
    place, mixed = f"{scenario}/paper_step/{method}", "+" in scenario
    plain = cells[cells["method"] == "naive"].itertuples()
    plain = {(cell.within, cell.scenario): cell for cell in plain}

    def alone(cell):
        files = scenario.partition("--")[1:]
        return [plain.get((cell.within, "".join((f"1x_{job}", *files)))) for job in cell.jobs]

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
        if held:
            check(estimates[f"stp:{place}@{host}"], list(map(stp, held)), RATE)
            check(estimates[f"s:{place}@{host}"], list(map(busy, held)), GRACT)
        pairs = [(cell, plain.get((cell.within, scenario))) for cell in found]
        over = stp if mixed else lambda cell: sum(cell.rates)
        beside = [over(cell) / over(other) for cell, other in pairs if other]
        if method != "naive" and beside:
            check(estimates[f"rate_over_naive:{place}@{host}"], beside, RATE)
        row, values = estimates[f"gract:{place}@{host}"], [c.gract for c in found]
        assert row["value"] == pytest.approx(np.mean(values), rel=GRACT)
        assert 0 <= (row["low"] or 0) <= row["value"] <= (row["high"] or 1) <= 1


@pytest.mark.parametrize("scenario", ALONE)
def test_so_do_those_of_a_job_alone(estimates, cells, scenario):
    for host, found in on_hosts(estimates, cells, scenario, "naive"):
        place = f"{scenario}/paper_step/naive@{host}"
        check(estimates[f"rate:{place}"], [c.rates[0] for c in found], RATE)
        read = np.mean([c.gract for c in found])
        assert estimates[f"gract:{place}"]["value"] == pytest.approx(read, rel=GRACT)
