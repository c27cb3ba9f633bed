"""From the record of a probe to numbers: rates, gains and slowdowns, each with its interval.

Intervals come from samples that share no cycle of the job: rounds of turns, or whole cycles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from scipy.special import stdtrit

from analysis.estimates.intervals import CONFIDENCE
from workflow.collocation.record.cycles import LEAST_CYCLES, Progress, progress_in
from workflow.collocation.record.probe import AGAIN, ALONE, IN_TURNS, JobSet, ProbeRecord
from workflow.collocation.record.step_times import (
    STEPS_FILE,
    read_steps,
    slices_rate,
    window_flag,
)
from workflow.collocation.record.values import Window

AGREE = 0.1  # rates of the job alone that differ by more contradict each other
HELD_UP = 0.25  # of a job's median turn: in a slower one, it paused or was held up

StepEnds = Mapping[int, np.ndarray]  # member → when its steps ended, int64 ns


class Estimate(NamedTuple):
    """A number with the ends of its interval; NaN where these are not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SetNumbers:
    """What a set did. rate: of all its jobs, steps/s. stp: that over the rate of one job alone.

    slowdown: how many times as long as alone the slowest job takes. flags: of its windows. doubt:
    why its gain cannot be told, or None.
    """

    job_set: JobSet
    rate: Estimate
    stp: Estimate
    slowdown: Estimate
    flags: tuple[str, ...] = ()
    doubt: str | None = None


@dataclass(frozen=True)
class ProbeNumbers:
    """What a probe's record says.

    alone: steps/s of one job by itself. in_turns: in turns with sets, None if it took none.
    cycle_s: mean length of a cycle, None for a steady job. notes: sentences on the rates alone.
    """

    alone: Estimate
    in_turns: float | None
    cycle_s: float | None
    alone_flags: tuple[str, ...]
    sets: list[SetNumbers]
    notes: tuple[str, ...] = ()


def numbers_of(record: ProbeRecord, folder: Path) -> ProbeNumbers:
    """Compute the numbers of a record from the step times in its folder."""
    ends = {m: times for m, (times, _) in read_steps(pq.read_table(folder / STEPS_FILE)).items()}
    return compute(record, ends)


def compute(record: ProbeRecord, ends: StepEnds) -> ProbeNumbers:
    """Compute the numbers of a record. ends: of the steps of its members."""
    window = record.window(ALONE)
    alone = _progress(window, 0, ends)
    baseline = _Baseline.of(record, ends)
    sets = []
    for job_set in record.sets:
        if measured := record.window(job_set.name):
            sets.append(_set_numbers(job_set, measured, record, ends, baseline))
    flag = None if alone.pauses else window_flag(window, ends[0], None)
    return ProbeNumbers(
        alone=_estimate(alone.rate, alone.relative_error, len(alone.steps) - 1),
        in_turns=baseline.in_turns,
        cycle_s=float(alone.seconds.mean()) if alone.pauses and len(alone.steps) else None,
        alone_flags=(flag,) if flag else (),
        sets=sets,
        notes=baseline.notes,
    )


@dataclass(frozen=True)
class _Baseline:
    """The job alone, to which sets are compared.

    slices: steps/s in each of its turns; None where sets are compared to `progress`, all whole
    cycles of the job by itself. doubt: why no gain can be told.
    """

    progress: Progress
    slices: np.ndarray | None = None
    in_turns: float | None = None
    notes: tuple[str, ...] = ()
    doubt: str | None = None

    @classmethod
    def of(cls, record: ProbeRecord, ends: StepEnds) -> "_Baseline":
        windows = [record.window(name) for name in (ALONE, AGAIN)]
        parts = [_progress(window, 0, ends) for window in windows if window]
        parts = [part for part in parts if len(part.steps)]
        rates = [part.rate for part in parts]
        progress = _joined(parts)
        turns = record.window(IN_TURNS)
        if turns is None:
            doubt = None if _agree(rates) else f"its rate alone was {_listed(rates)} steps/s"
            return cls(progress, doubt=doubt)
        slices = _slices(turns, 0, ends, record.drop_s)
        in_turns = float(slices.mean())
        if not rates or _agree([rates[0], in_turns]):
            return cls(progress, slices, in_turns)
        seen = f"Alone it made {_listed(rates)} steps/s by itself and {in_turns:.3g} in turns"
        if len(rates) > 1 and _agree([rates[1], in_turns]):
            return cls(progress, slices, in_turns, (f"{seen}: the later ones count.",))
        if len(rates) > 1 and _agree(rates):
            note = f"{seen}, beside copies that wait: it is compared to itself by itself."
            return cls(progress, None, in_turns, (note,))
        doubt = f"its rate alone was {_listed([*rates, in_turns])} steps/s"
        return cls(progress, slices, in_turns, doubt=doubt)


