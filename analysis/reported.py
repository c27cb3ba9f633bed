"""The paper's values (config/reported.csv), and what follows from them by our own metrics.

python -m analysis.reported --reported config/reported.csv --print
python -m analysis.reported --reported config/reported.csv --output reported_conclusions.csv

Every row is stamped 'reported': it was published, not measured here. A row is one printed number
or one bar; `kind` says how it was read. `member` names a bar (1, 2, …), the extremes of a group
where its bars are not known one by one (shortest, longest, lowest, highest), the bar that carries
a printed label (labelled), or the job of a mix; empty: the mean of the bars, or the whole set.
`workload` names the workloads of ours that a row may stand beside: several where the batch size
was not stated, joined by + in a mix.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis import metrics
from analysis.names import METHODS
from analysis.views import GB, Key, Member, View

STAMP = "reported"
# What each source is, as ../shared/paper.md calls it.
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
    "memory_capacity": {"MiB": 2**20 / GB, "GB": 1.0},
    **dict.fromkeys(("gain", "gpu_util", "saving", "slowdown"), {"1": 1.0}),
    **dict.fromkeys(("gain_over_naive", "gain_over_mig"), {"1": 1.0}),
}
_COLUMNS = (
    *("stamp", "source", "place", "kind", "model", "dataset", "batch", "workload", "n", "method"),
    *("member", "metric", "value", "unit", "status", "note"),
)
_EXTREMES = ("shortest", "longest", "lowest", "highest")


class ReportedError(Exception):
    """A mistake in the file of reported values: one line with file, line and what is allowed."""


def read(path: Path) -> pd.DataFrame:
    """The rows of the file: text columns as they stand there (empty where nothing does), `n` as
    text too, and `value` as a number (NaN where there is none) in seconds for times, GB (1e9 B) for
    memory, else 1. Raises ReportedError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportedError(f"{path}: cannot be read: {error.strerror}") from None
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise ReportedError(f"{path}: line 1: the columns must be: {', '.join(_COLUMNS)}")
    rows = [_row(row, f"{path}: line {reader.line_num}") for row in reader]
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"value": float})


def _row(row: dict, where: str) -> dict:
    """A row with its value in our units. Raises ReportedError."""

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
    value = math.nan
    if row["value"] or row["status"] == "completed":
        try:
            value = float(row["value"])
        except ValueError:
            value = math.nan
        if not value > 0:
            raise ReportedError(
                f"{where}: value: {row['value']!r} is not allowed; allowed: a number above 0"
            )
    return row | {"value": value * _UNITS[row["metric"]][row["unit"]]}


