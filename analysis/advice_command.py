"""The command `make advise`: for each job what to run, and what was measured, as text."""

from argparse import Namespace
from collections.abc import Collection
from textwrap import indent

from analysis import estimates as table_of
from analysis import labels
from analysis.advice import Advice, advise, common, unmeasured
from analysis.choose import scope
from analysis.pages import contents, tables
from workflow.collocation.spec.errors import bounded

LEGEND = """\
+ no other set is better in throughput, slowdown and memory; sets with limits of SMs or priorities
are left out (see results.md).
S: the factor that kernels side by side win; an idle GPU lowers it.
Over fastest: over one job alone in the fastest way it was written."""


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
    known, bounds = table_of.workloads(estimates), {"slowdown": "", "memory": " GB"}
    if given.job and given.job not in known:
        raise ValueError(f"JOB={given.job}: not in this study; there are: {', '.join(known)}")
    found = advise(estimates, given.job, given.slowdown, given.memory)
    said = common(found)
    about = "All advice: " * bool(said) + " ".join(said)
    short = contents.summary(found)
    said_of = (f"{n} ≤ {getattr(given, n):g}{unit}" for n, unit in bounds.items())
    within = ", ".join(said for said in said_of if "inf" not in said)
    within = f"Within the bounds: {within}." * bool(within)
    head = (scope(estimates), LEGEND, within, unmeasured(estimates, found), about)
    head += ("" if short.empty else tables.terminal(short),)
    return "\n\n".join([*filter(None, head), *(table(each, said) for each in found)])
