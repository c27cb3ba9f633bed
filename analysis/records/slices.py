"""Alternating cells: how busy the GPU was in each slice."""

from __future__ import annotations

import pyarrow.compute as pc

from analysis.records.safe import read_table
from workflow.collocation.record.series import Series

FILE, COLUMN, BY = "gpu.parquet", "gract_slices", "window"


def read(record: dict) -> dict[str, list[float | None]]:
    """Side → GRACT of the GPU in each slice, None where no reading is of this slice alone.

    Raises OSError, LookupError, ValueError or TypeError where the readings are there and cannot be
    read.
    """
    if FILE not in (record.get("files") or {}):
        return {}
    table = read_table(record["folder"] / FILE, ["t_ns", "entity", "gract"])
    series = Series.of_table(table.filter(pc.equal(table["entity"], "gpu")))
    return {
        window["name"]: [series.over("gract", span, [span]) for span in window["spans"]]
        for window in record["windows"]
    }
