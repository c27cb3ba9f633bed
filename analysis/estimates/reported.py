"""The paper's values (config/reported.csv) as estimates, and what follows from them.

Every row of the file was published, not measured here. A row is one printed number or one bar;
`kind` says how it was read. `member` names a bar (1, 2, …), the extremes of a group where its bars
are not known one by one (shortest, longest, lowest, highest), the bar that carries a printed
label (labelled), or the job of a mix; empty: the mean of the bars, or the whole set. `workload`
names the workloads of ours that a row may stand beside: several, separated by blanks, where the
batch size was not stated, joined by + in a mix.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.estimates.schema import Estimate, described
from workflow.collocation.spec.names import METHODS, PAPER_ARM, scenario_id

STAMP = "reported"
SOURCES = {
    "SUIT25": "a co-author's talk, September 2025",
    "LEC22": "a co-author's lecture, November 2022, with older software",
    "SLIDES": "the EuroMLSys'24 talk",
    "ABSE": "the abstract of the EuroMLSys'24 version",
    "ABS3": "the abstract of arXiv version 3",
    "ABS1": "the abstract of arXiv version 1",
    "V3Q": "a second-hand quotation of arXiv version 3",
}
_KINDS = ("label", "vector", "digitised", "derived", "text")
_STATUSES = ("completed", "out_of_memory", "not_shown")
_UNITS = {
    "epoch_time": {"s": 1.0, "min": 60.0, "h": 3600.0},
    "total_time": {"s": 1.0, "min": 60.0, "h": 3600.0},
    "memory": {"GB": 1.0},
    "memory_capacity": {"MiB": 2**20 / 1e9, "GB": 1.0},
    **dict.fromkeys(("gain", "gpu_util", "saving", "slowdown"), {"1": 1.0}),
    **dict.fromkeys(("gain_over_naive", "gain_over_mig"), {"1": 1.0}),
}
_COLUMNS = (
    *("stamp", "source", "place", "kind", "model", "dataset", "batch", "workload", "n", "method"),
    *("member", "metric", "value", "unit", "status", "note"),
)
_EXTREMES = ("shortest", "longest", "lowest", "highest")
# Metrics of the file → our quantities; gpu_util stands for GRACT in LEC22 only, where that is what
# it can be (MIG instances have one).
_QUANTITY = {"epoch_time": "epoch_time", "memory": "memory", "saving": "saving"}


class ReportedError(ValueError):
    """A mistake in the file of reported values: one line with file, line and what is allowed."""


def read(path: Path) -> list[dict]:
    """The rows of the file, values in s, GB or 1, None where there is none.

    Raises ReportedError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportedError(f"{path}: cannot be read: {error.strerror}") from None
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise ReportedError(f"{path}: line 1: the columns must be: {', '.join(_COLUMNS)}")
    return [_row(row, f"{path}: line {reader.line_num}") for row in reader]


def _row(row: dict, where: str) -> dict:
    """A row with its value in our units. Raises ReportedError."""
    if None in row or None in row.values():
        raise ReportedError(f"{where}: {len(_COLUMNS)} columns must stand there")

    def allow(column: str, allowed: Sequence[str]) -> None:
        if row[column] not in allowed:
            raise ReportedError(
                f"{where}: {column}: {row[column]!r} is not allowed; allowed: "
                f"{', '.join(entry or '(nothing)' for entry in allowed)}"
            )

    allow("stamp", [STAMP])
    allow("source", list(SOURCES))
    allow("kind", _KINDS)
    allow("method", [*METHODS, ""])
    allow("metric", list(_UNITS))
    allow("unit", list(_UNITS[row["metric"]]))
    allow("status", _STATUSES)
    if row["kind"] != "text" and not (row["workload"] and row["method"] and row["n"].isdigit()):
        raise ReportedError(f"{where}: workload, n and method must stand there unless kind is text")
    value = None
    if row["value"] or row["status"] == "completed":
        try:
            value = float(row["value"]) * _UNITS[row["metric"]][row["unit"]]
        except ValueError:
            value = -1.0
        if not (value > 0 and math.isfinite(value)):
            raise ReportedError(
                f"{where}: value: {row['value']!r} is not allowed; allowed: a number above 0"
            )
    return row | {"value": value}


