"""Advice on the jobs of a study as text: what to run first, then the numbers behind it."""

from math import inf, isfinite
from pathlib import Path

from analysis import labels
from analysis.advice.study import COUNTS, Advice, MeasuredOption, advise, common_caveats, unmeasured
from analysis.estimates import table
from analysis.report.pages import advice_tables, layout

COLUMNS = ["run", "samples/s", "STP", "slowest takes", "memory"]  # that a terminal has room for
SHORT = {"as separate processes": "separate", "on CUDA streams of one process": "on streams"}
LEGEND = (
    "STP: work of all jobs, relative to one alone. Slowest takes: times its time alone. > is "
    f"advised, + is beaten by no other in throughput, slowdown and memory. {COUNTS}"
)


def advice_on_study(
    folder: Path,
    job: str = "",
    max_slowdown: float = inf,
    max_memory_gb: float = inf,
    markdown: bool = False,
) -> str:
    """What to run of each job of a study, or of one job with every set that was measured.

    job: a workload; empty for all. max_slowdown: of the slowest job, times its duration alone.
    max_memory_gb: of all jobs. Raises ValueError for a job that was not measured.
    """
    estimates = table.read_estimates(folder / "estimates.parquet")
    workloads = table.workloads(estimates)
    if job and job not in workloads:
        measured = ", ".join(workloads)
        raise ValueError(f"{folder.name}: '{job}' was not measured; there are: {measured}")
    advice = advise(estimates, job, max_slowdown, max_memory_gb)
    common, parts = common_caveats(advice), []
    for of_job in advice:
        heading = f"{labels.job(of_job.job)}, {labels.implementation(of_job.implementation)}"
        heading = f"**{heading}**" if markdown else heading
        parts.append(f"{heading}\n  {' '.join(of_job.sentences(common))}")
        if markdown:
            parts.append(layout.markdown(advice_tables.options(of_job, of_job.options)))
        elif job:
            parts.append(_columns(of_job))
    bounds = []
    if isfinite(max_slowdown):
        bounds.append(f"slowdown ≤ {max_slowdown:g}")
    if isfinite(max_memory_gb):
        bounds.append(f"memory ≤ {max_memory_gb:g} GB")
    if bounds:
        parts.append(f"Bounds: {', '.join(bounds)}.")
    if job and not markdown:
        parts.append(LEGEND)
    if common:
        parts.append(f"All advice: {' '.join(common)}")
    parts += [unmeasured(estimates, advice), labels.scope(estimates)]
    return "\n\n".join(filter(None, parts))


def _columns(advice: Advice) -> str:
    """All options of a job in columns of a terminal, each with its mark."""
    options = advice_tables.options(advice, advice.options)
    options = options[[title for title in COLUMNS if title in options]]
    names = []
    for option in advice.options:
        name = option.label
        for phrase, short in SHORT.items():
            name = name.replace(phrase, short)
        names.append(f"{_mark(advice, option)} {name}")
    return layout.terminal(options.assign(run=names))


def _mark(advice: Advice, option: MeasuredOption) -> str:
    if option is advice.advised and advice.sets:
        return ">"
    return "+" if option in advice.pareto else " "
