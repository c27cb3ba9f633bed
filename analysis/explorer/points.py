"""What the explorer draws: cells with their values, estimates over replicates, reported values.

Plain dicts and lists for JSON; a missing value is null, never 0. Numbers keep six digits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import geometric_mean, median

import pandas as pd

from analysis import flags, reported
from analysis.cells import Study, is_baseline
from analysis.looks import STATUS
from analysis.names import AFTER, BEFORE, Scenario, method_order, parse_scenario, told_window
from analysis.statistics import pooled_estimates


@dataclass(frozen=True)
class Metric:
    """Something to choose: a column of runs.parquet (or of cells), its unit and what it means.

    member: one value per member, else one per cell. ratio: intervals are made of its logs.
    scale: what a value is multiplied by, for the unit shown. reference: where a line is drawn.
    """

    key: str
    label: str
    unit: str
    says: str
    member: bool = False
    ratio: bool = False
    scale: float = 1.0
    reference: float | None = None


_WINDOW = "in the window that was measured"
METRICS = (
    Metric(
        "stp",
        "Throughput gain (STP)",
        "× one job alone",
        "Sum over members of their rate together over their rate alone. 1 is what jobs one after "
        "the other would do; N, the number of members, is the most that sharing can give.",
        ratio=True,
        reference=1.0,
    ),
    Metric(
        "antt",
        "Mean slowdown (ANTT)",
        "× as long as alone",
        "How much longer a member takes than alone, mean over members. 1: nobody disturbs anybody.",
        ratio=True,
        reference=1.0,
    ),
    Metric(
        "progress",
        "Progress of each member",
        "rate ÷ rate alone",
        "A member's rate together over its rate alone, from the same replicate and device.",
        member=True,
        ratio=True,
        reference=1.0,
    ),
    Metric(
        "epoch_time_s",
        "Epoch time of each member",
        "s",
        "Time for one pass over the nominal training set at the rate that was measured.",
        member=True,
    ),
    Metric("samples_per_s", "Throughput of all members", "samples/s", "Sum over members."),
    Metric(
        "gract",
        "GRACT",
        "% of the window",
        "Share of the time in which a graphics or compute engine was active.",
        scale=100,
    ),
    Metric(
        "smact",
        "SMACT",
        "% of the window",
        "Share of the time in which an SM had a warp, mean over SMs.",
        scale=100,
    ),
    Metric(
        "smocc",
        "SMOCC",
        "% of the most that fit",
        "Resident warps over the most that fit, mean over SMs.",
        scale=100,
    ),
    Metric(
        "drama",
        "DRAMA",
        "% of the window",
        "Share of the time in which device memory moved data.",
        scale=100,
    ),
    Metric("power", "Power of the GPU", "W", f"Mean {_WINDOW}, of the whole board."),
    Metric(
        "energy_per_sample",
        "Energy per sample",
        "mJ",
        "The GPU's energy over the samples of all members; no counter splits it among them.",
        scale=1000,
    ),
    Metric(
        "energy_saving",
        "Energy saved against serial",
        "%",
        "Against the same samples trained one job after the other, by the replicate's alone runs.",
        scale=100,
        reference=0.0,
    ),
    Metric(
        "gpu_memory_used",
        "GPU memory in use",
        "GB",
        "Device memory in use, by whomever; resident input is part of it. 1 GB is 10⁹ bytes.",
        scale=1e-9,
    ),
    Metric(
        "memory_peak_reserved",
        "Peak memory of each member",
        "GB",
        "The most that a member's allocator held. 1 GB is 10⁹ bytes.",
        member=True,
        scale=1e-9,
    ),
    *(
        Metric(
            f"step_ms_p{percentile}",
            f"Step latency, {words}",
            "ms",
            f"{words.capitalize()} of a member's step times {_WINDOW}.",
            member=True,
        )
        for percentile, words in ((50, "median"), (95, "95th percentile"), (99, "99th percentile"))
    ),
)
# Of the cell table; all others are columns of the member rows.
_OF_CELLS = ("stp", "antt", "samples_per_s")
# Of the member rows, what is read here.
_USED = [*("arm", "scenario", "method", "block", "window", "workload", "dataset", "source")]
_USED += ["hardware", "gpu_uuid", "gpu_name", "driver", "telemetry_source", "torch", "started_at"]
_USED += ["sitting", *(metric.key for metric in METRICS)]
# Ours → the column of analysis.reported.conclusions, and what that is multiplied by.
_REPORTED = {"epoch_time_s": ("epoch_time_s", 1.0), "stp": ("gain", 1.0)}
_REPORTED |= {"gpu_memory_used": ("memory_gb", 1.0)}


def place_label(scenario: Scenario, window: str | None) -> str:
    """Where on the axis of counts: `2×`; of a mix `1 + 2`, in the order of the workload's name."""
    counts = [count for _, count in sorted(scenario.parts)]
    label = f"{counts[0]}×" if len(counts) == 1 else " + ".join(map(str, counts))
    return f"{label} {told_window(window)}".rstrip()


