"""What the cells of a study were measured on and with, and where two studies differ in it.

python -m analysis.web.environment --runs results/smoke/runs.parquet --output environment.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis.cells import read_runs

# What a reader calls it → column of runs.parquet. `data` is of a dataset and its source.
FIELDS = {
    "GPU or CPU": "hardware",
    "driver": "driver",
    "trainer digest": "digest",
    "data": "data",
    "torch": "torch",
    "timm": "timm",
    "Python": "python",
    "commit": "commit",
    "machine": "machine",
    "telemetry from": "telemetry_source",
    "CPU cores per member": "cores",
    "window (s)": "window_s",
}
SOURCES = {"synthetic": "generated (synthetic)", "real": "real"}


def values(runs: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Field → value → in how many of the measured cells of `runs` (of runs.parquet).

    A field of which nothing is known is left out. Windows are told in whole seconds.
    """
    rows = runs[runs["current"] & runs["status"].isin(("completed", "out_of_memory"))]
    rows = rows.assign(data=_data(rows), window_s=rows["window_s"].round())
    found = {}
    for field, column in FIELDS.items():
        told = rows.dropna(subset=[column])[["cell", column]].drop_duplicates()
        counts = told[column].value_counts().sort_index()
        if len(counts):
            found[field] = {_word(value): int(count) for value, count in counts.items()}
    return found


def differences(a: pd.DataFrame, b: pd.DataFrame) -> list[tuple[str, str, str]]:
    """(field, values of a, values of b) of each field in which two studies are not the same."""
    first, second = values(a), values(b)
    return [
        (field, told(first.get(field, ())), told(second.get(field, ())))
        for field in FIELDS
        if set(first.get(field, ())) != set(second.get(field, ()))
    ]


def told(found: Iterable[str]) -> str:
    return ", ".join(found) or "not known"


def _data(rows: pd.DataFrame) -> pd.Series:
    source = rows["source"].map(lambda name: SOURCES.get(name, name))
    return (rows["dataset"] + ": " + source).where(rows["source"].notna())


def _word(value: object) -> str:
    """Whole numbers without a point; all others as they are."""
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def markdown(runs: pd.DataFrame) -> str:
    """A page: how the cells ended, and a row per field with its values."""
    current = runs[runs["current"]]
    studies = sorted(current["study"].dropna().unique())
    statuses = current.drop_duplicates("cell")["status"].value_counts()
    ended = [f"{count} {status.replace('_', ' ')}" for status, count in statuses.items()]
    rows = [
        {"what": field, "value": value.replace("|", "\\|"), "measured cells": count}
        for field, counts in values(runs).items()
        for value, count in counts.items()
    ]
    table = tabulate(rows, "keys", "github", disable_numparse=True) or "Nothing was measured."
    return (
        f"# Environment and provenance\n\nStudy {', '.join(studies) or 'without cells'}: "
        f"{', '.join(ended) or 'no cells'}.\n\n{table}\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.web.environment",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--output", required=True, type=Path, metavar="ENVIRONMENT.md")
    arguments = parser.parse_args(argv)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(markdown(read_runs(arguments.runs)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