@dataclass(frozen=True)
class _Group:
    """What one source says of one set of jobs under one method; times in s, memory in GB."""

    source: str
    workload: str  # one of ours, or several joined by +
    models: tuple[str, ...]  # in the order of those
    n: int
    method: str
    rows: tuple[dict, ...]

    def value(self, metric: str, member: str = "", kinds: Sequence[str] = _KINDS) -> float | None:
        """The value that was read; None where there is none."""
        found = (
            row["value"]
            for row in self.rows
            if (row["metric"], row["member"]) == (metric, member) and row["kind"] in kinds
        )
        return next((value for value in found if not math.isnan(value)), None)

    def extremes(self, metric: str) -> tuple[float, float] | None:
        """Least and most of a group of bars, or None where it has not two."""
        bars = [
            row["value"]
            for row in self.rows
            if row["metric"] == metric
            and row["kind"] != "derived"
            and (row["member"].isdigit() or row["member"] in _EXTREMES)
        ]
        return (min(bars), max(bars)) if len(bars) > 1 else None

    def labelled(self) -> float | None:
        """The bar of a group that carries a printed label, s."""
        found = (
            row["value"]
            for row in self.rows
            if (row["metric"], row["kind"]) == ("epoch_time", "label") and row["member"]
        )
        return next(found, None)

    def bars(self) -> list[float]:
        """Epoch time of each member, s: its bar, or where not all are known the mean for each."""
        found = [self.value("epoch_time", str(i + 1)) for i in range(self.n)]
        if None in found:
            found = [self.value("epoch_time")] * self.n
        return [time for time in found if time is not None]

    def job_time(self, model: str = "") -> float | None:
        """Time of one job, s: an epoch or, where its work is not in epochs, the whole of it."""
        return self.value("epoch_time", model) or self.value("total_time", model)

    @property
    def status(self) -> str:
        return self.rows[0]["status"]

    @property
    def key(self) -> Key:
        names = self.workload.split("+")
        return Key.of([(name, self.n // len(names)) for name in names], self.method)


def _groups(rows: pd.DataFrame) -> dict[tuple, _Group]:
    """(source, workload, n, method) → its rows, in the file's order, once per workload of ours."""
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows[rows["kind"] != "text"].to_dict("records"):
        for workload in row["workload"].split():
            cells[row["source"], workload, int(row["n"]), row["method"]].append(row)
    return {
        key: _Group(*key[:2], tuple(group[0]["model"].split("+")), *key[2:], tuple(group))
        for key, group in cells.items()
    }


def _alone(groups: dict[tuple, _Group], source: str, workload: str) -> float | None:
    """Time of the job alone, s."""
    group = groups.get((source, workload, 1, "naive"))
    return group.job_time() if group else None


def work(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By source: what each workload's job takes alone, s. It is the job's fixed work."""
    groups = _groups(rows)
    found: dict[str, dict[str, float]] = {source: {} for source in SOURCES}
    for source, workload, n, method in groups:
        time = _alone(groups, source, workload)
        if (n, method) == (1, "naive") and time is not None:
            found[source][workload] = time
    return found


def views(rows: pd.DataFrame) -> dict[str, list[View]]:
    """By source: what it reports, as cells that claims can be decided by; block 0, no device.

    Rates are in epochs/s. The rate of a job of a mix whose time holds a part in which it ran alone
    is not known, and so is that mix's gain. GPU utilisation stands for GRACT in LEC22 only, where
    that is what it can be (MIG instances have one).
    """
    groups = _groups(rows)
    sizes = rows[rows["metric"] == "memory_capacity"].groupby("source")["value"].max()
    found: dict[str, list[View]] = {source: [] for source in SOURCES}
    for (source, workload, n, method), group in groups.items():
        if method == "serial":
            continue
        readings = {"memory": group.value("memory"), "capacity": sizes.get(source)}
        if source == "LEC22":
            readings["gract"] = group.value("gpu_util") or _middle(group.extremes("gpu_util"))
        if extremes := group.extremes("epoch_time"):
            readings["spread"] = extremes[1] / extremes[0]
        found[source].append(
            View(
                key=group.key,
                block=0,
                device="",
                status=group.status,
                window="window",
                members=_members(group, groups),
                averaged=len(set(group.bars())) == 1,
                readings={name: value for name, value in readings.items() if value is not None},
                total=group.value("total_time") if "+" in workload else None,
                cell=f"{source}: {n}x {workload}, {method}",
            )
        )
    return found


def _members(group: _Group, groups: dict[tuple, _Group]) -> tuple[Member, ...]:
    names = group.workload.split("+")
    if len(names) == 1:
        alone, times = _alone(groups, group.source, names[0]), group.bars()
        if not times and group.n == 1:
            times = [group.job_time()]
        return tuple(Member(names[0], 1 / t, 1 / alone if alone else None) for t in times if t)
    members = []
    for name, model in zip(names, group.models, strict=True):
        time, alone = group.value("epoch_time", model), _alone(groups, group.source, name)
        members.append(Member(name, 1 / time if time else None, 1 / alone if alone else None))
    return tuple(members)


def _middle(extremes: tuple[float, float] | None) -> float | None:
    return sum(extremes) / 2 if extremes else None


def conclusions(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per source, workload of ours, count and method: what was read, and what follows.

    Columns: stamp, source, workload, n, method, status, epoch_time_s (mean of the bars),
    shortest_s, longest_s, gain (STP of the mean), gain_of_label (of the bar with a printed label
    against the printed serial time), gain_printed, total_s, saving (of the total against the jobs
    one after the other), saving_printed, memory_gb, gpu_util. What is not known is NaN.
    """
    groups, found = _groups(rows), []
    for (source, workload, n, method), group in groups.items():
        time, alone = group.value("epoch_time"), _alone(groups, source, workload)
        serial = groups.get((source, workload, n, "serial"))
        label = group.labelled()
        total = group.value("total_time")
        jobs = [_alone(groups, source, name) for name in workload.split("+")]
        least, most = group.extremes("epoch_time") or (None, None)
        row = {"stamp": STAMP, "source": source, "workload": workload, "n": n, "method": method}
        row |= {"status": group.status, "epoch_time_s": time}
        row |= {"shortest_s": least, "longest_s": most}
        if method != "serial" and time and alone:
            row["gain"] = metrics.stp([metrics.progress(1 / time, 1 / alone)] * n)
        if label and serial and serial.value("epoch_time", kinds=["label"]):
            share = n / serial.value("epoch_time")  # rate of one job of the printed serial time
            row["gain_of_label"] = metrics.stp([metrics.progress(1 / label, share)] * n)
        row["gain_printed"] = group.value("gain", kinds=["label"])
        row["total_s"] = total
        if total and len(jobs) > 1 and all(jobs) and method != "serial":
            row["saving"] = metrics.saving(
                total, metrics.serial_time([1.0] * len(jobs), [1 / j for j in jobs])
            )
        row["saving_printed"] = group.value("saving", kinds=["label"])
        row["memory_gb"] = group.value("memory")
        row["gpu_util"] = group.value("gpu_util") or _middle(group.extremes("gpu_util"))
        found.append(row)
    text = ["stamp", "source", "workload", "n", "method", "status"]
    numbers = ["epoch_time_s", "shortest_s", "longest_s", "gain", "gain_of_label", "gain_printed"]
    numbers += ["total_s", "saving", "saving_printed", "memory_gb", "gpu_util"]
    table = pd.DataFrame(found, columns=[*text, *numbers])
    return table.astype(dict.fromkeys(numbers, float))


def beside(table: pd.DataFrame, workload: str) -> pd.DataFrame:
    """The rows of `conclusions` that a figure may draw beside a workload (a mix: joined by +)."""
    wanted = sorted(workload.split("+"))
    return table[[sorted(name.split("+")) == wanted for name in table["workload"]]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.reported",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reported", required=True, type=Path, metavar="REPORTED.csv")
    parser.add_argument("--output", type=Path, metavar="FILE.csv", help="the conclusions as CSV")
    parser.add_argument("--print", action="store_true", help="the conclusions on the terminal")
    arguments = parser.parse_args(argv)
    try:
        table = conclusions(read(arguments.reported))
    except ReportedError as error:
        sys.exit(str(error))
    if arguments.output:
        table.round(6).to_csv(arguments.output, index=False)
    if arguments.print:
        shown = table.drop(columns="stamp").astype(object).where(table.notna(), "")
        print(tabulate(shown, headers="keys", showindex=False, floatfmt=".4g"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