def cell_rows(study: Study) -> list[dict]:
    """One row per cell and window: who, where, how it ended, values, hover.

    `values`: metric → a number or null, or for a metric of members a list of them, in the order of
    `members` (their workloads).
    """
    members = _by_window(study.runs)
    cells = study.cells.assign(baseline=is_baseline(study.cells))
    rows = [
        _cell_row(cell, members.get(_identity(cell), []), study.hardware)
        for cell in cells.astype(object).where(cells.notna(), None).to_dict("records")
    ]
    rows.sort(key=lambda row: (row["workload"], row.pop("order")))
    return rows


def _by_window(runs: pd.DataFrame) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = defaultdict(list)
    runs = runs[[name for name in _USED if name in runs]]
    for row in runs.astype(object).where(runs.notna(), None).to_dict("records"):
        found[_identity(row)].append(row)
    return found


def _identity(row: dict) -> tuple:
    return (*(row[key] for key in ("arm", "scenario", "method", "block")), row["window"])


def _cell_row(cell: dict, members: list[dict], hardware: str) -> dict:
    scenario = parse_scenario(cell["scenario"])
    window = cell["window"]
    # Only a completed cell's rates count; its survivors' are kept in runs.parquet alone.
    measured = members if cell["status"] == "completed" else []
    return {
        "id": f"{cell['scenario']}/{cell['arm']}/{cell['method']}/r{cell['block']}",
        "hardware": hardware,
        "arm": cell["arm"],
        "workload": scenario.title,
        "family": scenario.family,
        "place": place_label(scenario, window),
        "method": cell["method"],
        "n": int(cell["n"]),
        "replicate": int(cell["block"]),
        "baseline": bool(cell["baseline"]),
        "window": window,
        "status": STATUS.get(cell["status"], cell["status"]),
        "why": cell["reason"] or cell["note"] or "",
        "marks": flags.marks(cell["flags"]),
        "flags": [flag.replace("_", " ") for flag in flags.split(cell["flags"])],
        "members": [row["workload"] for row in measured],
        "values": {metric.key: _value(metric, cell, measured) for metric in METRICS},
        "about": _about(members),
        "order": _order(scenario, cell),
    }


def _order(scenario: Scenario, cell: dict) -> tuple:
    place = (scenario.n, sorted(scenario.parts), cell["window"] != BEFORE)
    return *place, method_order(cell["method"]), cell["block"]


def _value(metric: Metric, cell: dict, members: list[dict]) -> float | None | list:
    if metric.member:
        return [_number(row[metric.key], metric.scale) for row in members]
    if metric.key in _OF_CELLS:
        return _number(cell[metric.key], metric.scale)
    return _number(members[0][metric.key], metric.scale) if members else None


def _number(value: float | None, scale: float = 1.0) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value * scale:.6g}")


