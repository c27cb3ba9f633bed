"""From the record of a probe to numbers: rates, gains and slowdowns, each with its interval.

Intervals come from samples that share no cycle of the job: rounds of turns, or whole cycles.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy.special import stdtrit

from analysis.estimates.intervals import CONFIDENCE
from workflow.collocation.record.cycles import LEAST_CYCLES, StepBlocks, progress_in
from workflow.collocation.record.probe import (
    AGREE,
    DROP_S,
    ProbeRecord,
)
from workflow.collocation.record.step_times import (
    STEPS_FILE,
    read_steps,
    slices_rate,
    window_flag,
)
from workflow.collocation.record.values import Window

HELD_UP = 0.25  # of a job's median turn: in a slower one, it paused or was held up

WINDOW_ERROR = 0.02  # relative, by which windows of a steady job differ beyond their own scatter

StepEnds = Mapping[int, np.ndarray]  # member → when its steps ended, int64 ns; none that made none


class Estimate(NamedTuple):
    """A number with the ends of its interval; NaN where these are not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Together:
    """What jobs did together.

    rate: of all jobs, steps/s. stp: the sum of their rates, each over its rate alone; at most their
    number. above: that sum where it is clearly larger, because jobs ran slower alone than together;
    else None. slowdowns: how many times as long as alone each job takes. flags: of their windows.
    doubt: why the gain cannot be told, or None.
    """

    rate: Estimate
    stp: Estimate
    slowdowns: tuple[Estimate, ...]
    flags: tuple[str, ...] = ()
    doubt: str | None = None
    above: float | None = None

    @property
    def slowdown(self) -> Estimate:
        """That of the slowest job."""
        return max(self.slowdowns, key=lambda slowdown: slowdown.value)


@dataclass(frozen=True)
class Alone:
    """What one job did alone, while others may have been loaded and waited.

    rate: steps/s by itself, before anything else was loaded. in_turns: its mean rate in turns, None
    if it took none. cycle_s: mean length of a cycle, None for a steady job. flags: of its window.
    start_share: of a script that ends, the share of a run until its first step; None for others.
    progress, slices: to which sets are compared: all whole cycles of the job by itself, or the
    steps/s in each of its turns. notes: sentences on its rates. doubt: why they are no baseline.
    window_error: relative, by which windows differ beyond their own scatter.
    """

    rate: Estimate
    in_turns: float | None
    cycle_s: float | None
    flags: tuple[str, ...]
    progress: StepBlocks
    start_share: float | None = None
    slices: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    doubt: str | None = None
    window_error: float = WINDOW_ERROR


def step_ends(folder: Path) -> StepEnds:
    """Read when the steps of a probe's members ended, from the folder of its record."""
    if not (folder / STEPS_FILE).exists():
        return {}
    table = pq.read_table(folder / STEPS_FILE)
    return {member: times for member, (times, _) in read_steps(table).items()}


def alone_numbers(
    record: ProbeRecord, ends: StepEnds, member: int, beside: Window | None = None
) -> Alone:
    """What a member did alone. beside: a window of a set; then its turns are those of this set."""
    mine = [window for window in record.windows if window.members == [member]]
    by_itself = [window for window in mine if not window.spans]
    turns = [w for w in mine if w.spans and (beside is None or _overlap(w, beside))]
    parts = [_progress(window, member, ends) for window in by_itself]
    first = parts[0]
    flag = None if first.pauses else window_flag(by_itself[0], _steps(ends, member), None)
    slices = _slices(turns[0], member, ends) if turns else None
    return Alone(
        rate=_estimate(first.rate, first.relative_error, len(first.steps) - 1),
        in_turns=None if slices is None else float(slices.mean()),
        cycle_s=float(first.seconds.mean()) if first.pauses and len(first.steps) else None,
        flags=(flag,) if flag else (),
        start_share=_start_share(record, ends, member),
        **_baseline([part for part in parts if len(part.steps)], slices),
    )


def _start_share(record: ProbeRecord, ends: StepEnds, member: int) -> float | None:
    """Share of a script's whole runs that lies before their first steps; None without a run."""
    starts_ns = next(each.starts_ns for each in record.members if each.member == member)
    runs_ns, until_first_ns = 0, 0
    for start_ns, next_ns in itertools.pairwise(starts_ns):
        steps = _steps(ends, member)
        inside = steps[(steps > start_ns) & (steps < next_ns)]
        if len(inside):
            runs_ns += next_ns - start_ns
            until_first_ns += int(inside[0]) - start_ns
    return until_first_ns / runs_ns if runs_ns else None


