"""Which method, and how many jobs at a time? For each workload of a study, from its own cells.

python -m analysis.guidelines.page --runs results/h200/runs.parquet \\
    --expected results/h200/plan.json --output results/h200/guidelines

Writes STEM.md (sentences) and STEM.csv (the options that they choose from). --slowdown and --memory
set the bounds; both may be repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis import flags
from analysis.cells import Study, read_expected, read_study
from analysis.guidelines import advice
from analysis.guidelines.advice import Option, Subject
from analysis.names import family_of, method_order
from analysis.quantities import Measurements
from analysis.views import Key, differences, views_of_runs

SLOWDOWNS = (1.1, 1.5, 2.0)
MEMORY_GB = (8.0, 16.0, 24.0, 40.0, 80.0)
# Kinds of workload, by the highest gain that was measured: at least this, and what that means.
KINDS = (
    (2.0, "Much to gain", "the best set trains at least twice as much as one job after the other"),
    (1.1, "Something to gain", "the best set trains at least a tenth more"),
    (0.0, "Nothing to gain", "no set trains a tenth more"),
)
_WAYS = {"naive": "as plain processes (naive)", "mps": "under MPS", "mig": "in MIG instances"}
_WAYS |= {"mps_equal": "under MPS with equal shares", "mig_mps": "under MPS within MIG"}
_WAYS |= {"mps_overlap": "under MPS with overlapping shares"}
_WAYS |= {"mig_shared": "in MIG compute instances with shared memory"}


def table(subjects: Sequence[Subject], arm: str) -> pd.DataFrame:
    """A row per option: gain with interval, slowdowns, memory (GB), energy (J/sample; ratio)."""
    return pd.DataFrame(
        [
            {
                "arm": arm,
                "workload": subject.name,
                "jobs": _jobs(option.key),
                "n": option.key.n,
                "method": option.key.method,
                "replicates": option.replicates,
                "gain": option.gain.mean,
                "low": option.gain.low,
                "high": option.gain.high,
                "mean_slowdown": option.mean_slowdown,
                "worst_slowdown": option.worst_slowdown,
                "memory_gb": option.memory_gb,
                "memory_is_reserved": option.memory_is_reserved,
                "peak_reserved_gb": option.peak_gb,
                "energy_per_sample": option.energy_per_sample,
                "energy_over_serial": option.energy_ratio,
            }
            for subject in subjects
            for option in subject.options
        ]
    )


def markdown(
    study: Study,
    expected: Sequence[dict] = (),
    slowdowns: Sequence[float] = SLOWDOWNS,
    memory: Sequence[float] = MEMORY_GB,
) -> tuple[str, pd.DataFrame]:
    """The page and the table that it is filled from; arms apart."""
    names = sorted(study.runs["study"].dropna().unique())
    parts = ["# Guidelines"]
    if names:
        where = study.hardware or "no device"
        parts.append(f"From study {', '.join(names)}, measured on {where}. {study.note}".strip())
    tables, options = [], []
    for arm in study.arms():
        views = views_of_runs(study.runs, expected, arm)
        measured = Measurements(views)
        found = advice.subjects(measured)
        options += [option for subject in found for option in subject.options]
        tables.append(table(found, arm))
        parts.append(f"## Arm `{arm}`")
        if apart := differences(view for view in views if view.completed):
            parts.append(f"Read with care: {'; '.join(apart)}.")
        if not any(subject.options for subject in found):
            parts.append(f"No set of two jobs or more has a gain: {_why_nothing(found)}.")
            continue
        parts += _in_short(found)
        for subject in found:
            parts.append(f"### {subject.name}")
            parts += _advice(measured, subject, slowdowns, memory)
    if marked := flags.legend(option.flags for option in options):
        parts.append(f"Marks of a number: {'; '.join(marked)}.")
    if not tables:
        parts.append("The study holds no cell: there is nothing to advise from.")
    parts.append(_LEGEND)
    return "\n\n".join(parts) + "\n", pd.concat(tables) if tables else table([], "")


_LEGEND = (
    "Gain: training done per hour over the same jobs one after the other (STP), with its 95 % "
    "interval. Slowdown: of the slowest job of the set. Advice holds for these jobs on this "
    "hardware and for the sets that were measured."
)


def _in_short(subjects: Sequence[Subject]) -> list[str]:
    """By kind of workload, and which method wins how often."""
    lines, winners, kinds = [], Counter(), {kind: [] for kind in KINDS}
    for subject in subjects:
        best = advice.most_gain(subject.options)
        if best is not None:
            kind = next(kind for kind in KINDS if round(best.gain.mean, 2) >= kind[0])
            kinds[kind].append(f"{subject.name}: {_set(best.key)}, {_gain(best)}{_hint(best)}")
            winners[best.key.method] += best.gain.mean > 1
    for (_, name, meaning), found in kinds.items():
        if found:
            lines.append(f"- **{name}** ({meaning}): {'; '.join(found)}.")
    wins = [
        f"{_way(method)} for {count} of {winners.total()}"
        for method, count in sorted(winners.items(), key=lambda w: (-w[1], method_order(w[0])))
        if count
    ]
    won = "; ".join(wins) or "none gains"
    lines.append(
        f"- **Method** with the highest gain, where there is one: {won}. {_absent(subjects)}"
    )
    return ["\n".join(lines).rstrip()]


def _absent(subjects: Sequence[Subject]) -> str:
    """The families of methods without a single completed set, and how their cells ended."""
    ended: dict[str, Counter] = {method: Counter() for method in ("naive", "mps", "mig")}
    for subject in subjects:
        for method, counts in subject.ways.items():
            ended.setdefault(family_of(method), Counter()).update(counts)
    said = []
    for method, counts in ended.items():
        if not counts:
            said.append(f"{method} is not in the study")
        elif not counts["completed"]:
            said.append(f"{method} was not measured ({_counted(counts)}, of two jobs or more)")
    return f"No advice on what is not there: {'; '.join(said)}." if said else ""


def _advice(
    measured: Measurements,
    subject: Subject,
    slowdowns: Sequence[float],
    memory: Sequence[float],
) -> list[str]:
    """The sentences of one workload."""
    best = advice.most_gain(subject.options)
    if best is None:
        return [f"No advice: {_why_nothing([subject])}."]
    lines = [f"- **Throughput:** {_throughput(measured, subject, best)}"]
    lines.append(f"- **Slowdown:** {_under_slowdown(subject, slowdowns)}")
    lines.append(f"- **Memory:** {_under_memory(subject, best, memory)}")
    lines.append(f"- **Energy:** {_energy(subject)}")
    return ["\n".join(lines), _options(subject)]


def _throughput(measured: Measurements, subject: Subject, best: Option) -> str:
    if best.gain.mean <= 1:
        text = f"run one job after the other; the best set, {_set(best.key)}, "
        text += f"has {_gain(best)}{_hint(best)}."
    else:
        text = f"{_set(best.key)}: {_gain(best)}{_hint(best)}; "
        text += f"the slowest job takes {best.worst_slowdown:.2f} times as long as alone."
        if best.gain.low is not None and best.gain.low <= 1:
            text += " That it gains at all is not shown: the interval includes 1."
    return text + _beside(advice.compared(measured, best, subject.options), len(subject.options))


def _beside(found: advice.Compared, options: int) -> str:
    """The other options that the best is not told apart from, or not compared with."""
    text = ""
    for said, sets in (
        ("Not told apart from it", found.close),
        ("Compared with it once only, so without an interval", found.once),
        ("Not compared with it on one GPU", found.unpaired),
    ):
        names = "; ".join(f"{_set(option.key)} ({option.gain.mean:.2f})" for option in sets)
        if sets is found.once and len(sets) == options - 1 > 1:
            names = "all others"
        if sets:
            text += f" {said}: {names}."
    return text


def _under_slowdown(subject: Subject, bounds: Sequence[float]) -> str:
    said = []
    for bound in bounds:
        found = advice.most_gain(subject.options, lambda o, b=bound: o.worst_slowdown <= b)
        text = "no set that gains keeps within it, run one job after the other"
        if found is not None and found.gain.mean > 1:
            text = f"{_set(found.key)}, {_gain(found)}{_hint(found)}"
        said.append((f"{bound:g}", text))
    return "; ".join(f"at most {limits} times: {text}" for limits, text in _merged(said)) + "."


def _under_memory(subject: Subject, best: Option, bounds: Sequence[float]) -> str:
    known = [option for option in subject.options if option.memory_gb is not None]
    if not known:
        return "was not recorded for these sets: no advice."
    said, under = [], []
    if best.memory_gb is not None:
        what = "reserves" if best.memory_is_reserved else "takes"
        said.append(f"the set with the highest gain {what} {best.memory_gb:.3g} GB{_peak(best)}")
        bounds = [bound for bound in bounds if bound < best.memory_gb]
    smallest = min(option.memory_gb for option in known)
    for bound in bounds:
        sure = advice.most_gain(known, lambda o, b=bound: _most_memory(o) <= b)
        found = advice.most_gain(known, lambda o, b=bound: o.memory_gb <= b)
        told = [_fitting(sure)] if sure else []
        if found not in (None, sure):
            told.append(f"perhaps {_fitting(found)}")
        text = ", ".join(told) or f"no set, the smallest takes {smallest:.3g} GB"
        under.append((f"{bound:g}", text))
    said += [f"within {limits} GB: {text}" for limits, text in _merged(under)]
    if len(known) < len(subject.options):
        said.append(f"not recorded for {len(subject.options) - len(known)} sets")
    if subject.out:
        said.append(f"out of memory: {', '.join(_set(key) for key in subject.out)}")
    return "; ".join(said) + "."


def _most_memory(option: Option) -> float:
    """GB, in use in the window or reserved before."""
    return max(option.memory_gb, option.peak_gb or 0.0)


def _fitting(option: Option) -> str:
    return (
        f"{_set(option.key)} ({option.memory_gb:.3g} GB{_peak(option)}), "
        f"{_gain(option)}{_hint(option)}"
    )


def _merged(said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Bounds that lead to the same words, together: `8 or 16`."""
    limits: dict[str, list[str]] = {}
    for limit, text in said:
        limits.setdefault(text, []).append(limit)
    return [(" or ".join(found), text) for text, found in limits.items()]


