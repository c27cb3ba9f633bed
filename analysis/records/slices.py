"""Alternating cells: how busy the GPU was in each slice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from analysis.records.safe import read_table

FILE, COLUMN, BY = "gpu.parquet", "gract_slices", "window"
# A reading may be of a time that ended so much earlier: the first ones of a slice hold some of the
# slice before, on an H200 up to 0.71 of a job alone that is busy for 0.23 of its time.
LAG_NS = 100_000_000


def read(record: dict) -> dict[str, list[float | None]]:
    """Side → GRACT of the GPU in each slice, None where no reading is of this slice alone.

    A reading is a mean since the one before it, a tenth of a second as a rule. Raises OSError,
    LookupError, ValueError or TypeError where the readings are there and cannot be read.
    """
    if FILE not in (record.get("files") or {}):
        return {}
    t, busy = readings(record["folder"] / FILE)
    return {
        window["name"]: [mean(t, busy, *span) for span in window["spans"]]
        for window in record["windows"]
    }


def readings(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """When GRACT of the GPU was read (ns), and what it was."""
    table = read_table(path, ["t_ns", "entity", "gract"])
    table = table.filter(pc.equal(table["entity"], "gpu"))
    busy = table["gract"].to_numpy(zero_copy_only=False).astype(float)
    known = np.isfinite(busy)
    t = table["t_ns"].to_numpy()[known] + int(table.schema.metadata[b"origin_ns"])
    return t, busy[known]


def mean(t: np.ndarray, busy: np.ndarray, start: int, stop: int) -> float | None:
    """Of these readings those of this time (ns) alone; None where there is none."""
    first, last = np.searchsorted(t, [start + LAG_NS, stop + 1])
    took = np.diff(t[first:last])
    return float(np.average(busy[first + 1 : last], weights=took)) if len(took) else None
