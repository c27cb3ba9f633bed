"""The command `make advise RUN=...`: asks, measures, answers in a few lines, or as JSON."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from analysis import estimates as table_of
from analysis import labels, predict
from analysis.estimates import Row
from analysis.job_advice import answer, request
from analysis.job_advice.answer import Job, Measured, Option
from analysis.job_advice.request import Request
from analysis.job_advice.study import Study
from analysis.records import flags
from workflow.collocation.spec.redaction import redacted, redacted_words, write_private

WAITING = (
    "Rewrite first: it waits for its host {share:.0%} of the time. Try larger batches, more loader "
    "workers or data on the GPU, bf16, torch.compile(mode='reduce-overhead')."
)


def run(given: Namespace) -> str:
    """Raises ValueError with one line for what a person got wrong, or a job that did not run."""
    asked = request.read(given)
    study = Study(asked, request.settings(given.config))
    with study.held():
        return _answered(asked, study, given.json)


def _answered(asked: Request, study: Study, as_json: bool) -> str:
    """Measures what is left, decides, and writes advice.json."""
    job = answer.job_of(study.alone())
    sets = answer.options(job, asked)
    if not any(each.prediction for each in sets):  # nothing tells which: a few and more
        sets = [each for each in sets if each.n in (2, 4)]
    chosen = answer.best(sets, asked)
    if not asked.verify and chosen and not chosen.prediction:
        raise ValueError(f"{job.card}: VERIFY=0 needs GRACT and SMACT; leave it out")
    found: list[Measured] = []
    if asked.verify and chosen:
        beside = answer.rival(sets, chosen, asked)
        pair = [each for each in (chosen, beside) if each]
        # A pattern tells of steps too late for turns: the set is measured in a cell of its own.
        turns = asked.entry.get("steps", "auto") == "auto"
        together = next((p for p in (pair, pair[:1]) if turns and answer.fits(job, p)), None)
        names = [(each.n, each.method) for each in together or pair[:1]]
        record = study.sets(names, together is not None)
        estimates = table_of.read(study.folder / "estimates.parquet")
        found = answer.measured(record, estimates, together or pair[:1], asked)
        if not found:
            raise ValueError(f"{names[0][0]} jobs: measured, and no number counts: {study.folder}")
    said = Answer(asked, job, sets, chosen, found, study.folder)
    path, text = study.folder / "advice.json", json.dumps(said.as_json(), indent=1)
    write_private(path, text + "\n")
    if found:
        try:
            study.pages()
        except ValueError as error:  # the answer is there all the same
            print(f"no pages: {error}", file=sys.stderr)
    return text if as_json else "\n".join(said.lines())


@dataclass(frozen=True)
class Answer:
    """sets: as predicted. chosen: the best of them. found: those measured, if any."""

    asked: Request
    job: Job
    sets: Sequence[Option]
    chosen: Option | None
    found: Sequence[Measured]
    folder: Path

    @property
    def advised(self) -> Measured | None:
        return answer.decide(self.found, self.asked) if self.found else None

    def lines(self) -> list[str]:
        """At most 15."""
        asked, job = self.asked, self.job
        plural = "s" * (job.may_use > 1)
        first = f"{asked.title} on {job.card}; {job.may_use} CPU core{plural} for each job"
        if asked.words[:1] == [sys.executable]:
            first += "; run by this project's Python"
        if job.on_cpu:
            first += ". On a CPU it predicts nothing, and says nothing about sharing a GPU."
        alone = [labels.number(job.rate, f"{asked.unit}/s")]
        alone += [f"{name.upper()} {share:.2f}" for name, share in job.shares.items()]
        alone += [f"{job.memory_gb:.1f} GB"] * bool(job.card_gb) + [f"{job.cores:.1f} cores busy"]
        if job.watts:
            alone.append(f"{job.watts / job.rate:.3g} J a {asked.unit[:-1]}")
        told = {
            method: {o.n: o.prediction for o in self.sets if o.method == method and o.prediction}
            for method in answer.METHODS
        }
        lines = [first, f"  alone      {', '.join(alone)}", *predict.lines(told)]
        if self.found:  # in the sets' own cell, where the host may be faster or slower by now
            one = self.found[0].rate.value / self.found[0].stp.value
            rate = labels.number(one, f"{asked.unit}/s")
            lines.append(f"  measured   one alone, beside them: {rate}")
        for each in self.found:
            parts = [labels.number(each.rate.value, f"{asked.unit}/s")]
            parts += [f"STP {labels.span(each.stp)}", f"slowdown {labels.span(each.slowdown)}"]
            memory = each.memory_gb or (each.option.memory_gb if job.card_gb else None)
            parts += [f"{memory:.1f} GB"] if memory else []
            parts += [f"{each.joules:.3g} J a {asked.unit[:-1]}"] if each.joules else []
            lines.append(f"  measured   {each.option.named}: {', '.join(parts)}")
        if told := flags.split(flags.union(each.stp.flags for each in self.found)):
            lines.append(f"  beware     {'; '.join(map(flags.meaning, told))}")
        lines.append(self.verdict())
        gract = job.shares.get("gract")
        if gract is not None and gract < answer.WAITS:
            lines.append(WAITING.format(share=1 - gract))
        if self.advised and self.advised.decided and asked.words and not job.on_cpu:
            lines.append(f"Start it: make recipe ADVICE={self.folder / 'advice.json'}")
        if (self.folder / "explorer.html").exists():
            lines.append(f"Read in {self.folder}: results.md, explorer.html")
        return lines

    def verdict(self) -> str:
        """One sentence: how many, by which method."""
        chosen, advised = self.chosen, self.advised
        if chosen is None:
            return "One at a time: no set respects the bounds, or has room in memory."
        if not self.found:
            low, high = chosen.prediction.low, chosen.prediction.high
            if _gains_nothing(chosen):
                return f"One at a time: predicted STP {chosen.stp:.2f} at most. Not measured."
            said = f"Predicted: run {chosen.named}, STP {chosen.stp:.2f} [{low:.2f}, {high:.2f}]"
            return f"{said}, each job {chosen.n / chosen.stp:.2f} times as long. Not measured."
        if advised is None:
            top = max(self.found, key=lambda each: each.stp.value)
            if not any(answer.within(each, self.asked) for each in self.found):
                said = f"{top.option.named} has a slowdown of {labels.span(top.slowdown)}"
                return f"One at a time: no set measured respects the bounds; {said}."
            return f"One at a time: {top.option.named} has an STP of {labels.span(top.stp)}."
        if not advised.decided:
            return f"Undecided: {advised.option.named} has an STP of {labels.span(advised.stp)}."
        return (
            f"Run {advised.option.named}: {labels.number(advised.stp.value)} times the work of one "
            f"alone, the slowest job takes {labels.number(advised.slowdown.value)} times as long."
        )

    def as_json(self) -> dict:
        """Its first keys are those that `make recipe` takes."""
        asked, job, chosen, advised = self.asked, self.job, self.chosen, self.advised
        expected = None if self.found or not chosen or _gains_nothing(chosen) else chosen
        told = expected if not advised else advised.option if advised.decided else None
        bounds = {"slowdown": asked.slowdown, "memory_gb": asked.memory_gb}
        alone = {"rate": job.rate, "unit": f"{asked.unit}/s", **job.shares, "cores": job.cores}
        return {
            "run": redacted_words(asked.words),
            "folder": asked.directory,
            "jobs": told.n if told else 1,
            "method": told.method if told else "naive",
            "cores": job.may_use,
            "memory_gb": job.memory_gb or None,
            "asked": redacted(asked.title),
            "bounds": {name: value if isfinite(value) else None for name, value in bounds.items()},
            "card": job.card,
            "alone": alone,
            "predicted": [
                {"jobs": each.n, "method": each.method, **each.prediction._asdict()}
                for each in self.sets
                if each.prediction
            ],
            "measured": [
                {"jobs": each.option.n, "method": each.option.method}
                | {name: _span(getattr(each, name)) for name in ("rate", "stp", "slowdown")}
                | {"memory_gb": each.memory_gb, "joules": each.joules}
                | {"flags": flags.split(each.stp.flags)}
                for each in self.found
            ],
            "verdict": self.verdict(),
            "study": str(self.folder),
        }


def _span(row: Row) -> list[float | None]:
    return [None if value != value else value for value in (row.value, row.low, row.high)]


def _gains_nothing(chosen: Option) -> bool:
    """Whether, by its prediction, jobs are better run one at a time."""
    return chosen.stp <= 1 or chosen.prediction.high < 1 / answer.NEAR
