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
    place: str,
    told: Mapping,
    ticks: np.ndarray,
    spans: Sequence,
    drop: int,
    clock: tuple[int, int],
    size: int,
) -> Iterator[str]:
    """Sentences: slices, steps or a rate that do not follow from the ends of a member's steps.

    ticks: of its step ends, each rounded down. spans: (from, to), ns, each `drop` after it was told
    to go on. clock: ns of tick 0 and of one tick. size: samples of a step.
    """
    (origin, tick), total, sure, maybe = clock, 0.0, [], []
    early, turns = np.sort(ticks) * tick + origin, [start - drop for start, _ in spans]
    if len(told.get("slices") or ()) != len(spans):
        yield f"{place}.slices are {len(told.get('slices') or ())}, not {len(spans)}"
        return
    for number, (start, stop) in enumerate(spans):
        rate, seconds = told["slices"][number], (stop - start) / 1e9
        total += rate * seconds
        own = slice(*np.searchsorted(early, [*turns[number:], np.inf][:2], side="right"))
        begun = np.concatenate([[turns[number]], early[own]])[:-1]
        inside = (begun > start - tick) & (early[own] <= stop)
        surely = (begun >= start) & (early[own] + tick <= stop)
        sure.append((early[own] - begun)[surely])
        maybe.append((early[own] - begun)[inside & ~surely])
        # A step ends in its tick: never before it begins, and before it is over.
        most, least = (
            _made(turns[number], ends, start, stop) for ends in (early[own], early[own] + tick)
        )
        low, high, steps = least[1] - most[0], most[1] - least[0], rate * seconds / size
        if not low - SAME * (low + 1) <= steps <= high + SAME * (high + 1):
            yield f"{place}.slices[{number}] is {rate}, its steps give {high * size / seconds:.6g}"
    counted = sum(stop - start for start, stop in spans) / 1e9
    if not abs(told["samples_per_s"] * counted - total) <= 1e-6 * total:
        yield f"{place}.samples_per_s is {told['samples_per_s']}, its slices give {total / counted}"
    yield from _percentiles(place, told, np.concatenate(sure), np.concatenate(maybe), tick)
    least = sum(int(((early > a) & (early <= b - tick)).sum()) for a, b in spans)
    most = sum(int(((early > a - tick) & (early <= b)).sum()) for a, b in spans)
    if not least <= told["steps"] <= most:
        yield f"{place}.steps is {told['steps']}, the slices have {most}"


def _percentiles(
    place: str, told: Mapping, sure: np.ndarray, maybe: np.ndarray, tick: int
) -> Iterator[str]:
    """Sentences: percentiles that whole steps do not give. Each took so long (ns) but for a tick,
    and it is not told which of some there are.
    """
    known = np.concatenate([sure, maybe])
    for share in (50, 95, 99):
        value = told.get(f"step_ms_p{share}")
        if value is None and len(sure) or value is not None and not len(known):
            yield f"{place}.step_ms_p{share} is {value}, of {len(sure)} whole steps"
        elif value is not None:
            ends = (np.full(len(maybe), known.min()), np.full(len(maybe), known.max()))
            low, high = (np.percentile(np.concatenate([sure, end]), share) for end in ends)
            if not low - tick <= value * 1e6 <= high + tick:
                yield f"{place}.step_ms_p{share} is {value}, its steps give {high / 1e6:.6g}"


def _made(resumed: int, ends: np.ndarray, *at: int) -> np.ndarray:
    """Steps made since `resumed`, at these times (ns): whole ones and the begun share of one."""
    line = np.concatenate([[resumed], ends]).astype(float)
    return np.interp(at, line, np.arange(len(line)))