def _energy(subject: Subject) -> str:
    found = advice.least_energy(subject.options)
    if found is None:
        return "was not recorded for these sets: no advice."
    # Samples of unlike jobs are not one thing to count.
    each = f", {found.energy_per_sample:.3g} J per sample" * (len(found.key.parts) == 1)
    if found.energy_ratio >= 1:
        return (
            f"run one job after the other; the thriftiest set, {_set(found.key)}, takes "
            f"{found.energy_ratio:.2f} times the energy{each}{_hint(found)}."
        )
    return f"{_set(found.key)}: {found.energy_ratio:.2f} of serial's energy{each}{_hint(found)}."


def _options(subject: Subject) -> str:
    rows = [
        {
            "jobs": _jobs(option.key),
            "method": option.key.method,
            "gain": _gain(option, bare=True),
            "replicates": option.replicates,
            "slowdown": f"{option.worst_slowdown:.2f}",
            "memory (GB)": _memory(option),
            "energy over serial": _number(option.energy_ratio),
        }
        for option in subject.options
    ]
    text = tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True)
    if any(_memory(option).endswith("*") for option in subject.options):
        text += "\n\n\\* reserved by the members' allocators, without the contexts."
    if any("(" in _memory(option) for option in subject.options):
        text += "\n\nMemory: what the card had in use in the window; in brackets what the members "
        text += "reserved at most, at any time. Whether a card between the two is enough was not "
        text += "tried: perhaps."
    return text


