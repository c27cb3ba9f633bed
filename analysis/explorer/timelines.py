"""What the GPU did over time in each cell, reduced so that a page can hold it for all of them.

A cell's readings are cut into bins of equal length, and of each bin the mean is kept: peaks
shorter than a bin are lost. The more cells a study has, the fewer bins each gets.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet

# Bytes of JSON that all cells may take together; bins of a cell: at most, at least.
LIMIT = 2_000_000
MOST, LEAST = 150, 12
_LETTERS = 4.2  # that a value takes in JSON, about


@dataclass(frozen=True)
class Line:
    """A column of telemetry.parquet: its panel, the unit shown, and that unit's smallest step.

    Values are kept as whole numbers of steps; `scale` turns what was read into the unit.
    """

    key: str
    label: str
    panel: str
    step: float
    scale: float = 1.0


LINES = (
    Line("gract", "GRACT", "activity (%)", 0.1, 100),
    Line("smact", "SMACT", "activity (%)", 0.1, 100),
    Line("smocc", "SMOCC", "activity (%)", 0.1, 100),
    Line("drama", "DRAMA", "activity (%)", 0.1, 100),
    Line("gpu_util", "NVML utilisation", "activity (%)", 0.1, 100),
    Line("power", "power", "power (W)", 1),
    Line("memory_used", "memory in use", "memory (GB)", 0.01, 1e-9),
    Line("sm_clock", "SM clock", "clock (MHz)", 5),
)


def of_cells(telemetry: Path | None, cells: set[str]) -> dict[str, dict]:
    """Cell → its timeline: t0 and bin (s), phases, and entity → line → steps per bin (or null).

    Only of these cells; cells without readings have none. The JSON of all is below LIMIT unless
    that would take fewer than LEAST bins of each.
    """
    if telemetry is None:
        return {}
    rows = _read(telemetry)
    rows = rows[rows["cell"].isin(cells)]
    bins = max(LEAST, min(MOST, int(LIMIT / (_LETTERS * max(_series(rows), 1)))))
    while True:
        found = reduced(rows, bins)
        size = len(json.dumps(found, separators=(",", ":")))
        if size <= LIMIT or bins == LEAST:
            return found
        bins = max(LEAST, int(0.95 * bins * LIMIT / size))


def _read(telemetry: Path) -> pd.DataFrame:
    """The columns needed of telemetry.parquet, by cell and time."""
    columns = ["cell", "t", "entity", "phase", *(line.key for line in LINES)]
    table = pyarrow.parquet.read_table(telemetry, columns=columns)
    return table.to_pandas().sort_values(["cell", "t"], kind="stable", ignore_index=True)


def _series(rows: pd.DataFrame) -> int:
    """How many lines there are, of all entities of all cells."""
    read = rows[[line.key for line in LINES]].notna()
    pair = pd.factorize(rows["cell"])[0] * 1000 + pd.factorize(rows["entity"])[0]
    return sum(len(np.unique(pair[there.to_numpy()])) for _, there in read.items())


def reduced(rows: pd.DataFrame, bins: int) -> dict[str, dict]:
    """The timelines of all cells in rows of telemetry.parquet (by cell and time), each in at most
    so many bins, and no more than an entity of it has readings.

    NVML's utilisation is kept only where it is all that there is of activity.
    """
    if rows.empty:
        return {}
    cell, cells = pd.factorize(rows["cell"])
    entity, entities = pd.factorize(rows["entity"], sort=True)
    pair = cell * len(entities) + entity
    readings = np.bincount(pair, minlength=len(cells) * len(entities))
    number = np.minimum(bins, readings.reshape(len(cells), len(entities)).max(axis=1))
    times = rows["t"].to_numpy()
    first = np.searchsorted(cell, np.arange(len(cells)))
    last = np.append(first[1:], len(cell)) - 1
    length = (times[last] - times[first]) / number
    length[length == 0] = 1.0
    place = np.minimum(((times - times[first][cell]) / length[cell]).astype(int), number[cell] - 1)
    lines = _lines(rows, pair * bins + place, (len(cells), len(entities), bins))
    phases = _phases(rows, cell)
    return {
        str(name): {
            "t0": round(float(times[first[i]]), 3),
            "bin": round(float(length[i]), 4),
            "phases": phases[i],
            "entities": {
                str(part): found
                for j, part in enumerate(entities)
                if (found := _chosen(lines, i, j, int(number[i])))
            },
        }
        for i, name in enumerate(cells)
    }


def _lines(rows: pd.DataFrame, slot: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Line → mean of each (cell, entity, bin) in steps, None where nothing was read."""
    found = {}
    for line in LINES:
        values = rows[line.key].to_numpy(dtype=float)
        there = np.isfinite(values)
        count = np.bincount(slot[there], minlength=math.prod(shape))
        total = np.bincount(slot[there], weights=values[there], minlength=math.prod(shape))
        steps = np.rint(total / np.maximum(count, 1) * line.scale / line.step)
        found[line.key] = np.where(count > 0, steps.astype(int), None).reshape(shape)
    return found


def _chosen(lines: dict[str, np.ndarray], cell: int, entity: int, bins: int) -> dict[str, list]:
    """Of one entity of a cell the lines of which something was read."""
    found = {key: steps[cell, entity, :bins].tolist() for key, steps in lines.items()}
    found = {key: steps for key, steps in found.items() if steps.count(None) < len(steps)}
    if "gract" in found:
        found.pop("gpu_util", None)
    return found


def _phases(rows: pd.DataFrame, cell: np.ndarray) -> list[list[list]]:
    """For each cell [name, start, end] in s of each of its phases, in the order of time."""
    names, times = rows["phase"].to_numpy(dtype=object), rows["t"].to_numpy()
    found: list[list[list]] = [[] for _ in range(cell[-1] + 1)]
    edges = np.flatnonzero((cell[1:] != cell[:-1]) | (names[1:] != names[:-1])) + 1
    for a, b in pairwise([0, *edges, len(cell)]):
        if isinstance(names[a], str):
            end = b if b < len(cell) and cell[b] == cell[a] else b - 1
            found[cell[a]].append(
                [names[a], round(float(times[a]), 3), round(float(times[end]), 3)]
            )
    return found