def _baseline(parts: Sequence[StepBlocks], slices: np.ndarray | None) -> dict:
    """Fields of Alone: what sets are compared to, and what to say about it.

    parts: the job by itself, before the sets and perhaps after them. slices: in turns with sets.
    """
    rates, progress = [part.rate for part in parts], _joined(parts)
    if slices is None:
        doubt = None if _agree(rates) else f"its rate alone was {_listed(rates)} steps/s"
        differ = abs(np.log(rates[1] / rates[0])) / 2 if len(rates) > 1 else 0.0
        error = max(WINDOW_ERROR, differ)
        return {"progress": progress, "doubt": doubt, "window_error": error}
    in_turns = float(slices.mean())
    if _agree([*rates, in_turns]):
        return {"progress": progress, "slices": slices}
    seen = f"Alone it made {_listed(rates)} steps/s by itself and {in_turns:.3g} in turns"
    if len(rates) > 1 and _agree([rates[1], in_turns]):
        notes = (f"{seen}: the later ones count.",)
        return {"progress": progress, "slices": slices, "notes": notes}
    if len(rates) > 1 and _agree(rates):
        notes = (f"{seen}, beside copies that wait: by itself counts.",)
        return {"progress": progress, "notes": notes}
    doubt = f"its rate alone was {_listed([*rates, in_turns])} steps/s"
    return {"progress": progress, "slices": slices, "doubt": doubt}


def together_numbers(window: Window, ends: StepEnds, alone: Sequence[Alone]) -> Together:
    """What the members of a window did together. alone: of each member's job."""
    doubt = next((each.doubt for each in alone if each.doubt), None)
    if window.spans:
        by_member = np.array([_slices(window, member, ends) for member in window.members])
        rate, stp, slowdowns = _from_turns(by_member, alone)
        flags = {
            window_flag(window, _steps(ends, member), rates)
            for member, rates in zip(window.members, by_member, strict=True)
        }
        turns = [*by_member, *(each.slices for each in alone if each.slices is not None)]
        if any((rates <= HELD_UP * np.median(rates)).any() for rates in turns):
            doubt = doubt or "a job hardly stepped in one of its turns"
    else:
        progress = [_progress(window, member, ends) for member in window.members]
        rate, stp, slowdowns = _from_windows(progress, alone)
        flags = set()
        for member, each in zip(window.members, progress, strict=True):
            if not each.pauses:  # of one that pauses, whole cycles are counted, pauses and all
                flags.add(window_flag(window, _steps(ends, member), None))
        if min(len(each.steps) for each in progress) < LEAST_CYCLES:
            doubt = doubt or f"a job made fewer than {LEAST_CYCLES} whole cycles in the time"
    count = len(window.members)
    if min(len(each.progress.steps) for each in alone) < LEAST_CYCLES:
        doubt = doubt or f"the job alone made fewer than {LEAST_CYCLES} whole cycles in the time"
    if stp.low > (1 + AGREE) * count:
        doubt = doubt or f"{count} jobs did {stp.value:.2f} times the work of one alone"
    flags = tuple(sorted(flag for flag in flags if flag))
    if not stp.value > count:
        return Together(rate, stp, slowdowns, flags, doubt)
    at_most = Estimate(*(min(end, count) for end in stp))
    at_least = tuple(Estimate(*(max(end, 1.0) for end in each)) for each in slowdowns)
    above = stp.value if stp.value > (1 + WINDOW_ERROR) * count else None
    return Together(rate, at_most, at_least, flags, doubt, above)


def _from_turns(
    by_member: np.ndarray, alone: Sequence[Alone]
) -> tuple[Estimate, Estimate, tuple[Estimate, ...]]:
    """Rate, STP and slowdowns. by_member: steps/s [members, rounds]."""
    rounds = np.arange(by_member.shape[1])
    baselines, errors = [], []
    for each in alone:
        in_turns = each.slices is not None
        baselines.append(each.slices if in_turns else np.full(len(rounds), each.progress.rate))
        errors.append(0.0 if in_turns else each.progress.relative_error)
    baseline = np.array(baselines)

    def speeds(kept: np.ndarray) -> np.ndarray:
        """Of each member, relative to its job alone, over these rounds."""
        ran = np.maximum(by_member[:, kept].sum(axis=1), 1e-9)
        return ran / np.maximum(baseline[:, kept].sum(axis=1), 1e-9)

    slowdowns = []
    for member, error in enumerate(errors):
        slowdowns.append(_jackknife(lambda kept, m=member: 1 / speeds(kept)[m], rounds, error))
    return (
        _jackknife(lambda kept: by_member[:, kept].sum(axis=0).mean(), rounds),
        _jackknife(lambda kept: speeds(kept).sum(), rounds, max(errors)),
        tuple(slowdowns),
    )


