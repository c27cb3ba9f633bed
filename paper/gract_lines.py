"""Gains of sets of jobs alike, read at the GRACT that the paper's job had alone.

What sharing gains where a job leaves the GPU idle depends on how idle: on GRACT of the job alone,
which differs between hosts, and between the paper's machine and ours. So for each set that the
paper measured, too, a line is drawn through our hosts, log(value) = a + b log(GRACT alone), and
read at the paper's GRACT: quantity `<name>_at_gract`. Points count however busy the job alone: a
bound would drop them from one side of the paper's busiest job only.

A point of a line is the mean over all cells of one implementation on one host. A line through
single cells would find a slope of -1 that is none: gain and GRACT of a cell are relative to the
same window of the job alone, and err together.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE
from analysis.estimates.quantities import AT_GRACT
from analysis.estimates.table import INTERVAL, MEASURED
from workflow.collocation.study.names import IMPLEMENTATIONS, PAPER_IMPLEMENTATION, parse_scenario

QUANTITIES_ON_LINES = ("stp", "antt", "rate_over_naive", "stp_over_3", "gract_over_mps")
LEAST_POINTS = 4  # of a line
LEAST_SPREAD = 1.3  # the highest GRACT of its points over the lowest
# Implementations that are alike in these launch the paper's kernels, and wait for less: GRACT alone
# differs, not the work. In bf16 the kernels are others.
KERNEL_SETTINGS = ("precision", "channels_last")
_POINT = ["quantity", "workload", "scenario", "method", "jobs", "host", "implementation"]


def fit_line(x: pd.Series, y: pd.Series, at: float | np.ndarray) -> tuple | None:
    """(value, low, high) at `at` of the least-squares line through the logs of points.

    low and high are the interval of the line itself, of level CONFIDENCE. None where points are
    too few, or too near to each other.
    """
    if len(x) < LEAST_POINTS or x.max() < LEAST_SPREAD * x.min():
        return None
    log_x, log_y, freedom = np.log(x), np.log(y), len(x) - 2
    offsets = log_x - log_x.mean()
    squares = (offsets**2).sum()
    slope = (offsets * log_y).sum() / squares
    variance = ((log_y - log_y.mean() - slope * offsets) ** 2).sum() / freedom
    distance = np.log(at) - log_x.mean()
    middle = log_y.mean() + slope * distance
    error = np.sqrt(variance * (1 / len(x) + distance**2 / squares))
    half = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    return np.exp(middle), np.exp(middle - half), np.exp(middle + half)


def reported_gract(estimates: pd.DataFrame) -> dict[str, table.Row]:
    """Workload → GRACT of one such job alone, as the paper's authors reported it."""
    reported = (estimates["source"] != MEASURED) & (estimates["quantity"] == "gract")
    alone = (estimates["method"] == "naive") & (estimates["jobs"] == 1)
    numbers = estimates[reported & alone].itertuples(index=False)
    return {parse_scenario(number.scenario).family: number for number in numbers}


def host_points(estimates: pd.DataFrame) -> pd.DataFrame:
    """The points of all lines: a row for each quantity, set, host and implementation.

    Columns: quantity, workload, scenario, method, jobs, host, implementation; value and gract (of
    the job alone), means on logs over the cells; replicates, the cells. Only sets of copies of jobs
    that the paper measured, too, and only cells with a reading of the job alone.
    """
    reported = estimates[(estimates["source"] != MEASURED) & (estimates["jobs"] > 1)]
    reported_sets = set(zip(reported["scenario"], reported["method"], strict=True))
    gract_of_workloads = reported_gract(estimates)
    ours = _numbers_of_hosts(estimates)
    gract_alone, alone_of = _cells_alone(ours)
    cells = []
    for number in ours[ours["quantity"] != "gract"].itertuples(index=False):
        workload = parse_scenario(number.scenario).family
        in_paper = (number.scenario, number.method) in reported_sets
        if not in_paper or workload not in gract_of_workloads:
            continue
        implementation = number.implementation
        point = (number.quantity, workload, number.scenario, number.method, number.jobs)
        for cell in number.replicates:
            place = (number.scenario, implementation, number.method, cell["cell"])
            cell_alone = alone_of.get(place)
            gract = gract_alone.get((f"1x_{workload}", implementation, cell_alone))
            if gract:
                logs = np.log(cell["value"]), np.log(gract)
                cells.append((*point, number.host, implementation, *logs, cell))
    cells = pd.DataFrame(cells, columns=[*_POINT, "value", "gract", "replicates"])
    means = {"value": "mean", "gract": "mean", "replicates": list}
    points = cells.groupby(_POINT, sort=False, as_index=False).agg(means)
    return points.assign(value=np.exp(points["value"]), gract=np.exp(points["gract"]))


def _numbers_of_hosts(estimates: pd.DataFrame) -> pd.DataFrame:
    """Numbers of single hosts, of implementations that launch the paper's kernels."""
    settings = {
        name: [options.get(key) for key in KERNEL_SETTINGS]
        for name, options in IMPLEMENTATIONS.items()
    }
    alike = [name for name in settings if settings[name] == settings[PAPER_IMPLEMENTATION]]
    whole = (estimates["window"] == "") & (estimates["job"] == "")
    ours = estimates[(estimates["host"] != "") & whole]
    wanted = ours["quantity"].isin([*QUANTITIES_ON_LINES, "gract"])
    return ours[wanted & ours["implementation"].isin(alike)]


def _cells_alone(ours: pd.DataFrame) -> tuple[dict, dict]:
    """GRACT of each cell of a job alone, and of each cell of a set the cell alone it is over."""
    gract_alone, alone_of = {}, {}
    for number in ours.itertuples(index=False):
        alone = number.jobs == 1 and number.method == "naive"
        for cell in number.replicates:
            if number.quantity == "gract" and alone:
                gract_alone[number.scenario, number.implementation, cell["cell"]] = cell["value"]
            elif number.quantity == "stp":
                place = (number.scenario, number.implementation, number.method, cell["cell"])
                alone_of[place] = cell["over"]
    return gract_alone, alone_of


def line_estimates(estimates: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: each line read at the paper's GRACT, with its points' cells.

    estimates: a study's and the paper's, as `table.read_estimates` gives them.
    """
    reported = reported_gract(estimates)
    lines = host_points(estimates).groupby(["quantity", "scenario", "method"], sort=False)
    for (quantity, scenario, method), points in lines:
        paper = reported[points["workload"].iloc[0]]
        reading = fit_line(points["gract"], points["value"], paper.value)
        if reading is None:
            continue
        lowest, highest = points["gract"].min(), points["gract"].max()
        cells = [cell for of_point in points["replicates"] for cell in of_point]
        note = (
            f"a line through {len(points)} points, each the mean of one host's cells of one "
            f"implementation ({len(cells)} in all), GRACT alone {lowest:.2f} to {highest:.2f}, "
            f"read at {paper.value:.2f} ({paper.source})"
        )
        if not lowest <= paper.value <= highest:
            note += ", which is extrapolated"
        value, low, high = reading
        yield {
            "quantity": quantity + AT_GRACT,
            "scenario": scenario,
            "method": method,
            "implementation": PAPER_IMPLEMENTATION,
            "value": value,
            "low": low,
            "high": high,
            "spread": INTERVAL,
            "n": len(cells),
            "hosts": points["host"].nunique(),
            "note": note,
            "replicates": [cell | {"batches": ()} for cell in cells],
        }
