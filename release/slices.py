"""Slices of alternating cells in run.json against the step ends in steps.parquet.

Arithmetic of its own: how many steps a member has made at a time is a line through its step ends,
from the moment on at which it was told to go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from release.contents import RUN

SAME = 1e-9  # relative


def windows(record: Mapping) -> Iterator[str]:
    """Sentences: spans of sides that do not fit their window, each other or the plan."""
    measure, turns = record["spec"]["measure"], []
    for window in record["windows"]:
        place, spans = f"{RUN}: window {window['name']}", window["spans"]
        turns += [(start, stop, place) for start, stop in spans]
        seconds = sum(stop - start for start, stop in spans) / 1e9
        if (window["start_ns"], window["end_ns"]) != (spans[0][0], spans[-1][1]):
            yield f"{place} does not begin and end with its slices"
        if not abs(window["seconds"] - seconds) <= 1e-6 * max(seconds, 1):
            yield f"{place} counts {window['seconds']} s, its slices last {seconds}"
        if len(spans) != measure["slices"]:
            yield f"{place} has {len(spans)} slices, not {measure['slices']}"
    sides = len(record["windows"])
    for at, (start, stop, place) in enumerate(turns := sorted(turns)):
        if start >= stop or (at and start < turns[at - 1][1] + measure["drop_s"] * 1e9):
            yield f"{place} has a slice that lasts no time, or begins before another one is over"
        if at % sides == 0 and len({each for *_, each in turns[at : at + sides]}) < sides:
            yield f"{place} comes twice in round {at // sides + 1}"


def rates(
    place: str, told: Mapping, ticks: np.ndarray, spans: Sequence, clock: tuple[int, int], size: int
) -> Iterator[str]:
    """Sentences: slices, steps or a rate that do not follow from the ends of a member's steps.

    ticks: of its step ends, each rounded down. spans: (from, to, told to go on at), ns. clock: ns
    of tick 0 and of one tick. size: samples of a step.
    """
    origin, tick = clock
    early, total = np.sort(ticks) * tick + origin, 0.0
    if len(told.get("slices") or ()) != len(spans):
        yield f"{place}.slices are {len(told.get('slices') or ())}, not {len(spans)}"
        return
    for number, (rate, (start, stop, resumed)) in enumerate(
        zip(told["slices"], spans, strict=True)
    ):
        # A step ends in its tick: never before it begins, and before it is over.
        most, least = (_made(ends, resumed, (start, stop)) for ends in (early, early + tick))
        steps, seconds = rate * (stop - start) / 1e9 / size, (stop - start) / 1e9
        total += rate * seconds
        low, high = least[1] - most[0], most[1] - least[0]
        if not low - SAME * (low + 1) <= steps <= high + SAME * (high + 1):
            yield f"{place}.slices[{number}] is {rate}, its steps give {high * size / seconds:.6g}"
    counted = sum(stop - start for start, stop, _ in spans) / 1e9
    if not abs(told["samples_per_s"] * counted - total) <= 1e-6 * total:
        yield f"{place}.samples_per_s is {told['samples_per_s']}, its slices give {total / counted}"
    least = sum(int(((early > a) & (early <= b - tick)).sum()) for a, b, _ in spans)
    most = sum(int(((early > a - tick) & (early <= b)).sum()) for a, b, _ in spans)
    if not least <= told["steps"] <= most:
        yield f"{place}.steps is {told['steps']}, the slices have {most}"


def _made(ends: np.ndarray, resumed: int, at: Sequence[int]) -> np.ndarray:
    """Steps made since `resumed`, at these times (ns): whole ones and the begun share of one."""
    after = ends[np.searchsorted(ends, resumed, side="right") :]
    line = np.concatenate([[resumed], after]).astype(float)
    return np.interp(at, line, np.arange(len(line)))
