"""The command `make advise RUN=...`: asks, measures, answers in a few lines, or as JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from math import isfinite

from analysis import estimates as table_of
from analysis import labels
from analysis.job_advice import answer, request
from analysis.job_advice.answer import Job, Measured, Option
from analysis.job_advice.request import Request
from analysis.job_advice.study import Study

SHOWN = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48)  # counts that the table has
TITLES = {"naive": "separate", "mps": "MPS"}
WAITING = (
    "Rewrite first: it waits for its host {share:.0%} of the time. Try larger batches, more loader "
    "workers or data on the GPU, bf16, torch.compile(mode='reduce-overhead')."
)


def run(given: Namespace) -> str:
    """Raises ValueError with one line for what a person got wrong, or a job that did not run."""
    asked = request.read(given)
    settings = request.settings(given.config)
    if not asked.verify and "gpu=cpu" in settings:
        raise ValueError("VERIFY=0: without a GPU's counters nothing is predicted; leave it out")
    study = Study(asked, settings)
    with study.held():
        return _answered(asked, study, given.json)


def _answered(asked: Request, study: Study, as_json: bool) -> str:
    """Measures what is left, decides, and writes advice.json."""
    job = answer.job_of(study.alone())
    if job.shares.get("gract", 1.0) < answer.IDLE:
        raise ValueError(f"{asked.title}: trains, and not on the {job.card}, which was idle")
    sets = answer.options(job, asked)
    if not any(each.prediction for each in sets):  # nothing tells which: a few and more
        sets = [each for each in sets if each.n in (2, 4)]
    chosen = answer.best(sets, asked)
    if not asked.verify and chosen and not chosen.prediction:
        raise ValueError(
            f"{job.card}: nothing is predicted without GRACT and SMACT; leave VERIFY=0 out"
        )
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
    advised = answer.decide(found, asked) if found else None
    said = _json(asked, job, sets, found, chosen, advised, study)
    path = study.folder / "advice.json"
    path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    if found:
        try:
            study.pages()
        except ValueError as error:  # the answer is there all the same
            print(f"no pages: {error}", file=sys.stderr)
    if as_json:
        return json.dumps(said, indent=1)
    return "\n".join(_lines(asked, job, sets, found, chosen, advised, study))


def _lines(
    asked: Request,
    job: Job,
    sets: Sequence[Option],
    found: Sequence[Measured],
    chosen: Option | None,
    advised: Measured | None,
    study: Study,
) -> list[str]:
    """At most 15."""
    lines = [
        f"{asked.title} on {job.card}; {job.may_use} CPU core{'s' * (job.may_use > 1)} for each job"
    ]
    if asked.words[:1] == [sys.executable]:
        lines[0] += "; run by this project's Python"
    if job.on_cpu:
        lines[0] += ". This tries the command on a CPU, and says nothing about sharing a GPU."
    alone = [labels.number(job.rate, f"{asked.unit}/s")]
    alone += [f"{name.upper()} {share:.2f}" for name, share in job.shares.items()]
    alone += [f"{job.memory_gb:.1f} GB"] * bool(job.card_gb) + [f"{job.cores:.1f} cores busy"]
    if job.watts:
        alone.append(f"{job.watts / job.rate:.3g} J a {asked.unit[:-1]}")
    lines.append(f"  alone      {', '.join(alone)}")
    lines += _table(sets)
    if found:  # in the sets' own cell, where the host may be faster or slower by now
        rate = labels.number(found[0].rate.value / found[0].stp.value, f"{asked.unit}/s")
        lines.append(f"  measured   one alone, beside them: {rate}")
    for each in found:
        parts = [
            labels.number(each.rate.value, f"{asked.unit}/s"),
            f"STP {labels.span(each.stp)}",
            f"slowdown {labels.span(each.slowdown)}",
        ]
        memory = each.memory_gb or (each.option.memory_gb if job.card_gb else None)
        parts += [f"{memory:.1f} GB"] if memory else []
        parts += [f"{each.joules:.3g} J a {asked.unit[:-1]}"] if each.joules else []
        lines.append(f"  measured   {each.option.named}: {', '.join(parts)}")
    lines += [_verdict(asked, job, found, chosen, advised)]
    gract = job.shares.get("gract")
    if gract is not None and gract < answer.WAITS:
        lines.append(WAITING.format(share=1 - gract))
    if advised and advised.decided and asked.words and not job.on_cpu:
        lines.append(f"Start it: make recipe ADVICE={study.folder / 'advice.json'}")
    if found:
        lines.append(f"Read in {study.folder}: results.md, explorer.html")
    return lines


def _table(sets: Sequence[Option]) -> list[str]:
    """Predicted STP by count and method, with how far such predictions were off."""
    told = [each for each in sets if each.prediction]
    counts = [n for n in SHOWN if any(each.n == n for each in told)]
    if not counts:
        return []
    lines = ["  predicted  jobs      " + "".join(f"{n:>6}" for n in counts)]
    for method, title in TITLES.items():
        of = {each.n: each for each in told if each.method == method}
        if not of:
            continue
        numbers = "".join(f"{of[n].stp:6.2f}" if n in of else f"{'–':>6}" for n in counts)
        error = next(iter(of.values())).prediction.error
        lines.append(f"   STP       {title:<10}{numbers}   ± {error:.0%} in 9 of 10 sets")
    return lines


def _verdict(
    asked: Request,
    job: Job,
    found: Sequence[Measured],
    chosen: Option | None,
    advised: Measured | None,
) -> str:
    if chosen is None:
        return "One at a time: no set respects the bounds, or has room in memory."
    if not found:
        low, high = chosen.prediction.low, chosen.prediction.high
        if _gains_nothing(chosen):
            return f"One at a time: predicted STP {chosen.stp:.2f} at most. Not measured."
        said = f"Predicted: run {chosen.named}, STP {chosen.stp:.2f} [{low:.2f}, {high:.2f}]"
        return f"{said}, each job {chosen.n / chosen.stp:.2f} times as long. Not measured."
    if advised is None:
        top = max(found, key=lambda each: each.stp.value)
        if not any(answer.within(each, asked) for each in found):
            fewest = min(each.option.n for each in found)
            more = f" Fewer were not measured: MAX={fewest - 1}." if fewest > 2 else ""
            said = f"{top.option.named} has a slowdown of {labels.span(top.slowdown)}"
            return f"One at a time: no set measured respects the bounds; {said}.{more}"
        return f"One at a time: {top.option.named} has an STP of {labels.span(top.stp)}."
    if not advised.decided:
        return f"Undecided: {advised.option.named} has an STP of {labels.span(advised.stp)}."
    return (
        f"Run {advised.option.named}: {labels.number(advised.stp.value)} times the work of one "
        f"alone, the slowest job takes {labels.number(advised.slowdown.value)} times as long."
    )


def _gains_nothing(chosen: Option) -> bool:
    """Whether, by its prediction, jobs are better run one at a time."""
    return chosen.stp <= 1 or chosen.prediction.high < 1 / answer.NEAR


def _json(
    asked: Request,
    job: Job,
    sets: Sequence[Option],
    found: Sequence[Measured],
    chosen: Option | None,
    advised: Measured | None,
    study: Study,
) -> dict:
    """The answer; its first keys are those that `make recipe` takes."""
    one = {"jobs": 1, "method": "naive"}
    expected = None if found or not chosen or _gains_nothing(chosen) else chosen
    told = expected if not advised else advised.option if advised.decided else None
    picked = {"jobs": told.n, "method": told.method} if told else one

    def span(row) -> list[float | None]:
        return [None if value != value else value for value in (row.value, row.low, row.high)]

    return {
        "run": asked.words,
        "folder": asked.directory,
        **picked,
        "sm_percent": None,
        "cores": job.may_use,
        "memory_gb": job.memory_gb or None,
        "asked": asked.title,
        "bounds": {
            name: value if isfinite(value) else None
            for name, value in (("slowdown", asked.slowdown), ("memory_gb", asked.memory_gb))
        },
        "card": job.card,
        "alone": {"rate": job.rate, "unit": f"{asked.unit}/s", **job.shares, "cores": job.cores},
        "predicted": [
            {"jobs": each.n, "method": each.method, **each.prediction._asdict()}
            for each in sets
            if each.prediction
        ],
        "measured": [
            {
                "jobs": each.option.n,
                "method": each.option.method,
                "rate": span(each.rate),
                "stp": span(each.stp),
                "slowdown": span(each.slowdown),
                "memory_gb": each.memory_gb,
                "joules": each.joules,
            }
            for each in found
        ],
        "verdict": _verdict(asked, job, found, chosen, advised),
        "study": str(study.folder),
    }
