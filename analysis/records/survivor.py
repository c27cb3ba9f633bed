"""Fixed work: how fast the member that ends last trains once all others have ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.records.safe import read_table

FILE, COLUMN, BY = "steps.parquet", "samples_per_s_alone_after", "member"
LEAST = 10  # steps: fewer tell no rate


def read(record: dict) -> dict[int, float]:
    """Member → samples/s, of the one that has LEAST steps or more after the others' last one.

    As in a window, counted from the end of the first of these steps to the end of the last.
    Raises OSError, KeyError, ValueError or pa.ArrowException where the steps cannot be read.
    """
    ends, tick_ns, _ = steps(record["folder"] / FILE)
    if len(ends) < 2:
        return {}
    tick_s = tick_ns / 1e9
    *_, second, (_, last) = sorted((ticks.max(), index) for index, ticks in ends.items())
    after = ends[last][ends[last] > second[0]]
    if len(after) < LEAST:
        return {}
    size = record["spec"]["members"][last]["batch_size"]
    return {last: float(size * (len(after) - 1) / ((after.max() - after.min()) * tick_s))}


def steps(path: Path) -> tuple[dict[int, np.ndarray], int, int]:
    """Member → ticks at which its steps ended; ns of a tick, and of the clock at tick 0."""
    table = read_table(path, ["member", "tick"])
    member, tick = table["member"].to_numpy(), table["tick"].to_numpy()
    ends = {int(index): tick[member == index] for index in np.unique(member)}
    return ends, *(int(table.schema.metadata[key]) for key in (b"tick_ns", b"origin_ns"))
