"""Gains of jobs that wait for their host, read at the GRACT that the paper's job had alone.

How much sharing gains where a job leaves the GPU idle is a function of how idle: of GRACT alone,
which differs between hosts, and between the paper's machine and ours. So each number of a set that
the paper measured, too, is a line through our hosts, log(value) = a + b log(GRACT alone), and the
line is read at the paper's GRACT: quantity `<name>_at_gract`. A cell's gain and its GRACT alone err
together, for both are of the same window alone: a line through cells would find that error's slope,
-1. So a point is the mean over all cells of one implementation on one host.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.advice.predict import NO_GAPS_FROM
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE
from analysis.estimates.quantities import AT_GRACT
from analysis.estimates.table import INTERVAL, MEASURED
from workflow.collocation.study.names import IMPLEMENTATIONS, PAPER_IMPLEMENTATION, parse_scenario

READ = ("stp", "antt", "rate_over_naive", "stp_over_3", "gract_over_mps")
POINTS, SPREAD = 4, 1.3  # least for a line: points, and highest over lowest GRACT of them
# Implementations that launch the paper's kernels and wait for less: GRACT alone differs, not the
# work. In bf16 the kernels are others, and the job another one.
KERNELS = ("precision", "channels_last")


def line(x: pd.Series, y: pd.Series, at: float | np.ndarray) -> tuple | None:
    """(value, low, high) at `at` of the line through these points' logs, by least squares: with the
    interval of the line itself. None where points are too few, or too near to each other.
    """
    if len(x) < POINTS or x.max() < SPREAD * x.min():
        return None
    middle, mean, freedom = np.log(x).mean(), np.log(y).mean(), len(x) - 2
    off, away = np.log(x) - middle, np.log(at) - middle
    slope = (off * np.log(y)).sum() / (off**2).sum()
    left = ((np.log(y) - mean - slope * off) ** 2).sum() / freedom
    half = stdtrit(freedom, (1 + CONFIDENCE) / 2)
    half = half * np.sqrt(left * (1 / len(x) + away**2 / (off**2).sum()))
    there = mean + slope * away
    return np.exp(there), np.exp(there - half), np.exp(there + half)


def papers(frame: pd.DataFrame) -> dict[str, table.Row]:
    """Workload → GRACT of one such job alone, as the paper's authors reported it."""
    found = frame[(frame["source"] != MEASURED) & (frame["quantity"] == "gract")]
    found = found[(found["method"] == "naive") & (found["jobs"] == 1)]
    return {parse_scenario(e.scenario).family: e for e in found.itertuples(index=False)}


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each host and implementation of a set of copies that the paper measured, too, of a
    job that leaves the GPU idle alone: quantity, workload, scenario, method, jobs, host,
    implementation, and means over its cells on logs: value, gract (alone, in each one's replicate);
    and its replicates.
    """
    like = [IMPLEMENTATIONS[PAPER_IMPLEMENTATION].get(key) for key in KERNELS]
    alike = [n for n, of in IMPLEMENTATIONS.items() if [of.get(key) for key in KERNELS] == like]
    theirs = frame[(frame["source"] != MEASURED) & (frame["jobs"] > 1)]
    theirs = set(zip(theirs["scenario"], theirs["method"], strict=True))
    ours = frame[(frame["host"] != "") & (frame["window"] == "") & (frame["job"] == "")]
    ours = ours[ours["implementation"].isin(alike) & ours["quantity"].isin([*READ, "gract"])]
    busy, over, found = {}, {}, []
    for e in ours.itertuples(index=False):
        for r in e.replicates:
            place = e.scenario, e.implementation, e.method, r["cell"]
            if e.quantity == "gract" and e.jobs == 1 and e.method == "naive":
                busy[place] = r["value"]
            elif e.quantity == "stp":
                over[place] = r["over"]
    known = papers(frame)
    for e in ours[ours["quantity"] != "gract"].itertuples(index=False):
        job = parse_scenario(e.scenario).family
        if (e.scenario, e.method) not in theirs or job not in known:
            continue
        for r in e.replicates:
            alone = over.get((e.scenario, e.implementation, e.method, r["cell"]))
            gract = busy.get((f"1x_{job}", e.implementation, "naive", alone), 1.0)
            if gract < NO_GAPS_FROM:
                of = e.quantity, job, e.scenario, e.method, e.jobs, e.host, e.implementation
                found.append((*of, np.log(r["value"]), np.log(gract), r))
    point = ["quantity", "workload", "scenario", "method", "jobs", "host", "implementation"]
    cells = pd.DataFrame(found, columns=[*point, "value", "gract", "replicates"])
    means = {"value": "mean", "gract": "mean", "replicates": list}
    made = cells.groupby(point, sort=False, as_index=False).agg(means)
    return made.assign(value=np.exp(made["value"]), gract=np.exp(made["gract"]))


def read(frame: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: each line at the paper's GRACT, with the cells of its points.

    frame: a study's estimates and the paper's, as `read_estimates` gives them.
    """
    known = papers(frame)
    for (quantity, scenario, method), own in points(frame).groupby(
        ["quantity", "scenario", "method"], sort=False
    ):
        theirs = known[own["workload"].iloc[0]]
        if not (found := line(own["gract"], own["value"], theirs.value)):
            continue
        least, most = own["gract"].min(), own["gract"].max()
        cells = [cell for point in own["replicates"] for cell in point]
        note = f"a line through {len(own)} points, each the mean of one host's cells of one "
        note += f"implementation ({len(cells)} in all), GRACT alone {least:.2f} to {most:.2f}, "
        note += f"read at {theirs.value:.2f} ({theirs.source})"
        note += "" if least <= theirs.value <= most else ", which is extrapolated"
        yield {"quantity": quantity + AT_GRACT, "scenario": scenario, "method": method} | {
            "implementation": PAPER_IMPLEMENTATION,
            **dict(zip(("value", "low", "high"), found, strict=True)),
            "spread": INTERVAL,
            "n": len(cells),
            "hosts": own["host"].nunique(),
            "note": note,
            "replicates": [cell | {"batches": ()} for cell in cells],
        }
