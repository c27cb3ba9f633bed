"""The tables of a study's advice: what to run of each job, and all its options."""

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis import labels
from analysis.advice.study import Advice, MeasuredOption
from analysis.report.pages import spelling
from analysis.report.pages.layout import Number

OPTION = {  # title of a column → quantity, and how it is written
    "samples/s": ("rate", spelling.bare),
    "STP": ("stp", spelling.span),
    "overlap": ("s", spelling.num),
    "over the fastest alone": ("over_fastest", spelling.num),
    "slowest takes": ("slowdown_worst", spelling.num),
    "memory": ("memory", spelling.num),
}


def _numbers(option: MeasuredOption) -> dict[str, Number]:
    return {
        title: Number(option.numbers[quantity], spell)
        for title, (quantity, spell) in OPTION.items()
    }


def _choice(advice: Advice, option: MeasuredOption) -> str:
    """`advised` (or `undecided`), `most throughput`, both or neither, if there is a choice."""
    words = []
    if advice.sets and option is advice.advised:
        words.append("undecided" if advice.undecided else "advised")
    if advice.sets and option is advice.best:
        words.append("most throughput" + " within the bounds" * advice.any_bound)
    return ", ".join(words)


def summary(advice: Iterable[Advice]) -> pd.DataFrame:
    """What to run of each job that was measured in sets, one row a job and implementation."""
    rows = []
    for of_job in advice:
        if of_job.advised and of_job.sets:
            run = of_job.advised.label
            if of_job.undecided:
                run += ", undecided"
            if of_job.unchecked_memory:
                run += ", bound on memory not checked"
            implementation = labels.implementation(of_job.implementation)
            texts = {"job": labels.job(of_job.job), "written": implementation, "run": run}
            measured_in = {"measured in": Number(of_job.advised.stp, spelling.how_many)}
            rows.append(texts | _numbers(of_job.advised) | measured_in)
    return pd.DataFrame(rows)


def alone_only(advice: Iterable[Advice]) -> str:
    """Names of jobs of which no copies were measured together."""
    names = {}
    for of_job in advice:
        if not of_job.sets:
            implementation = labels.implementation(of_job.implementation)
            names[f"{labels.job(of_job.job)}, {implementation}"] = None
    return "; ".join(names)


def options(advice: Advice, chosen: Sequence[MeasuredOption] = ()) -> pd.DataFrame:
    """These options of a job; by default those that no other beats in everything that counts."""
    rows = []
    for option in chosen or advice.pareto:
        rows.append({"run": option.label, "": _choice(advice, option)} | _numbers(option))
    return pd.DataFrame(rows)


def all_options(advice: Iterable[Advice]) -> pd.DataFrame:
    """Every measured option of every job."""
    rows = []
    for of_job in advice:
        for option in of_job.options:
            texts = {
                "job": of_job.job,
                "written": of_job.implementation,
                "run": option.label,
                "jobs": option.n,
                "method": option.method,
                "pareto": "yes" if option in of_job.pareto else "",
                "chosen": _choice(of_job, option),
            }
            rows.append(texts | _numbers(option))
    return pd.DataFrame(rows)