def _about(members: list[dict]) -> dict[str, str]:
    """Where a cell's numbers come from, for its hover; what is not known is left out."""

    def told(*columns: str) -> str:
        found = {" ".join(str(row[c]) for c in columns if row[c] is not None) for row in members}
        return ", ".join(sorted(found - {""}))

    data = {f"{row['dataset']}: {_SOURCES.get(row['source'], row['source'])}" for row in members}
    gpu = f"{told('gpu_name')}, {_short(told)}" if told("gpu_uuid") else ""
    about = {
        "GPU": gpu,
        "CPU": told("hardware") if not gpu else "",
        "driver": told("driver"),
        "data": ", ".join(sorted(data)) if told("source") else "",
        "telemetry": told("telemetry_source"),
        "torch": told("torch"),
        "started": told("started_at"),
        "sitting": told("sitting"),
    }
    return {key: text for key, text in about.items() if text}


_SOURCES = {"synthetic": "generated (synthetic)"}


def _short(told) -> str:
    """The start of a UUID is enough to tell two GPUs apart."""
    return told("gpu_uuid")[:12]


def estimates(rows: list[dict]) -> list[dict]:
    """Of `cell_rows`, per metric, place and method: what its replicates come to.

    Of ratios the geometric mean and its 95 % interval by analysis.statistics: on logs, the variance
    pooled over the cells of one arm and family (of what is left after a departure by itself), none
    for one replicate; of members' ratios a replicate's geometric mean counts. Of all others the
    median.
    """
    found = []
    for metric in METRICS:
        families: dict[tuple, dict[tuple, list[tuple]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            left = row["window"] == AFTER
            family = families[row["hardware"], row["arm"], row["family"], left]
            block = row["replicate"], row["about"].get("GPU", row["about"].get("CPU"))
            for workload, values in _by_workload(metric, row):
                key = tuple(row[k] for k in _PLACE)
                family[(*key, workload)].append((block, values, row["baseline"]))
        for family in families.values():
            for key, summary in (_ratios if metric.ratio else _medians)(family):
                place = dict(zip((*_PLACE, "member"), key, strict=True))
                found.append({"metric": metric.key} | place | summary)
    return found


_PLACE = ("hardware", "arm", "workload", "place", "method")


def _by_workload(metric: Metric, row: dict) -> Iterator[tuple[str | None, list[float]]]:
    """Values of a row, by the workload of the members where there is one per member."""
    value = row["values"][metric.key]
    if not metric.member:
        if value is not None:
            yield None, [value]
        return
    by: dict[str, list[float]] = defaultdict(list)
    for workload, number in zip(row["members"], value, strict=True):
        if number is not None:
            by[workload].append(number)
    yield from by.items()


def _ratios(family: dict[tuple, list[tuple]]) -> Iterator[tuple[tuple, dict]]:
    positive = {
        key: {block: geometric_mean(own) for block, own, _ in replicates if min(own) > 0}
        for key, replicates in family.items()
    }
    fixed = {key for key, replicates in family.items() if all(itself for *_, itself in replicates)}
    for key, estimate in pooled_estimates(positive, fixed).items():
        yield (
            key,
            {
                "mean": _number(estimate.mean),
                "low": _number(estimate.low),
                "high": _number(estimate.high),
                "replicates": estimate.replicates,
            },
        )


def _medians(family: dict[tuple, list[tuple]]) -> Iterator[tuple[tuple, dict]]:
    for key, replicates in family.items():
        middle = median(value for _, values, _ in replicates for value in values)
        summary = {"mean": _number(middle), "low": None, "high": None}
        yield key, summary | {"replicates": len(replicates)}


def reported_rows(table: pd.DataFrame | None, families: Iterable[str]) -> list[dict]:
    """The paper's values (analysis.reported.read) for these workloads, each stamped 'reported'.

    Not for mixes, of which the paper prints times of jobs that run alone for a part.
    """
    if table is None:
        return []
    conclusions = reported.conclusions(table)
    conclusions = conclusions[conclusions["method"] != "serial"]
    return [
        {
            "stamp": reported.STAMP,
            "metric": metric,
            "workload": family,
            "place": f"{row['n']}×",
            "method": row["method"],
            "value": value,
            "source": f"{row['source']}, {reported.SOURCES[row['source']]}",
        }
        for family in families
        if "+" not in family
        for row in reported.beside(conclusions, family).to_dict("records")
        for metric, (column, scale) in _REPORTED.items()
        if (value := _number(row[column], scale)) is not None
    ]
