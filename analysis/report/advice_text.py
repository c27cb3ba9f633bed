"""Advice on the jobs of a study as text: what to run first, then the numbers behind it."""

from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path

import pandas as pd

from analysis import labels
from analysis.advice.study import COUNTS, Advice, advise, common, unmeasured
from analysis.choose import scope
from analysis.estimates import table as table_of
from analysis.report.pages import contents, tables

SHOWN = ["run", "samples/s", "STP", "slowest takes", "memory"]  # columns that a terminal has
SHORT = {"as separate processes": "separate", "on CUDA streams of one process": "on streams"}
LEGEND = (
    "STP: work of the set, relative to one job alone. Slowest takes: times its time alone. > is "
    f"advised, + is beaten by no other in throughput, slowdown and memory. {COUNTS}"
)


def advice_on_study(
    folder: Path,
    job: str = "",
    slowdown: float = inf,
    memory_gb: float = inf,
    markdown: bool = False,
) -> str:
    """What to run of each job of a study, or of one job with every set that was measured.

    job: this workload alone. slowdown: most that the slowest job may take, times its time alone.
    memory_gb: most that a set may use. markdown: tables of Markdown. Raises ValueError for a job
    that was not measured.
    """
    estimates = table_of.read_estimates(folder / "estimates.parquet")
    workloads = table_of.workloads(estimates)
    if job and job not in workloads:
        raise ValueError(
            f"{folder.name}: '{job}' was not measured; there are: {', '.join(workloads)}"
        )
    advices = advise(estimates, job, slowdown, memory_gb)
    shared = common(advices)
    parts = []
    for advice in advices:
        sentences = " ".join(advice.sentences(shared))
        heading = f"{labels.job(advice.job)}, {labels.implementation(advice.implementation)}"
        parts.append(f"{f'**{heading}**' if markdown else heading}\n  {sentences}")
        if job or markdown:
            options = contents.options(advice, advice.options)
            parts.append(tables.markdown(options) if markdown else _columns(advice, options))
    bounds = (("slowdown", slowdown, ""), ("memory", memory_gb, " GB"))
    within = [f"{name} ≤ {most:g}{unit}" for name, most, unit in bounds if isfinite(most)]
    parts += [f"Bounds: {', '.join(within)}."] * bool(within)
    parts += [LEGEND] * bool(job and not markdown)
    parts += [f"All advice: {' '.join(shared)}"] * bool(shared)
    parts += [unmeasured(estimates, advices), scope(estimates)]
    return "\n\n".join(filter(None, parts))


def _columns(advice: Advice, options: pd.DataFrame) -> str:
    """A job's sets in columns of a terminal, each with its mark."""
    shown = options[[title for title in SHOWN if title in options]].copy()
    shown["run"] = [
        f"{_mark(advice, option)} {label}"
        for option, label in zip(advice.options, _short(shown["run"]), strict=True)
    ]
    return tables.terminal(shown)


def _mark(advice: Advice, option: object) -> str:
    if option == advice.advised and advice.sets:
        return ">"
    return "+" if option in advice.pareto else " "


def _short(names: Sequence[str]) -> list[str]:
    for long, short in SHORT.items():
        names = [name.replace(long, short) for name in names]
    return list(names)
