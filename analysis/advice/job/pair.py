"""Advice on two different jobs: whether to run them together, by which method, and for whom."""

import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path

from analysis import labels
from analysis.advice import NEAR
from analysis.advice.job.advise import ADVICE_FILE, as_list, needed_budget
from analysis.advice.job.answer import SIMPLER
from analysis.advice.job.numbers import (
    Alone,
    StepEnds,
    Together,
    alone_numbers,
    step_ends,
    together_numbers,
)
from analysis.advice.job.request import CPU, Request
from analysis.estimates.records import flags
from workflow.collocation.record.probe import ProbeRecord
from workflow.collocation.study.redaction import redacted, write_private

JOBS = 2


def advice_on_pair(requests: Sequence[Request], record: ProbeRecord, folder: Path) -> dict:
    """The content of advice.json on two jobs, which is written to the probe's folder.

    Raises ValueError with one line for a job that did not run.
    """
    if record.problem and not record.sets:
        raise ValueError(f"{record.problem}; log: {folder / 'log'}")
    ends = step_ends(folder)
    alone = [alone_numbers(record, ends, job) for job in range(JOBS)]
    together = _together(record, ends)
    advice = {
        "asked": [redacted(request.title) for request in requests],
        "verdict": _verdict(record, requests, together),
        "notes": _notes(record, alone, together),
        "card": record.gpu.name if record.gpu else CPU,
        "cores": record.host["usable_cores"],
        "alone": [
            {
                "rate": as_list(each.rate, request.entry["batch_size"]),
                "unit": f"{request.unit}/s",
                "optimizer": record.members[job].optimizer,
            }
            for job, (each, request) in enumerate(zip(alone, requests, strict=True))
        ],
        "together": [
            {
                "method": method,
                "stp": as_list(numbers.stp),
                "slowdowns": [as_list(slowdown) for slowdown in numbers.slowdowns],
                "time": None if isnan(numbers.stp.value) else time_of_equal_runs(numbers),
                "flags": [*numbers.flags],
                "doubt": numbers.doubt,
            }
            for method, numbers in together.items()
        ],
        "seconds": record.seconds,
    }
    write_private(folder / ADVICE_FILE, json.dumps(advice, indent=1) + "\n")
    return advice


def time_of_equal_runs(numbers: Together) -> float:
    """How long both jobs take together, over how long they take one after the other.

    Of runs that take as long as each other alone: once one has ended, the other runs alone.
    """
    quick, slow = sorted(slowdown.value for slowdown in numbers.slowdowns)
    return (quick + (1 - quick / slow)) / JOBS


def _together(record: ProbeRecord, ends: StepEnds) -> dict[str, Together]:
    """Method → what both jobs did together."""
    together = {}
    for job_set in record.sets:
        if window := record.window(job_set.name):
            alone = [alone_numbers(record, ends, job, beside=window) for job in range(JOBS)]
            together[job_set.method] = together_numbers(window, ends, alone)
    return together


def _verdict(
    record: ProbeRecord, requests: Sequence[Request], together: dict[str, Together]
) -> str:
    if record.needed_s:
        budget = needed_budget(record.needed_s)
        return f"Undecided: a job pauses too rarely for this time. Ask again with {budget}."
    if not together:
        return f"Undecided: they do not run together: {record.problem}"
    method, best = max(together.items(), key=lambda item: item[1].stp.value)
    separate = together.get("naive")
    if separate and separate.stp.value >= SIMPLER * best.stp.value:
        method, best = "naive", separate
    name = labels.method_phrase(method)
    if best.doubt:
        return f"Undecided {name}: {best.doubt}."
    gain = labels.interval(*best.stp)
    if best.stp.low <= 1 <= best.stp.high:
        return f"Undecided: {name} both do {gain} times the work of one at a time."
    if NEAR * best.stp.value <= 1:
        return f"One after the other: {name} both do {gain} times the work."
    slowdowns = [labels.number(slowdown.value) for slowdown in best.slowdowns]
    return (
        f"Run both {name}: {labels.number(best.stp.value)} times the work of one at a time. "
        f"{_name(requests[0])} takes {slowdowns[0]} times as long as alone, {_name(requests[1])} "
        f"{slowdowns[1]} times; runs as long as each other end after "
        f"{time_of_equal_runs(best):.0%} of the time of one after the other."
    )


def _name(request: Request) -> str:
    return f"'{redacted(request.title)}'"


def _notes(record: ProbeRecord, alone: Sequence[Alone], together: dict[str, Together]) -> list[str]:
    notes = [note for each in alone for note in each.notes]
    if record.gpu is None:
        notes.append("On a CPU it says nothing about sharing a GPU.")
    elif "mps" not in together and not record.needed_s:
        notes.append("Not measured under MPS: it is not there, or memory has no room beside.")
    seen = {flag for each in (*alone, *together.values()) for flag in each.flags}
    if seen := sorted(seen | {*record.flags}):
        notes.append(f"Beware: {'; '.join(map(flags.meaning, seen))}.")
    return notes