def _hint(option: Option) -> str:
    """What stands behind an advice that rests on one replicate."""
    return " (a hint: one replicate)" if option.replicates == 1 else ""


def _memory(option: Option) -> str:
    starred = option.memory_gb is not None and option.memory_is_reserved
    beyond = f" ({_number(option.peak_gb)})" if _peak(option) else ""
    return _number(option.memory_gb) + "*" * starred + beyond


def _peak(option: Option) -> str:
    """What a smaller card may have too little for: more was reserved than was then in use."""
    if option.peak_gb is None or option.memory_gb is None or option.peak_gb <= option.memory_gb:
        return ""
    return f", {option.peak_gb:.3g} GB reserved at most"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _gain(option: Option, bare: bool = False) -> str:
    estimate = option.gain
    text = f"{estimate.mean:.2f}" if bare else f"gain {estimate.mean:.2f}"
    if estimate.low is not None:
        text += f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{text} {flags.marks(option.flags)}".rstrip()


def _jobs(key: Key) -> str:
    """`7`, or of a mix `1× a + 2× b`."""
    return str(key.n) if len(key.parts) == 1 else " + ".join(f"{c}× {w}" for w, c in key.parts)


def _set(key: Key) -> str:
    return f"{_jobs(key)} {_way(key.method)}"


def _way(method: str) -> str:
    return _WAYS.get(method, f"under {method}")


def _why_nothing(subjects: Sequence[Subject]) -> str:
    """How the cells of two jobs or more ended."""
    counts = Counter()
    for subject in subjects:
        for ended in subject.ways.values():
            counts.update(ended)
    return _counted(counts) or "the study has none"


def _counted(counts: Counter) -> str:
    return ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in sorted(counts.items()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.guidelines.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--slowdown", type=float, action="append", help="times as long as alone")
    parser.add_argument("--memory", type=float, action="append", metavar="GB")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    expected = read_expected(arguments.expected)
    study = read_study(arguments.runs, arguments.expected, arguments.hardware)
    bounds = arguments.slowdown or SLOWDOWNS, arguments.memory or MEMORY_GB
    page, options = markdown(study, expected, *bounds)
    stem = arguments.output
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(stem.name + ".md").write_text(page, encoding="utf-8")
    options.to_csv(stem.with_name(stem.name + ".csv"), index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
