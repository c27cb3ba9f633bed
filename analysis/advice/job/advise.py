"""From a request to advice: measure the job alone, predict sets, measure some of them, decide."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, isnan

from analysis import labels
from analysis.advice import NEAR
from analysis.advice.job import answer
from analysis.advice.job.answer import LoneJob, PredictedSet, SetMeasurement
from analysis.advice.job.measuring import AdviceStudy
from analysis.advice.job.request import Request
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.estimates.table import Row
from workflow.collocation.study.redaction import redacted, redacted_words, write_private

FEW = (2, 4)  # numbers of jobs that are measured where nothing can be predicted
WAITING = (
    "Rewrite first: it waits for its host {share:.0%} of the time. Try larger batches, more loader "
    "workers or data on the GPU, bf16, torch.compile(mode='reduce-overhead')."
)


def advise(request: Request, study: AdviceStudy) -> dict:
    """Answer a request, measuring what its study lacks; returns the content of advice.json.

    Raises ValueError with one line for a job that did not run.
    """
    with study.locked():
        job = answer.lone_job(study.measure_alone())
        sets = answer.predicted_sets(job, request)
        if not any(option.prediction for option in sets):
            sets = [option for option in sets if option.n in FEW]
        chosen = answer.best_prediction(sets, request)
        if not request.measure_sets and chosen and not chosen.prediction:
            raise ValueError(f"{job.card}: nothing can be predicted without GRACT and SMACT")
        measured: list[SetMeasurement] = []
        if request.measure_sets and chosen:
            measured = _measure(request, study, job, sets, chosen)
        advice = Decision(request, job, sets, chosen, measured).as_json()
        write_private(study.folder / "advice.json", json.dumps(advice, indent=1) + "\n")
        if measured:
            try:
                study.make_pages()
            except ValueError as error:  # the advice does not depend on pages
                print(f"no pages: {error}", file=sys.stderr)
    return advice


def _measure(
    request: Request,
    study: AdviceStudy,
    job: LoneJob,
    sets: Sequence[PredictedSet],
    chosen: PredictedSet,
) -> list[SetMeasurement]:
    """Measure the chosen set, and its rival in turns with it where both fit on the GPU."""
    rival = answer.rival_of(chosen, sets, request)
    wanted, interleaved = [chosen], False
    # Jobs whose output counts their steps report them too late to take turns.
    if request.entry.get("steps", "auto") == "auto":
        pair = [chosen, rival] if rival else [chosen]
        for candidates in (pair, [chosen]):
            if answer.fit_together(job, candidates):
                wanted, interleaved = candidates, True
                break
    record = study.measure_sets(wanted, interleaved)
    estimates = table.read_estimates(study.folder / "estimates.parquet")
    measured = answer.set_measurements(record, estimates, wanted, request)
    if not measured:
        raise ValueError(f"{chosen.n} jobs: measured, and no number counts: {study.folder}")
    return measured


@dataclass(frozen=True)
class Decision:
    """What follows from predictions and measurements.

    chosen: the best of the predicted sets. measured: sets that were measured, if any.
    """

    request: Request
    job: LoneJob
    sets: Sequence[PredictedSet]
    chosen: PredictedSet | None
    measured: Sequence[SetMeasurement]

    @property
    def advised(self) -> SetMeasurement | None:
        return answer.decide(self.measured, self.request) if self.measured else None

    @property
    def start(self) -> PredictedSet | None:
        """The set that a recipe starts; None: one job at a time."""
        if self.measured:
            advised = self.advised
            return advised.predicted if advised and advised.is_decided else None
        return self.chosen if self.chosen and not _gains_nothing(self.chosen) else None

    def verdict(self) -> str:
        """One sentence: how many jobs, by which method."""
        chosen, advised = self.chosen, self.advised
        if chosen is None:
            return "One at a time: no set respects the bounds, or has room in memory."
        if not self.measured:
            if _gains_nothing(chosen):
                return f"One at a time: predicted STP {chosen.stp:.2f} at most. Not measured."
            low, high = chosen.prediction.low, chosen.prediction.high
            return (
                f"Predicted: run {chosen.label}, STP {chosen.stp:.2f} [{low:.2f}, {high:.2f}], "
                f"each job {chosen.slowdown:.2f} times as long. Not measured."
            )
        if advised is None:
            best = max(self.measured, key=lambda measured: measured.stp.value)
            name = best.predicted.label
            if any(measured.is_within(self.request) for measured in self.measured):
                return f"One at a time: {name} has an STP of {labels.span(best.stp)}."
            return (
                "One at a time: no set measured respects the bounds; "
                f"{name} has a slowdown of {labels.span(best.slowdown)}."
            )
        name = advised.predicted.label
        if not advised.is_decided:
            return f"Undecided: {name} has an STP of {labels.span(advised.stp)}."
        return (
            f"Run {name}: {labels.number(advised.stp.value)} times the work of one "
            f"alone, the slowest job takes {labels.number(advised.slowdown.value)} times as long."
        )

    def notes(self) -> list[str]:
        """What to know before the verdict is believed, and what gains more than sharing."""
        notes, job = [], self.job
        if job.on_cpu:
            notes.append("On a CPU it predicts nothing, and says nothing about sharing a GPU.")
        if self.request.command[:1] == [sys.executable]:
            notes.append("The script was run by this project's Python.")
        together = flags.split(flags.union(measured.stp.flags for measured in self.measured))
        for condition, flagged in (("alone", job.flags), ("together", together)):
            if flagged:
                meanings = "; ".join(map(flags.meaning, flagged))
                notes.append(f"Beware, {condition}: {meanings}.")
        gract = job.shares.get("gract")
        if gract is not None and gract < answer.WAITS:
            notes.append(WAITING.format(share=1 - gract))
        return notes

    def as_json(self) -> dict:
        """The content of advice.json; its first keys are those of a Recipe."""
        request, job, start = self.request, self.job, self.start
        bounds = {"slowdown": request.max_slowdown, "memory_gb": request.max_memory_gb}
        predicted = [option for option in self.sets if option.prediction]
        return {
            "run": redacted_words(request.command),
            "folder": request.directory,
            "jobs": start.n if start else 1,
            "method": start.method if start else "naive",
            "cores": job.usable_cores,
            "memory_gb": job.memory_gb or None,
            "asked": redacted(request.title),
            "verdict": self.verdict(),
            "notes": self.notes(),
            "bounds": {name: most if isfinite(most) else None for name, most in bounds.items()},
            "card": job.card,
            "alone": self._alone(),
            "predicted": [
                {"jobs": option.n, "method": option.method, **option.prediction._asdict()}
                for option in predicted
            ],
            "measured": [self._as_measured(measured) for measured in self.measured],
        }

    def _alone(self) -> dict:
        job, in_turns = self.job, None
        if self.measured:  # in the cell of the sets, where the host may be faster or slower
            in_turns = self.measured[0].rate.value / self.measured[0].stp.value
        return {
            "rate": job.rate,
            "unit": f"{self.request.unit}/s",
            **job.shares,
            "memory_gb": job.memory_gb if job.card_gb else None,
            "cores": job.busy_cores,
            "joules": job.watts / job.rate if job.watts else None,
            "flags": [*job.flags],
            "beside_rate": in_turns,
        }

    def _as_measured(self, measured: SetMeasurement) -> dict:
        """A measured set for advice.json; memory that was not read is the predicted one."""
        predicted_gb = measured.predicted.memory_gb if self.job.card_gb else None
        return {
            "jobs": measured.predicted.n,
            "method": measured.predicted.method,
            "rate": _interval(measured.rate),
            "stp": _interval(measured.stp),
            "slowdown": _interval(measured.slowdown),
            "memory_gb": measured.memory_gb or predicted_gb,
            "joules": measured.joules,
            "flags": flags.split(measured.stp.flags),
        }


def _interval(estimate: Row) -> list[float | None]:
    """[value, low, high], with None for what is not known."""
    ends = (estimate.value, estimate.low, estimate.high)
    return [None if isnan(end) else end for end in ends]


def _gains_nothing(chosen: PredictedSet) -> bool:
    """True if the prediction says that jobs are better run one at a time."""
    return chosen.stp <= 1 or chosen.prediction.high < 1 / NEAR
