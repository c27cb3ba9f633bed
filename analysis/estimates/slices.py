"""Alternating cells: the same cell batch by batch, which tells how well it repeats.

Where the sides of a cell take turns, a number is that of each side's whole time, as of any window:
samples over seconds. Its interval is by batch means: consecutive rounds (in each of which every
side has one slice) make batches, the number is computed again of each of them, and the t interval
of these stands around the whole cell's number.

The rule for the number of batches: BATCHES, but fewer where one would have fewer than ROUNDS
rounds. A job alone that waits for its host is like itself for 0.8 s (measured), so a batch has to
last longer; a round takes 1 s or more. Ratios are taken of whole batches and never of single
slices: the mean of their logs is beside the log of the ratio of means by half the variance of a
slice, 0.7 % at the 12 % of such a job, 1.6 % at 18 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from analysis.estimates.runs import Run

BATCHES, ROUNDS = 10, 2


def cells(runs: Iterable[Run]) -> Iterable[list[Run]]:
    """The sides of each alternating cell that completed."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.side:
            found[run.cell].append(run)
    return found.values()


def batches(cell: Sequence[Run]) -> list[list[Run]]:
    """The sides of a cell in each of its batches of rounds; none where it has too few of them."""
    counted = {len(member["slices"] or ()) for run in cell for member in run.members}
    if len(counted) != 1:
        return []
    (rounds,) = counted
    parts = np.array_split(np.arange(rounds), max(1, min(BATCHES, rounds // ROUNDS)))
    if len(parts) < 2:
        return []
    return [
        [replace(run, members=tuple(_in_batch(m, part) for m in run.members)) for run in cell]
        for part in parts
    ]


def _in_batch(member: Mapping, part: np.ndarray) -> dict:
    """A member's row with rate, epoch time and GRACT of these rounds alone."""
    rate = _mean(member["slices"], part)
    changed = {"samples_per_s": rate, "epoch_time_s": None}
    if rate and member["epoch_time_s"]:
        changed["epoch_time_s"] = member["epoch_time_s"] * member["samples_per_s"] / rate
    if busy := member["gract_slices"]:
        changed["gract"] = _mean(busy, part) if len(busy) == len(member["slices"]) else None
    return {**member, **changed}


def _mean(values: Sequence[float | None], part: np.ndarray) -> float | None:
    known = [values[i] for i in part if values[i] is not None]
    return fmean(known) if known else None
