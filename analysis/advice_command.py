"""The command `make advise`: for each job what to run, and what was measured, as text."""

from argparse import Namespace
from collections.abc import Collection

import pandas as pd

from analysis import choose, labels
from analysis import estimates as table_of
from analysis.advice import Advice, advise, common, unmeasured


def table(advice: Advice, but: Collection[str] = ()) -> str:
    """One job for a terminal: what is advised, without caveats in `but`, then its options, with `*`
    on the Pareto set.
    """
    turned = choose.turned(option.stp for option in advice.options)
    rows = []
    for option in advice.options:
        row = {"": f"{'*' if option in advice.pareto else ' '} {option.label}"}
        row["samples/s"] = labels.number(option.rate and option.rate.value)
        mark = choose.TURNS * (option.stp.id in turned)
        row["throughput gain"] = labels.span(option.stp) + mark
        for title, e in (("slowest takes", option.slowdown), ("memory", option.memory)):
            row[title] = labels.number(e and e.value, e.unit if e else "")
        for title, e in (("S", option.s), ("over fastest", option.over_fastest)):
            row[title] = labels.number(e and e.value)
        rows.append(row)
    shown = pd.DataFrame(rows)
    shown = shown.loc[:, (shown != "–").any()]
    columns = {title: [title, *shown[title]] for title in shown}
    widths = {title: max(map(len, column)) for title, column in columns.items()}
    lines = [f"{labels.job(advice.job)}, {labels.implementation(advice.implementation)}"]
    lines += [f"  {sentence}" for sentence in advice.sentences(but)]
    for cells in zip(*columns.values(), strict=True):
        pairs = zip(cells, widths.items(), strict=True)
        spelt = [c.rjust(width) if title else c.ljust(width) for c, (title, width) in pairs]
        lines.append("  " + "  ".join(spelt).rstrip())
    lines += [f"  {choose.TURNED}"] * bool(turned)
    if advice.missing:
        why = {"completed": "not in one cell with the job alone"}
        absent = (
            f"{e.jobs} {labels.method(e.method)} ({why.get(e.status) or labels.status(e.status)})"
            for e in advice.missing
        )
        lines.append(f"  No gain known: {', '.join(absent)}.")
    return "\n".join(lines)


def run(given: Namespace) -> str:
    """The command: a short table for each job."""
    estimates = table_of.read(given.folder / "estimates.parquet")
    known = table_of.workloads(estimates)
    if given.job and given.job not in known:
        raise ValueError(f"--job {given.job}: not in this study; there are: {', '.join(known)}")
    found = advise(estimates, given.job, given.slowdown, given.memory)
    legend = "* no other set is better in throughput, slowdown and memory."
    every = [option for each in found for option in each.options]
    if any(option.s for option in every):
        legend += " S: the factor that kernels side by side win; an idle GPU lowers it."
    if any(option.over_fastest for option in every):
        legend += "\nOver fastest: over one job alone in the fastest way it was written."
    said = common(found)
    about = "All advice: " * bool(said) + " ".join(said)
    head = (choose.scope(estimates)[0], legend, unmeasured(estimates, found), about)
    return "\n\n".join([*filter(None, head), *(table(each, said) for each in found)])
