"""The paper's values (paper/reported.csv) as estimates, and what follows from them.

Every row of the file was published, not measured here. A row is one printed number or one bar;
`kind` says how it was read. `member` names a bar (1, 2, …), the extremes of a group where its bars
are not known one by one (shortest, longest, lowest, highest), the bar that carries a printed
label (labelled), or the job of a mix; empty: the mean of the bars, or the whole set. `workload`
names the workloads of ours that a row may stand beside: several, separated by blanks, where the
batch size was not stated, joined by + in a mix.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
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


def read(path: Path) -> pd.DataFrame:
    """The rows of the file, values in s, GB or 1, NaN where there is none."""
    with open_regular(path) as file:
        rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    units = zip(rows["metric"], rows["unit"], strict=True)
    return rows.assign(value=pd.to_numeric(rows["value"]) * [_UNITS[m][unit] for m, unit in units])


def _groups(rows: pd.DataFrame) -> dict[tuple[str, str, int, str], list[tuple]]:
    """What each source says of a set: (source, workload of ours, count, method) → its rows."""
    found: dict[tuple, list[tuple]] = defaultdict(list)
    for row in rows[rows["kind"] != "text"].itertuples():
        for workload in row.workload.split():
            found[row.source, workload, int(row.n), row.method].append(row)
    return dict(found)


def _first(group: list[tuple], metric: str, member: str = "", kind: str = "") -> tuple:
    """(value, row) of the first value that was read; (None, None) where there is none."""
    for row in group:
        asked = (row.metric, row.member) == (metric, member) and kind in ("", row.kind)
        if asked and not math.isnan(row.value):
            return row.value, row
    return None, None


def _extremes(group: list[tuple], metric: str) -> tuple[float, float] | None:
    """Least and most of a group of bars, or None where it has not two."""
    single = (r for r in group if r.member.isdigit() or r.member in _EXTREMES)
    bars = [r.value for r in single if r.metric == metric and r.kind != "derived"]
    bars = [value for value in bars if not math.isnan(value)]
    return (min(bars), max(bars)) if len(bars) > 1 else None


def _scenario(workload: str, n: int) -> str:
    names = workload.split("+")
    return scenario_id({name: n // len(names) for name in names})


def estimates(rows: pd.DataFrame) -> Iterator[dict]:
    """Each printed value as a number of its source, and what follows from the epoch times; what was
    printed stands before what follows. A number may come twice: the first counts.
    """
    groups = _groups(rows)
    for (source, workload, n, method), group in groups.items():
        if method != "serial":
            about = {"scenario": _scenario(workload, n), "implementation": PAPER_IMPLEMENTATION}
            about |= {"method": method, "source": source, "status": "completed", "n": 1}
            for quantity, value, note, *more in (
                *_printed(group, source, workload.split("+")),
                *_following(groups, source, workload, n, method),
            ):
                yield about | {"quantity": quantity, "value": value, "note": note} | dict(*more)
    said = (rows["kind"] == "text") & (rows["metric"] == "gain") & rows["value"].notna()
    for row in rows[said].itertuples():
        about = {"quantity": "stp", "method": row.method, "source": row.source, "name": "text"}
        note = f"{row.place}: {row.note}"
        yield about | {"value": row.value, "note": note, "status": "completed", "n": 1}


def _printed(group: list[tuple], source: str, names: list[str]) -> Iterator[tuple]:
    """(quantity, value, note) of what was printed or drawn."""
    head = group[0]
    for metric in ("epoch_time", "memory", "saving"):
        value, row = _first(group, metric)
        if row:
            more = f", {row.note}" if row.note else ""
            yield metric, value, f"{row.place}, {row.kind}{more}"
    value, row = _first(group, "gain", kind="label")
    if row:
        yield "stp", value, f"{row.place}, {row.note}"
    for name, model in zip(names, head.model.split("+"), strict=False):
        value, row = _first(group, "slowdown", model)
        if row and len(names) > 1:
            yield "slowdown", value, f"{row.place}, {row.kind}", {"job": name}
    # GRACT is what gpu_util can be in LEC22 only: MIG instances have one.
    bars, (value, _) = _extremes(group, "gpu_util"), _first(group, "gpu_util")
    value = value or (sum(bars) / 2 if bars else None)
    if value and source == "LEC22":
        yield "gract", value, head.place
    if bars := _extremes(group, "epoch_time"):
        yield "spread", bars[1] / bars[0], f"{head.place}, longest over shortest bar"
    if head.status == "out_of_memory":
        yield "outcome", 0.0, "", {"status": "out_of_memory", "n": 0}


def _following(groups: dict, source: str, workload: str, n: int, method: str) -> Iterator[tuple]:
    """(quantity, value, note) from epoch times: gain, slowdown, and one method over another."""

    def time(count: int, by: str) -> float | None:
        return _first(groups.get((source, workload, count, by), []), "epoch_time")[0]

    own, note = time(n, method), "from the mean of the bars"
    if own is None or "+" in workload:
        return
    if base := time(1, "naive"):
        yield "stp", n * base / own, note
        yield "antt", own / base, note
    for other in ("naive", "mig"):
        if other != method and (theirs := time(n, other)):
            yield f"rate_over_{other}", theirs / own, note
    if n > 3 and (theirs := time(3, method)):
        yield "stp_over_3", n / own / (3 / theirs), note
