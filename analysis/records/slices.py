"""Alternating cells: how busy the GPU was in each slice."""

from __future__ import annotations

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
    table = read_table(record["folder"] / FILE, ["t_ns", "entity", "gract"])
    table = table.filter(pc.equal(table["entity"], "gpu"))
    busy = table["gract"].to_numpy(zero_copy_only=False).astype(float)
    known = np.isfinite(busy)
    t, busy = table["t_ns"].to_numpy()[known], busy[known]
    t = t + int(table.schema.metadata[b"origin_ns"])
    return {
        window["name"]: [_mean(t, busy, *span) for span in window["spans"]]
        for window in record["windows"]
    }


def _mean(t: np.ndarray, busy: np.ndarray, start: int, stop: int) -> float | None:
    """t, busy: when readings were made (ns), and what they were."""
    first, last = np.searchsorted(t, [start + LAG_NS, stop + 1])
    took = np.diff(t[first:last])
    return float(np.average(busy[first + 1 : last], weights=took)) if len(took) else None
