"""Ask, measure, decide: from a request to an advice, which is written as advice.json."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from analysis import labels
from analysis.advice.job import answer
from analysis.advice.job.answer import Job, Measured, Option
from analysis.advice.job.measuring import Study
from analysis.advice.job.request import Request
from analysis.estimates import table as table_of
from analysis.estimates.records import flags
from analysis.estimates.table import Row
from workflow.collocation.study.redaction import redacted, redacted_words, write_private

WAITING = (
    "Rewrite first: it waits for its host {share:.0%} of the time. Try larger batches, more loader "
    "workers or data on the GPU, bf16, torch.compile(mode='reduce-overhead')."
)


def advise(request: Request, study: Study) -> dict:
    """Measure what is left of the study and decide; gives the content of its advice.json.

    Raises ValueError with one line for a job that did not run.
    """
    with study.held():
        job = answer.job_of(study.alone())
        sets = answer.options(job, request)
        if not any(option.prediction for option in sets):  # nothing tells which: a few and more
            sets = [option for option in sets if option.n in (2, 4)]
        chosen = answer.best(sets, request)
        if not request.verify and chosen and not chosen.prediction:
            raise ValueError(f"{job.card}: nothing can be predicted without GRACT and SMACT")
        measured: list[Measured] = []
        if request.verify and chosen:
            measured = _measure(request, study, job, sets, chosen)
        advice = Decision(request, job, sets, chosen, measured).as_json()
        path = study.folder / "advice.json"
        write_private(path, json.dumps(advice, indent=1) + "\n")
        if measured:
            try:
                study.pages()
            except ValueError as error:  # the answer is there all the same
                print(f"no pages: {error}", file=sys.stderr)
    return advice


def _measure(
    request: Request, study: Study, job: Job, sets: Sequence[Option], chosen: Option
) -> list[Measured]:
    """Measure the set that is predicted best, with its rival where both fit on the GPU."""
    rival = answer.rival(sets, chosen, request)
    pair = [option for option in (chosen, rival) if option]
    # A pattern tells of steps too late for turns: the set is measured in a cell of its own.
    turns = request.entry.get("steps", "auto") == "auto"
    together = next((p for p in (pair, pair[:1]) if turns and answer.fits(job, p)), None)
    names = [(option.n, option.method) for option in together or pair[:1]]
    record = study.sets(names, together is not None)
    estimates = table_of.read_estimates(study.folder / "estimates.parquet")
    measured = answer.measured(record, estimates, together or pair[:1], request)
    if not measured:
        raise ValueError(f"{names[0][0]} jobs: measured, and no number counts: {study.folder}")
    return measured


@dataclass(frozen=True)
class Decision:
    """What follows from what was predicted and measured.

    sets: as predicted. chosen: the best of them. measured: those that were measured, if any.
    """

    request: Request
    job: Job
    sets: Sequence[Option]
    chosen: Option | None
    measured: Sequence[Measured]

    @property
    def advised(self) -> Measured | None:
        return answer.decide(self.measured, self.request) if self.measured else None

    def verdict(self) -> str:
        """One sentence: how many, by which method."""
        chosen, advised = self.chosen, self.advised
        if chosen is None:
            return "One at a time: no set respects the bounds, or has room in memory."
        if not self.measured:
            low, high = chosen.prediction.low, chosen.prediction.high
            if _gains_nothing(chosen):
                return f"One at a time: predicted STP {chosen.stp:.2f} at most. Not measured."
            gain = f"Predicted: run {chosen.named}, STP {chosen.stp:.2f} [{low:.2f}, {high:.2f}]"
            return f"{gain}, each job {chosen.n / chosen.stp:.2f} times as long. Not measured."
        if advised is None:
            top = max(self.measured, key=lambda each: each.stp.value)
            if not any(answer.within(each, self.request) for each in self.measured):
                slow = f"{top.option.named} has a slowdown of {labels.span(top.slowdown)}"
                return f"One at a time: no set measured respects the bounds; {slow}."
            return f"One at a time: {top.option.named} has an STP of {labels.span(top.stp)}."
        if not advised.decided:
            return f"Undecided: {advised.option.named} has an STP of {labels.span(advised.stp)}."
        return (
            f"Run {advised.option.named}: {labels.number(advised.stp.value)} times the work of one "
            f"alone, the slowest job takes {labels.number(advised.slowdown.value)} times as long."
        )

    def notes(self) -> list[str]:
        """What to know before the verdict is believed, and what gains more."""
        notes, job = [], self.job
        if job.on_cpu:
            notes.append("On a CPU it predicts nothing, and says nothing about sharing a GPU.")
        if self.request.words[:1] == [sys.executable]:
            notes.append("The script was run by this project's Python.")
        together = flags.split(flags.union(each.stp.flags for each in self.measured))
        for what, flagged in (("alone", job.flags), ("together", together)):
            if flagged:
                notes.append(f"Beware, {what}: {'; '.join(map(flags.meaning, flagged))}.")
        gract = job.shares.get("gract")
        if gract is not None and gract < answer.WAITS:
            notes.append(WAITING.format(share=1 - gract))
        return notes

    def as_json(self) -> dict:
        """Its first keys are those that a recipe takes."""
        request, job, chosen, advised = self.request, self.job, self.chosen, self.advised
        expected = None if self.measured or not chosen or _gains_nothing(chosen) else chosen
        start = expected if not advised else advised.option if advised.decided else None
        bounds = {"slowdown": request.slowdown, "memory_gb": request.memory_gb}
        first = next(iter(self.measured), None)
        return {
            "run": redacted_words(request.words),
            "folder": request.directory,
            "jobs": start.n if start else 1,
            "method": start.method if start else "naive",
            "cores": job.may_use,
            "memory_gb": job.memory_gb or None,
            "asked": redacted(request.title),
            "verdict": self.verdict(),
            "notes": self.notes(),
            "bounds": {name: value if isfinite(value) else None for name, value in bounds.items()},
            "card": job.card,
            "alone": {
                "rate": job.rate,
                "unit": f"{request.unit}/s",
                **job.shares,
                "memory_gb": job.memory_gb if job.card_gb else None,
                "cores": job.cores,
                "joules": job.watts / job.rate if job.watts else None,
                "flags": [*job.flags],
                # In the sets' own cell, where the host may be faster or slower by now.
                "beside_rate": first.rate.value / first.stp.value if first else None,
            },
            "predicted": [
                {"jobs": option.n, "method": option.method, **option.prediction._asdict()}
                for option in self.sets
                if option.prediction
            ],
            "measured": [
                {"jobs": each.option.n, "method": each.option.method}
                | {name: _span(getattr(each, name)) for name in ("rate", "stp", "slowdown")}
                | {"memory_gb": each.memory_gb or (each.option.memory_gb if job.card_gb else None)}
                | {"joules": each.joules, "flags": flags.split(each.stp.flags)}
                for each in self.measured
            ],
        }


def _span(row: Row) -> list[float | None]:
    """The value and the ends of its interval, None where there is none."""
    return [None if value != value else value for value in (row.value, row.low, row.high)]


def _gains_nothing(chosen: Option) -> bool:
    """Whether, by its prediction, jobs are better run one at a time."""
    return chosen.stp <= 1 or chosen.prediction.high < 1 / answer.NEAR
