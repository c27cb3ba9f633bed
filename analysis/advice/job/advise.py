"""From what a probe measured to advice: which sets to start, and what follows from numbers."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from pathlib import Path

from analysis import labels
from analysis.advice import NEAR
from analysis.advice.job import answer
from analysis.advice.job.answer import LoneJob, PredictedSet, SetMeasurement
from analysis.advice.job.numbers import Alone, Estimate, alone_numbers, step_ends
from analysis.advice.job.request import COMMAND_FILE, Request
from analysis.advice.predict import AloneActivity, predict_rescaled
from analysis.estimates.records import flags
from workflow.collocation.record.probe import LoneReading, ProbeRecord, SetGroup
from workflow.collocation.record.run_json import GpuRecord
from workflow.collocation.study.redaction import redacted, redacted_words, write_private

ADVICE_FILE = "advice.json"
FEW = (2, 4)  # numbers of jobs that are measured where nothing can be predicted
BUDGET_STEP_S = 30.0  # to which a longer budget is rounded
WAITING = (
    "Rewrite first: it waits for its host {share:.0%} of the time. Try larger batches, more loader "
    "workers or data on the GPU, bf16, torch.compile(mode='reduce-overhead')."
)


@dataclass
class SetChoice:
    """Chooses the sets that a probe starts, once it has measured the job alone.

    announce: called with a sentence on what is predicted, before it is measured. Afterwards `sets`
    are those that there was a choice of.
    """

    request: Request
    gpu: GpuRecord | None
    announce: Callable[[str], None] = lambda sentence: None
    sets: list[PredictedSet] = field(default_factory=list)

    def __call__(self, reading: LoneReading) -> list[SetGroup]:
        """Groups of sets to load at once.

        Raises ValueError if a prediction was asked for, and nothing can be predicted.
        """
        request = self.request
        job = answer.lone_job(reading, self.gpu, request.entry["batch_size"])
        self.sets = answer.predicted_sets(job, request)
        is_predicted = any(option.prediction for option in self.sets)
        if not is_predicted:
            self.sets = [option for option in self.sets if option.n in FEW]
        if not request.measure_sets:
            if self.sets and not is_predicted:
                raise ValueError(f"{job.card}: nothing can be predicted without GRACT and SMACT")
            return []
        groups = answer.groups_to_start(job, self.sets, request)
        if groups and is_predicted:
            chosen = answer.best_prediction(self.sets, request)
            self.announce(f"predicted: {chosen.label}, STP {chosen.stp:.2f}; measuring it")
        return groups


def advice_of(request: Request, choice: SetChoice, record: ProbeRecord, folder: Path) -> dict:
    """The content of advice.json, which is written to the probe's folder.

    Raises ValueError with one line for a job that did not run.
    """
    ends, batch_size = step_ends(folder), request.entry["batch_size"]
    if not len(ends.get(0, ())) or not record.windows:
        reason = record.problem or "it made no step"
        raise ValueError(f"{redacted(request.title)}: {reason}; log: {folder / 'log'}")
    alone = alone_numbers(record, ends, member=0)
    cores = record.host["usable_cores"]
    methods = ("naive",) if record.no_mps else answer.METHODS
    reading = LoneReading(alone.rate.value, record.telemetry, record.peak_bytes, cores, methods)
    job = answer.lone_job(reading, record.gpu, batch_size, [*alone.flags, *record.flags])
    measured = answer.set_measurements(record, ends, choice.sets, job, batch_size)
    advice = Decision(request, job, choice.sets, measured, record, alone).as_json()
    if request.command:
        write_private(folder / COMMAND_FILE, json.dumps(request.command) + "\n")
    write_private(folder / ADVICE_FILE, json.dumps(advice, indent=1) + "\n")
    return advice


@dataclass(frozen=True)
class Decision:
    """What follows from predictions and measurements.

    sets: those that were predicted. measured: sets that were measured, if any.
    """

    request: Request
    job: LoneJob
    sets: Sequence[PredictedSet]
    measured: Sequence[SetMeasurement]
    record: ProbeRecord
    alone: Alone

    @property
    def chosen(self) -> PredictedSet | None:
        """The best of the predicted sets."""
        return answer.best_prediction(self.sets, self.request)

    @property
    def advised(self) -> SetMeasurement | None:
        return answer.decide(self.measured, self.request) if self.measured else None

    @property
    def start(self) -> PredictedSet | None:
        """The set that a recipe starts; None: one job at a time."""
        if self.measured:
            advised = self.advised
            return advised.predicted if advised and advised.is_decided else None
        if self.record.needed_s or self.request.measure_sets:
            return None
        return self.chosen if self.chosen and not _gains_nothing(self.chosen) else None

    def verdict(self) -> str:
        """One sentence: how many jobs, by which method."""
        if self.record.needed_s:
            return self._undecided_for_time()
        if not self.measured:
            return self._predicted_verdict()
        advised = self.advised
        in_doubt = next((m for m in self.measured if m.numbers.doubt), None)
        if in_doubt and advised is None:
            name = in_doubt.predicted.label
            return f"Undecided on {name}: {in_doubt.numbers.doubt}."
        if advised is None:
            best = max(self.measured, key=lambda measured: measured.stp.value)
            name = best.predicted.label
            if any(measured.is_within(self.request) for measured in self.measured):
                return f"One at a time: {name} has an STP of {labels.interval(*best.stp)}."
            return (
                "One at a time: no set measured respects the bounds; "
                f"{name} has a slowdown of {labels.interval(*best.numbers.slowdown)}."
            )
        name = advised.predicted.label
        if not advised.is_decided:
            return f"Undecided: {name} has an STP of {labels.interval(*advised.stp)}."
        slowdown = labels.number(advised.numbers.slowdown.value)
        return (
            f"Run {name}: {labels.number(advised.stp.value)} times the work of one "
            f"alone, the slowest job takes {slowdown} times as long."
        )

    def _predicted_verdict(self) -> str:
        chosen = self.chosen
        if chosen is None:
            return "One at a time: no set respects the bounds, or has room in memory."
        if self.record.problem:
            return f"Undecided: copies of it do not run together: {self.record.problem}"
        if self.request.measure_sets:
            return "Undecided: fewer than two copies had room in memory."
        if _gains_nothing(chosen):
            return f"One at a time: predicted STP {chosen.stp:.2f} at most. Not measured."
        low, high = chosen.prediction.low, chosen.prediction.high
        return (
            f"Predicted: run {chosen.label}, STP {chosen.stp:.2f} [{low:.2f}, {high:.2f}], "
            f"each job {chosen.slowdown:.2f} times as long. Not measured."
        )

    def _undecided_for_time(self) -> str:
        budget, cycle_s = needed_budget(self.record.needed_s), self.alone.cycle_s
        if cycle_s is None:
            what = "it pauses for long, or its steps are slow"
            return f"Undecided: {what}. Ask again with {budget} or more."
        return (
            f"Undecided: it pauses every {cycle_s:.0f} s, and whole cycles have to be counted. "
            f"Ask again with {budget}."
        )

    def notes(self) -> list[str]:
        """What to know before the verdict is believed, and what gains more than sharing."""
        job = self.job
        notes = [*self.alone.notes]
        if job.on_cpu:
            notes.append("On a CPU it predicts nothing, and says nothing about sharing a GPU.")
        elif self.record.no_mps:
            notes.append(f"Not measured under MPS: {self.record.no_mps}.")
        if self.record.problem:
            notes.append(f"Not all was measured: {self.record.problem}.")
        if self.request.command[:1] == [sys.executable]:
            notes.append("The script was run by this project's Python.")
        notes += self._notes_on_pauses() + self._notes_on_gains()
        together = sorted({flag for each in self.measured for flag in each.numbers.flags})
        for condition, flagged in (("alone", job.flags), ("together", together)):
            if flagged:
                meanings = "; ".join(map(flags.meaning, flagged))
                notes.append(f"Beware, {condition}: {meanings}.")
        gract = job.shares.get("gract")
        if gract is not None and gract < answer.WAITS:
            notes.append(WAITING.format(share=1 - gract))
        return notes

    def _notes_on_pauses(self) -> list[str]:
        lone = self.record.members[0]
        cycle_s, runs = self.alone.cycle_s, len(lone.starts_ns)
        if runs > 1:
            share = "" if self.alone.start_share is None else f" ({self.alone.start_share:.0%})"
            return [
                f"The script ended and was started again, {runs - 1} times: the start of a run"
                f"{share} is part of its rate, as of each job's."
            ]
        if cycle_s:
            return [f"It pauses every {cycle_s:.1f} s; rates are over whole cycles."]
        return []

    def _notes_on_gains(self) -> list[str]:
        """What to know of sets that did more than their number of jobs can."""
        return [
            f"{each.predicted.label} did {each.numbers.above:.2f} times the work of one alone, "
            f"which ran slower than beside others: {each.predicted.n} times is what they can do."
            for each in self.measured
            if each.numbers.above and not each.numbers.doubt
        ]

    def as_json(self) -> dict:
        """The content of advice.json; its first keys are those of a Recipe."""
        request, job, start = self.request, self.job, self.start
        bounds = {"slowdown": request.max_slowdown, "memory_gb": request.max_memory_gb}
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
            "predicted": [self._as_predicted(o) for o in self.sets if o.prediction],
            "measured": [self._as_measured(measured) for measured in self.measured],
            "seconds": self.record.seconds,
        }

    def _alone(self) -> dict:
        job, batch_size = self.job, self.request.entry["batch_size"]
        in_turns = self.alone.in_turns
        return {
            "rate": None if isnan(job.rate) else job.rate,
            "interval": as_list(self.alone.rate, batch_size),
            "unit": f"{self.request.unit}/s",
            "optimizer": self.record.members[0].optimizer,
            **job.shares,
            "memory_gb": job.memory_gb if job.card_gb else None,
            "cores": job.busy_cores,
            "joules": job.watts / job.rate if job.watts and job.rate > 0 else None,
            "flags": [*job.flags],
            "beside_rate": in_turns and in_turns * batch_size,
        }

    def _as_predicted(self, option: PredictedSet) -> dict:
        """A predicted set for advice.json, corrected by the set of its method that is nearest."""
        alike = [m for m in self.measured if m.predicted.method == option.method]
        alike = [m for m in alike if m.numbers.doubt is None]
        prediction = option.prediction
        if alike:
            nearest = min(alike, key=lambda measured: abs(measured.predicted.n - option.n))
            alone = AloneActivity(self.job.shares["gract"], self.job.shares["smact"])
            prediction = predict_rescaled(
                option.method, alone, option.n, nearest.predicted.n, nearest.stp.value
            )
        rescaled = {"rescaled": bool(alike)}
        return {"jobs": option.n, "method": option.method, **prediction._asdict(), **rescaled}

    def _as_measured(self, measured: SetMeasurement) -> Mapping:
        """A measured set for advice.json; memory that was not read is the predicted one."""
        numbers, predicted = measured.numbers, measured.predicted
        predicted_gb = predicted.memory_gb if self.job.card_gb else None
        return {
            "jobs": predicted.n,
            "method": predicted.method,
            "rate": as_list(numbers.rate, self.request.entry["batch_size"]),
            "stp": as_list(numbers.stp),
            "slowdown": as_list(numbers.slowdown),
            "memory_gb": measured.memory_gb or predicted_gb,
            "joules": measured.joules,
            "flags": [*numbers.flags],
            "doubt": numbers.doubt,
        }


def needed_budget(seconds: float) -> str:
    """The option that asks for so much time: `--budget 4.5m`."""
    return f"--budget {BUDGET_STEP_S * math.ceil(seconds / BUDGET_STEP_S) / 60:g}m"


def as_list(estimate: Estimate, factor: float = 1) -> list[float | None]:
    """[value, low, high] times a factor, with None for what is not known."""
    return [None if isnan(end) else factor * end for end in estimate]


def _gains_nothing(chosen: PredictedSet) -> bool:
    """True if the prediction says that jobs are better run one at a time."""
    return chosen.stp <= 1 or chosen.prediction.high < 1 / NEAR
