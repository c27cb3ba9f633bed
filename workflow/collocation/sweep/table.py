"""What a sweep shows of its runs: counts, hours left, and a table."""

import csv
import io
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from shlex import join

from workflow.collocation.sweep.journal import write_text
from workflow.collocation.sweep.record import Outcome, Run, State

TABLE = "runs.csv"
COLUMNS = ("run", "state", "attempts", "start", "end", "exit", "signal", "host", "gpu", "method")
COLUMNS += ("mps", "peak_memory_mb", "reason", "command")


def counts(runs: Iterable[Run], session: int) -> Counter[State]:
    """How many runs are in each state."""
    return Counter(run.state(session) for run in runs)


def seconds_left(runs: list[Run], session: int) -> float | None:
    """Seconds until the last run ends, from the mean of those that ended well; None before one."""
    durations = []
    for run in runs:
        if run.state(session) is State.ended:
            newest = run.attempts[-1]
            span = datetime.fromisoformat(newest.end) - datetime.fromisoformat(newest.start)
            durations.append(span.total_seconds())
    number = counts(runs, session)
    at_once = number[State.running]
    if not durations or not at_once:
        return None
    mean_s = sum(durations) / len(durations)
    return mean_s * (number[State.waiting] + at_once / 2) / at_once


def write_table(folder: Path, runs: Iterable[Run], session: int) -> Path:
    """Write runs.csv with a row for each run, of its newest attempt; returns its path."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        newest = vars(run.attempts[-1]) if run.attempts else {}
        row = {"run": run.run, "state": run.state(session), "attempts": len(run.attempts)}
        writer.writerow(newest | row | {"command": join(run.command)})
    write_text(folder / TABLE, text.getvalue())
    return folder / TABLE


def without_mps(runs: Iterable[Run]) -> list[int]:
    """Numbers of runs that ended well and were on the GPU, but not among the daemon's clients."""
    numbers = []
    for run in runs:
        newest = run.attempts[-1] if run.attempts else None
        if newest and newest.outcome == Outcome.ended and newest.mps is False:
            numbers.append(run.run)
    return numbers
