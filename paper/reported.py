"""The paper's values (paper/reported.csv) as estimates, and what follows from them.

A row of the file is one printed number, or one bar of a chart. Its columns:

- `kind`: how it was read.
- `member`: a bar (1, 2, …), the bar with a printed label (labelled), an extreme of bars that are
  not known one by one (shortest, longest, lowest, highest), or the job of a mix; empty for the mean
  of the bars, or the whole set.
- `workload`: the workloads of ours beside which the row may stand; several, separated by blanks,
  where the batch size was not stated; joined by + in a mix.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from workflow.collocation.study.names import PAPER_IMPLEMENTATION, scenario_id
from workflow.collocation.study.regular_files import open_regular

REPORTED = Path(__file__).resolve().with_name("reported.csv")
SOURCES = {
    "SUIT25": "a co-author's talk, September 2025",
    "LEC22": "a co-author's lecture, November 2022, with older software",
    "SLIDES": "the EuroMLSys'24 talk",
    "ABSE": "the abstract of the EuroMLSys'24 version",
    "ABS3": "the abstract of arXiv version 3",
    "ABS1": "the abstract of arXiv version 1",
    "V3Q": "a second-hand quotation of arXiv version 3",
}
_TIMES, _MEMORY = {"s": 1.0, "min": 60.0, "h": 3600.0}, {"GB": 1.0, "MiB": 2**20 / 1e9}
_UNITS = {"epoch_time": _TIMES, "total_time": _TIMES, "memory": _MEMORY, "memory_capacity": _MEMORY}
_UNITS |= dict.fromkeys(("gain", "gpu_util", "saving", "slowdown"), {"1": 1.0})
_UNITS |= dict.fromkeys(("gain_over_naive", "gain_over_mig"), {"1": 1.0})
_EXTREMES = ("shortest", "longest", "lowest", "highest")


def read_reported(path: Path = REPORTED) -> pd.DataFrame:
    """The rows of the file, values in s, GB or 1, and NaN where there is none."""
    with open_regular(path) as file:
        rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    units = zip(rows["metric"], rows["unit"], strict=True)
    factors = [_UNITS[metric][unit] for metric, unit in units]
    return rows.assign(value=pd.to_numeric(rows["value"]) * factors)


def reported_estimates(rows: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: printed values, and what follows from epoch times.

    A number may come twice. The first one counts, which was printed.
    """
    sets = _by_set(rows)
    for (source, workload, count, method), of_set in sets.items():
        if method == "serial":
            continue
        names = workload.split("+")
        common = {
            "scenario": scenario_id({name: count // len(names) for name in names}),
            "implementation": PAPER_IMPLEMENTATION,
            "method": method,
            "source": source,
            "status": "completed",
            "n": 1,
        }
        for estimate in _printed(of_set, source, names):
            yield common | estimate
        if len(names) == 1:
            for estimate in _following(sets, source, workload, count, method):
                yield common | estimate
    in_words = (rows["kind"] == "text") & (rows["metric"] == "gain") & rows["value"].notna()
    for row in rows[in_words].itertuples():
        place = {"method": row.method, "source": row.source, "name": "text"}
        number = _estimate("stp", row.value, f"{row.place}: {row.note}")
        yield place | number | {"status": "completed", "n": 1}


def _estimate(quantity: str, value: float, note: str) -> dict:
    return {"quantity": quantity, "value": value, "note": note}


def _by_set(rows: pd.DataFrame) -> dict[tuple[str, str, int, str], list[tuple]]:
    """(source, workload of ours, number of jobs, method) → rows of the file."""
    sets = defaultdict(list)
    for row in rows[rows["kind"] != "text"].itertuples():
        for workload in row.workload.split():
            sets[row.source, workload, int(row.n), row.method].append(row)
    return dict(sets)


def _first(of_set: Sequence[tuple], metric: str, member: str = "", kind: str = "") -> tuple | None:
    """The first row with a value of this metric, member and kind (any by default)."""
    for row in of_set:
        wanted = (row.metric, row.member) == (metric, member) and kind in ("", row.kind)
        if wanted and not math.isnan(row.value):
            return row
    return None


def _extremes(of_set: Sequence[tuple], metric: str) -> tuple[float, float] | None:
    """The least and the highest of the bars of a set; None where it has not two."""
    bars = []
    for row in of_set:
        single = row.member.isdigit() or row.member in _EXTREMES
        if row.metric == metric and single and row.kind != "derived" and not math.isnan(row.value):
            bars.append(row.value)
    return (min(bars), max(bars)) if len(bars) > 1 else None


def _printed(of_set: Sequence[tuple], source: str, names: Sequence[str]) -> Iterator[dict]:
    """Numbers of a set that were printed or drawn. names: of its workloads."""
    head = of_set[0]
    for metric in ("epoch_time", "memory", "saving"):
        if row := _first(of_set, metric):
            remark = f", {row.note}" if row.note else ""
            yield _estimate(metric, row.value, f"{row.place}, {row.kind}{remark}")
    if row := _first(of_set, "gain", kind="label"):
        yield _estimate("stp", row.value, f"{row.place}, {row.note}")
    if len(names) > 1:
        for name, model in zip(names, head.model.split("+"), strict=False):
            if row := _first(of_set, "slowdown", model):
                number = _estimate("slowdown", row.value, f"{row.place}, {row.kind}")
                yield number | {"job": name}
    # Only in LEC22 gpu_util can be GRACT: MIG instances have one there.
    if source == "LEC22":
        bars = _extremes(of_set, "gpu_util")
        if row := _first(of_set, "gpu_util"):
            yield _estimate("gract", row.value, head.place)
        elif bars:
            yield _estimate("gract", sum(bars) / 2, head.place)
    if bars := _extremes(of_set, "epoch_time"):
        note = f"{head.place}, longest over shortest bar"
        yield _estimate("spread", bars[1] / bars[0], note)
    if head.status == "out_of_memory":
        yield _estimate("outcome", 0.0, "") | {"status": "out_of_memory", "n": 0}


def _following(sets: dict, source: str, workload: str, count: int, method: str) -> Iterator[dict]:
    """Gain, slowdown, and one method over another, from the epoch times of copies of a job."""

    def epoch_time(copies: int, by: str) -> float | None:
        row = _first(sets.get((source, workload, copies, by), []), "epoch_time")
        return row.value if row else None

    time, note = epoch_time(count, method), "from the mean of the bars"
    if time is None:
        return
    if alone := epoch_time(1, "naive"):
        yield _estimate("stp", count * alone / time, note)
        yield _estimate("antt", time / alone, note)
    for other in ("naive", "mig"):
        if other != method and (other_time := epoch_time(count, other)):
            yield _estimate(f"rate_over_{other}", other_time / time, note)
    if count > 3 and (time_of_three := epoch_time(3, method)):
        yield _estimate("stp_over_3", count / time / (3 / time_of_three), note)