def _from_windows(
    progress: Sequence[StepBlocks], alone: Sequence[Alone]
) -> tuple[Estimate, Estimate, tuple[Estimate, ...]]:
    """Rate, STP and slowdowns. progress: of each member in the window."""
    baselines = [each.progress for each in alone]
    counted = [*progress, *baselines]
    if min(len(each.steps) for each in counted) == 0:
        unknown = Estimate(np.nan, np.nan, np.nan)
        return unknown, unknown, (unknown,) * len(progress)
    freedom = min(len(each.steps) for each in counted) - 1
    rates = np.array([each.rate for each in progress])
    errors = np.array([each.relative_error for each in progress])
    relative = rates / [each.rate for each in baselines]
    of_baselines = np.array([each.relative_error for each in baselines])
    of_windows = np.array([each.window_error for each in alone])
    # Each compares two windows, of the set and of the job alone.
    of_baselines = np.hypot(of_baselines, np.sqrt(2) * of_windows)
    # Copies of one job have one baseline, whose error they share: so errors of baselines add up.
    gain_error = np.hypot(np.linalg.norm(relative * errors), (relative * of_baselines).sum())
    slowdowns = [
        _estimate(1 / speed, np.hypot(error, of_baseline), freedom)
        for speed, error, of_baseline in zip(relative, errors, of_baselines, strict=True)
    ]
    return (
        _estimate(rates.sum(), np.linalg.norm(rates * errors) / rates.sum(), freedom),
        _estimate(relative.sum(), gain_error / relative.sum(), freedom),
        tuple(slowdowns),
    )


def _jackknife(
    statistic: Callable[[np.ndarray], float], rounds: np.ndarray, further_error: float = 0.0
) -> Estimate:
    """A positive number from independent rounds, with its interval from leaving each out once.

    statistic: computes it from the indices of rounds. further_error: relative standard error of
    what all rounds were divided by.
    """
    value, count = float(statistic(rounds)), len(rounds)
    if count < 2 or value <= 0:
        return Estimate(value, np.nan, np.nan)
    without_one = np.log([max(statistic(np.delete(rounds, k)), 1e-9) for k in range(count)])
    error = np.sqrt((count - 1) / count * np.sum((without_one - without_one.mean()) ** 2))
    return _estimate(value, float(np.hypot(error, further_error)), count - 1)


def _estimate(value: float, relative_error: float, freedom: int) -> Estimate:
    if freedom < 1 or not np.isfinite(relative_error):
        return Estimate(float(value), np.nan, np.nan)
    factor = np.exp(stdtrit(freedom, (1 + CONFIDENCE) / 2) * relative_error)
    return Estimate(float(value), float(value / factor), float(value * factor))


def _overlap(window: Window, other: Window) -> bool:
    return window.start_ns < other.end_ns and other.start_ns < window.end_ns


def _progress(window: Window, member: int, ends: StepEnds) -> StepBlocks:
    return progress_in(_steps(ends, member), *window.ends)


def _steps(ends: StepEnds, member: int) -> np.ndarray:
    return ends.get(member, np.empty(0, np.int64))


def _slices(window: Window, member: int, ends: StepEnds) -> np.ndarray:
    """Steps/s of a member in each turn of a window."""
    rate = slices_rate(_steps(ends, member), window.spans, round(DROP_S * 1e9), batch_size=1)
    return np.array(rate.slices)


def _joined(parts: Sequence[StepBlocks]) -> StepBlocks:
    """All cycles of several windows."""
    steps = np.concatenate([part.steps for part in parts] or [np.empty(0)])
    seconds = np.concatenate([part.seconds for part in parts] or [np.empty(0)])
    return StepBlocks(steps, seconds, any(part.pauses for part in parts))


def _agree(rates: Sequence[float]) -> bool:
    return len(rates) < 2 or min(rates) >= (1 - AGREE) * max(rates)


def _listed(rates: Sequence[float]) -> str:
    return " and ".join(f"{rate:.3g}" for rate in rates)