def _set_numbers(
    job_set: JobSet,
    window: Window,
    record: ProbeRecord,
    ends: StepEnds,
    baseline: _Baseline,
) -> SetNumbers:
    doubt = baseline.doubt
    if window.spans:
        by_member = np.array([_slices(window, m, ends, record.drop_s) for m in window.members])
        rate, stp, slowdown = _from_turns(by_member, baseline)
        flags = {
            window_flag(window, ends[member], rates)
            for member, rates in zip(window.members, by_member, strict=True)
        }
        if (by_member < HELD_UP * np.median(by_member, axis=1, keepdims=True)).any():
            doubt = doubt or "a job hardly stepped in one of its turns"
    else:
        progress = [_progress(window, m, ends) for m in window.members]
        rate, stp, slowdown = _from_windows(progress, baseline)
        flags = {window_flag(window, ends[m], None) for m in window.members}
        if any(each.pauses for each in progress):
            flags = set()  # whole cycles are counted, pauses and all
        if min(len(each.steps) for each in progress) < LEAST_CYCLES:
            doubt = doubt or f"a job made fewer than {LEAST_CYCLES} whole cycles in the time"
    if stp.low > job_set.n:
        doubt = doubt or f"{job_set.n} jobs did more than {job_set.n} times the work of one alone"
    flags = tuple(sorted(flag for flag in flags if flag))
    return SetNumbers(job_set, rate, stp, slowdown, flags, doubt)


def _from_turns(by_member: np.ndarray, baseline: _Baseline) -> tuple[Estimate, Estimate, Estimate]:
    """Rate, STP and slowdown. by_member: steps/s [members, rounds]."""
    totals = by_member.sum(axis=0)
    slowest = by_member[by_member.mean(axis=1).argmin()]
    if baseline.slices is not None:
        alone, error = baseline.slices, 0.0
    else:
        alone, error = np.full(len(totals), baseline.progress.rate), _error(baseline.progress)
    return (
        _of_samples(totals),
        _of_samples(totals / alone, error),
        _of_samples(alone / np.maximum(slowest, 1e-9), error),
    )


def _from_windows(
    progress: Sequence[Progress], baseline: _Baseline
) -> tuple[Estimate, Estimate, Estimate]:
    """Rate, STP and slowdown. progress: of each member in the set's window."""
    counted = [each for each in progress if len(each.steps)]
    if len(counted) < len(progress):
        unknown = Estimate(np.nan, np.nan, np.nan)
        return unknown, unknown, unknown
    alone = baseline.progress
    rates = np.array([each.rate for each in counted])
    errors = np.array([_error(each) for each in counted])
    freedom = min(len(each.steps) for each in (*counted, alone)) - 1
    total, slowest = rates.sum(), counted[rates.argmin()]
    error = float(np.sqrt(np.sum((rates * errors) ** 2)) / total)
    slow_error = float(np.hypot(_error(slowest), _error(alone)))
    return (
        _estimate(total, error, freedom),
        _estimate(total / alone.rate, float(np.hypot(error, _error(alone))), freedom),
        _estimate(alone.rate / slowest.rate, slow_error, freedom),
    )


def _of_samples(samples: np.ndarray, further_error: float = 0.0) -> Estimate:
    """The mean of positive samples that are independent, with its interval.

    further_error: relative standard error of what all samples were divided by.
    """
    mean, count = float(samples.mean()), len(samples)
    error = float(samples.std(ddof=1) / np.sqrt(count) / mean) if count > 1 and mean else np.nan
    return _estimate(mean, float(np.hypot(error, further_error)), count - 1)


def _estimate(value: float, relative_error: float, freedom: int) -> Estimate:
    if freedom < 1 or not np.isfinite(relative_error):
        return Estimate(float(value), np.nan, np.nan)
    factor = np.exp(stdtrit(freedom, (1 + CONFIDENCE) / 2) * relative_error)
    return Estimate(float(value), float(value / factor), float(value * factor))


def _error(progress: Progress) -> float:
    return progress.relative_error


def _progress(window: Window, member: int, ends: StepEnds) -> Progress:
    return progress_in(ends.get(member, np.empty(0, np.int64)), *window.ends)


def _slices(window: Window, member: int, ends: StepEnds, drop_s: float) -> np.ndarray:
    """Steps/s of a member in each turn of a window."""
    rate = slices_rate(ends[member], window.spans, round(drop_s * 1e9), batch_size=1)
    return np.array(rate.slices)


def _joined(parts: Sequence[Progress]) -> Progress:
    """All cycles of several windows."""
    steps = np.concatenate([part.steps for part in parts] or [np.empty(0)])
    seconds = np.concatenate([part.seconds for part in parts] or [np.empty(0)])
    return Progress(steps, seconds, any(part.pauses for part in parts))


def _agree(rates: Sequence[float]) -> bool:
    return len(rates) < 2 or min(rates) >= (1 - AGREE) * max(rates)


def _listed(rates: Sequence[float]) -> str:
    return " and ".join(f"{rate:.3g}" for rate in rates)
