"""The command `make advise`: for each job what to run, and what was measured, as text."""

from argparse import Namespace
from collections.abc import Collection
from math import isfinite
from textwrap import indent

from analysis import estimates as table_of
from analysis import labels
from analysis.advice import COUNTS, Advice, advise, common, unmeasured
from analysis.choose import scope
from analysis.pages import contents, tables
from workflow.collocation.spec.errors import bounded

PARETO = f"+ no other set is better in throughput, slowdown and memory. {COUNTS}"
LEGEND = {
    "s": "S: the factor that kernels side by side win; an idle GPU lowers it.",
    "over_fastest": "Over fastest: over one job alone in the fastest way it was written.",
}


def table(advice: Advice, but: Collection[str] = ()) -> str:
    """One job for a terminal: what is advised, without caveats in `but`, then its options, with `+`
    on the Pareto set.
    """
    shown = contents.options(advice, advice.options)
    best = ["+" if option in advice.pareto else " " for option in advice.options]
    shown["run"] = [f"{mark} {run}" for mark, run in zip(best, shown["run"], strict=True)]
    lines = "\n".join([*advice.sentences(but), tables.terminal(shown)])
    job = f"{labels.job(advice.job)}, {labels.implementation(advice.implementation)}"
    return f"{job}\n{indent(lines, '  ')}"


def run(given: Namespace) -> str:
    """The command: a short table for each job."""
    bounded(vars(given), {"slowdown": 1, "memory": 0})
    estimates = table_of.read(given.folder / "estimates.parquet")
    known = table_of.workloads(estimates)
    if given.job and given.job not in known:
        raise ValueError(f"JOB={given.job}: not in this study; there are: {', '.join(known)}")
    found = advise(estimates, given.job, given.slowdown, given.memory)
    said = common(found)
    about = "All advice: " * bool(said) + " ".join(said)
    short = contents.summary(found)
    bounds = (("slowdown", given.slowdown, ""), ("memory", given.memory, " GB"))
    within = [f"{name} ≤ {most:g}{unit}" for name, most, unit in bounds if isfinite(most)]
    every = [option.numbers for each in found for option in each.options]
    legend = [line for name, line in LEGEND.items() if any(numbers[name] for numbers in every)]
    head = [scope(estimates), "\n".join([PARETO, *legend])]
    head += [f"Bounds: {', '.join(within)}."] * bool(within)
    head += [unmeasured(estimates, found), about, "" if short.empty else tables.terminal(short)]
    return "\n\n".join([*filter(None, head), *(table(each, said) for each in found)])
