"""What a sweep shows of its runs: counts, hours left, and a table."""

import csv
import io
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from heapq import heapify, heapreplace
from pathlib import Path
from shlex import join
from statistics import fmean

from workflow.collocation.study.redaction import write_private
from workflow.collocation.sweep.record import Outcome, Run, State

TABLE = "runs.csv"
COLUMNS = ("run", "state", "attempts", "start", "end", "exit", "signal", "host", "gpu", "method")
COLUMNS += ("mps", "peak_memory_mb", "reason", "command")


def counts(runs: Iterable[Run], session: int) -> Counter[State]:
    """How many runs are in each state."""
    return Counter(run.state(session) for run in runs)


def seconds_left(runs: list[Run], session: int, now: datetime) -> float | None:
    """Seconds from now until the last run ends, if each takes the mean of those that ended well;
    None before one has in this session, when all slots have had a run, or while none runs.
    """
    durations, ages_s, slots, has_ended = [], [], set(), False
    for run in runs:
        slots |= {
            (attempt.host, attempt.gpu, slot)
            for attempt in run.attempts
            if attempt.session == session and attempt.wanted == 1
            for slot in attempt.slots
        }
        state = run.state(session)
        if state in (State.ended, State.running):
            newest = run.attempts[-1]
            end = datetime.fromisoformat(newest.end) if state is State.ended else now
            span_s = (end - datetime.fromisoformat(newest.start)).total_seconds()
            (durations if state is State.ended else ages_s).append(span_s)
            has_ended |= state is State.ended and newest.session == session
    if not has_ended or not ages_s:
        return None
    mean_s = fmean(durations)
    free_in_s = [max(0.0, mean_s - age_s) for age_s in ages_s]
    free_in_s += [0.0] * (len(slots) - len(ages_s))  # whose next runs start in a moment
    heapify(free_in_s)
    for _ in range(counts(runs, session)[State.waiting]):
        heapreplace(free_in_s, free_in_s[0] + mean_s)
    return max(free_in_s)


def write_table(folder: Path, runs: Iterable[Run], session: int) -> Path:
    """Write runs.csv with a row for each run, of its newest attempt; returns its path."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        newest = vars(run.attempts[-1]) if run.attempts else {}
        row = {"run": run.run, "state": run.state(session), "attempts": len(run.attempts)}
        writer.writerow(newest | row | {"command": join(run.command)})
    write_private(folder / TABLE, text.getvalue(), durable=True)
    return folder / TABLE


def without_mps(runs: Iterable[Run]) -> list[int]:
    """Numbers of runs that ended well and were on the GPU, but not among the daemon's clients."""
    numbers = []
    for run in runs:
        newest = run.attempts[-1] if run.attempts else None
        if newest and newest.outcome == Outcome.ended and newest.mps is False:
            numbers.append(run.run)
    return numbers