class _Group:
    """What one source says of one set of jobs under one method."""

    def __init__(self, source: str, workload: str, n: int, method: str, rows: list[dict]):
        self.source, self.workload, self.n, self.method = source, workload, n, method
        self.rows = rows
        self.names = workload.split("+")
        self.models = rows[0]["model"].split("+")

    def first(self, metric: str, member: str = "", printed: bool = False) -> dict | None:
        """The row of a value that was read; with `printed` only of a printed label."""
        for row in self.rows:
            asked = (row["metric"], row["member"]) == (metric, member)
            if asked and row["value"] is not None and (not printed or row["kind"] == "label"):
                return row
        return None

    def value(self, metric: str, member: str = "") -> float | None:
        row = self.first(metric, member)
        return row["value"] if row else None

    def extremes(self, metric: str) -> tuple[float, float] | None:
        """Least and most of a group of bars, or None where it has not two."""
        bars = [
            row["value"]
            for row in self.rows
            if row["metric"] == metric
            and row["kind"] != "derived"
            and row["value"] is not None
            and (row["member"].isdigit() or row["member"] in _EXTREMES)
        ]
        return (min(bars), max(bars)) if len(bars) > 1 else None

    @property
    def scenario(self) -> str:
        return scenario_id({name: self.n // len(self.names) for name in self.names})


def _groups(rows: Sequence[Mapping]) -> list[_Group]:
    """One per source, workload of ours, count and method, in the file's order."""
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        if row["kind"] != "text":
            for workload in row["workload"].split():
                cells[row["source"], workload, int(row["n"]), row["method"]].append(dict(row))
    return [_Group(*key, found) for key, found in cells.items()]


def work(rows: Sequence[Mapping], source: str = "SLIDES") -> dict[str, dict[str, float]]:
    """Scenario of a mix → workload → what its job takes alone by the source, s."""
    groups = _groups(rows)
    alone = {
        (g.source, g.workload): g.value("epoch_time") or g.value("total_time")
        for g in groups
        if (g.n, g.method) == (1, "naive")
    }
    found = {}
    for group in groups:
        if group.source == source and len(group.names) > 1:
            jobs = {name: alone.get((source, name)) for name in group.names}
            if all(jobs.values()):
                found[group.scenario] = jobs
    return found


def estimates(rows: Sequence[Mapping]) -> list[Estimate]:
    """Each printed value as a number of its source, and what follows from the epoch times."""
    groups = {(g.source, g.workload, g.n, g.method): g for g in _groups(rows)}
    found: dict[str, Estimate] = {}
    for group in groups.values():
        if group.method == "serial":
            continue
        for estimate in (*_printed(group), *_derived(group, groups)):
            found.setdefault(estimate.id, estimate)
    for row in rows:
        if row["kind"] == "text" and row["metric"] == "gain" and row["value"]:
            note = f"{row['place']}: {row['note']}"
            e = Estimate("stp", method=row["method"], source=row["source"], name="text")
            found.setdefault(e.id, _filled(e, row["value"], note))
    return [described(estimate) for estimate in found.values()]


def _filled(estimate: Estimate, value: float, note: str, status: str = "completed") -> Estimate:
    return Estimate(**{**vars(estimate), "value": value, "note": note, "status": status, "n": 1})


def _printed(group: _Group) -> Iterator[Estimate]:
    place = {"scenario": group.scenario, "arm": PAPER_ARM, "method": group.method}
    place["source"] = group.source
    for metric, quantity in _QUANTITY.items():
        if row := group.first(metric):
            note = f"{row['place']}, {row['kind']}{', ' + row['note'] if row['note'] else ''}"
            yield _filled(Estimate(quantity, **place), row["value"], note)
    if row := group.first("gain", printed=True):
        yield _filled(Estimate("stp", **place), row["value"], f"{row['place']}, {row['note']}")
    for name, model in zip(group.names, group.models, strict=False):
        if len(group.names) > 1 and (row := group.first("slowdown", model)):
            e = Estimate("slowdown", **place, job=name)
            yield _filled(e, row["value"], f"{row['place']}, {row['kind']}")
    if group.source == "LEC22":
        extremes, row = group.extremes("gpu_util"), group.first("gpu_util")
        value = row["value"] if row else sum(extremes) / 2 if extremes else None
        if value is not None:
            yield _filled(Estimate("gract", **place), value, group.rows[0]["place"])
    if extremes := group.extremes("epoch_time"):
        note = f"{group.rows[0]['place']}, longest over shortest bar"
        yield _filled(Estimate("spread", **place), extremes[1] / extremes[0], note)
    if group.rows[0]["status"] == "out_of_memory":
        yield described(Estimate("outcome", **place, status="out_of_memory", value=0.0))


def _derived(group: _Group, groups: Mapping[tuple, _Group]) -> Iterator[Estimate]:
    """From epoch times: gain, slowdown, and one method over another."""
    place = {"scenario": group.scenario, "arm": PAPER_ARM, "method": group.method}
    place["source"] = group.source
    time = group.value("epoch_time")
    alone = groups.get((group.source, group.workload, 1, "naive"))
    base = alone.value("epoch_time") if alone else None
    if time is None or len(group.names) > 1:
        return
    if base:
        stp = math.fsum([1 / time / (1 / base)] * group.n)
        yield _filled(Estimate("stp", **place), stp, "from the mean of the bars")
        yield _filled(Estimate("antt", **place), time / base, "from the mean of the bars")
    for quantity, method in (("rate_over_naive", "naive"), ("rate_over_mig", "mig")):
        other = groups.get((group.source, group.workload, group.n, method))
        theirs = other.value("epoch_time") if other and other is not group else None
        if theirs:
            yield _filled(Estimate(quantity, **place), theirs / time, "from the mean of the bars")
    for fewer in (2, 3):
        other = groups.get((group.source, group.workload, fewer, group.method))
        theirs = other.value("epoch_time") if other and group.n > fewer else None
        if theirs:
            growth = group.n / time / (fewer / theirs)
            yield _filled(
                Estimate(f"stp_over_{fewer}", **place), growth, "from the mean of the bars"
            )
