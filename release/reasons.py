"""What was measured of jobs alone, and of what a claim's verdict rests on: why it came out so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean

import numpy as np
import pandas as pd
from tabulate import tabulate

from analysis.cells import of_baselines
from analysis.names import parse_scenario
from analysis.words import fixed

# Alone, with its input on the device, a job needs nothing of the host but launches: where the GPU
# idles, these are what it waits for. Filling the gaps of a job above this bound gains less than a
# quarter (1 / 0.8), which config/claims.yaml calls slight.
LAUNCH_BOUND = 0.8
RULE = (
    "Mean (of rates the geometric one), and least to most, over all runs alone that gains are held "
    "against. A job is called launch-bound where its input is on the device and yet, alone, it "
    f"keeps the GPU busy for less than {LAUNCH_BOUND:g} of the time (GRACT)."
)
# Of what can be found, what a job's gaps bound.
GAINS = ("gain", "gain ratio")
_GB = 1e9


def jobs(runs: pd.DataFrame, arms: Mapping[str, str]) -> str:
    """A table of the jobs alone that others are held against, a row per workload and arm.

    runs: the study's (analysis.cells.read_runs); arms: name → how a job is written there.
    """
    alone = jobs_alone(runs)
    alone = alone.assign(arm=pd.Categorical(alone["arm"], [*arms]))
    rows = [
        {"job": parse_scenario(scenario).title, "written": arms[arm]} | _job(own)
        for (scenario, arm), own in alone.groupby(["scenario", "arm"], observed=True)
    ]
    if not rows:
        return ""
    return f"Jobs alone:\n\n{tabulate(rows, 'keys', 'github', disable_numparse=True)}\n\n{RULE}"


def jobs_alone(runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of the jobs alone that gains are held against, also where a block's other cells were
    measured on another GPU than its last run alone.
    """
    done = _steady(runs)
    return done[of_baselines(done)]


def in_windows(runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of completed cells that were measured in a window of steady state."""
    return _steady(runs[runs["current"]])


def _steady(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[(runs["status"] == "completed") & (runs["window"] == "window")]


def together(rows: pd.DataFrame, by: Sequence[str], column: str) -> pd.Series:
    """Of attempts at cells, in each of which members add up: the geometric mean of those alike."""
    cells = rows.groupby([*by, "cell", "attempt"])[column].sum(min_count=1)
    return np.exp(np.log(cells).groupby([*by]).mean())


def against_the_fastest(runs: pd.DataFrame, arms: Mapping[str, str]) -> str:
    """Of each job that was written in several ways: what sets of it do, as the paper wrote it and
    at most, over the fastest way alone. Empty where no job was.
    """
    alone, sets = (plain(rows) for rows in (jobs_alone(runs), in_windows(runs)))
    sets, paper = sets[sets["n"] > 1], [*arms][0]
    told = []
    for workload, own in alone.groupby("workload"):
        rates = together(own, ["arm"], "samples_per_s")
        found = sets[sets["workload"] == workload]
        if len(rates) > 1 and (found["arm"] == paper).any():
            best = [
                _times(rows, rates.max(), arms) for rows in (found[found["arm"] == paper], found)
            ]
            what = f"{rates.max():,.0f} samples/s alone ({arms[rates.idxmax()]})"
            told.append(f"  - {workload}: {what}; {' and at most '.join(dict.fromkeys(best))}.")
    if not told:
        return ""
    return "\n".join(["- **Over the fastest way to run the job alone**, sets of it do", *told])


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one workload's cells, as they are by default; also of summary.csv."""
    parsed = rows["scenario"].map(parse_scenario)
    return rows[parsed.map(lambda of: not of.mixed and not of.variant).astype(bool)]


def _times(sets: pd.DataFrame, rate: float, arms: Mapping[str, str]) -> str:
    """The best of some sets, over a rate."""
    keys = ["n", "method", "arm"]
    rates = together(sets, keys, "samples_per_s")
    n, method, arm = rates.idxmax()
    place = (sets["n"] == n) & (sets["method"] == method) & (sets["arm"] == arm)
    once = ", one replicate" * (sets.loc[place, "cell"].nunique() == 1)
    return f"{rates.max() / rate:.2f} times that ({n}×, {method}, {arms[arm]}{once})"


def _job(own: pd.DataFrame) -> dict[str, str]:
    """One of them: its replicates."""
    memory = own["gpu_memory_used"].mean()
    return {
        "samples/s": _spread(own["samples_per_s"], ",.0f", geometric_mean),
        "GRACT": _spread(own["gract"], ".2f"),
        "SMACT": _spread(own["smact"], ".2f"),
        "memory": "–" if pd.isna(memory) else f"{memory / _GB:.1f} GB",
        "launch-bound": _launch_bound(own),
    }


def _spread(values: pd.Series, form: str, mean: Callable = pd.Series.mean) -> str:
    """Mean, least and most."""
    known = values.dropna()
    if known.empty:
        return "–"
    ends = f" ({known.min():{form}} to {known.max():{form}})" if len(known) > 1 else ""
    return f"{mean(known):{form}}{ends}"


def _launch_bound(own: pd.DataFrame) -> str:
    """Of a job that reads files, nobody can tell."""
    known = own["gract"].dropna()
    if known.empty or not (own["input_mode"] == "resident").all():
        return "–"
    bound = int((known < LAUNCH_BOUND).sum())
    return {0: "no", len(known): "yes"}.get(bound, f"in {bound} of {len(known)}")


def facts(claim: dict, runs: pd.DataFrame) -> str:
    """Sentences on the finding that decides a claim: its number beside the paper's; how much of the
    GPU its job leaves idle alone; the set's memory and the card. Empty where nothing was measured.

    claim: as claims.json has it; runs: the study's (analysis.cells.read_runs).
    """
    finding = _deciding(claim)
    if finding is None:
        return ""
    own = runs[runs["cell"].isin(finding["cells"]) & runs["current"]]
    told = [_number(finding), _by_sitting(finding, own), _gaps(finding, own, runs), _memory(own)]
    return " ".join(filter(None, told))


def _deciding(claim: dict) -> dict | None:
    """The first finding with cells, of those with the claim's verdict if any has it."""
    measured = [finding for finding in claim["findings"] if finding["cells"]]
    measured.sort(key=lambda finding: finding["verdict"] != claim["verdict"])
    return next(iter(measured), None)


def _number(finding: dict) -> str:
    estimate = finding["estimate"]
    if estimate is None:
        return ""
    text = f"Measured: {finding['what']} {fixed(estimate['mean'], 2)}"
    if estimate["low"] is not None:
        text += f" [{fixed(estimate['low'], 2)}, {fixed(estimate['high'], 2)}]"
    text = f"{text} {finding['unit']}".rstrip()
    told = [r for r in finding["reported"] if r["value"] is not None][:1]
    text += "".join(f"; reported {fixed(r['value'], 2)} ({r['source']})" for r in told)
    return f"{text}."


def _by_sitting(finding: dict, own: pd.DataFrame) -> str:
    """A set's gain in each sitting beside what its jobs did together: which of the two varies?"""
    own = own[(own["n"] == own["n"].max()) & (own["window"] == "window")]
    if finding["what"] != "gain" or own["sitting"].nunique() < 2 or own["n"].max() < 2:
        return ""
    gains, rates = (together(own, ["sitting"], name) for name in ("progress", "samples_per_s"))
    return (
        f"By sitting: {listed(gains, '.2f')}, at {listed(rates, ',.0f')} samples/s together and "
        f"{listed(rates / gains, ',.0f')} alone."
    )


def listed(values: pd.Series, form: str) -> str:
    """One after the other, in words."""
    *first, last = [format(value, form) for value in values]
    return f"{', '.join(first)} and {last}"


def _gaps(finding: dict, own: pd.DataFrame, runs: pd.DataFrame) -> str:
    """What copies of one job can gain by filling the gaps that it leaves alone, and no more."""
    n, kind = own["n"].max(), ["workload", "arm", "input_mode"]
    if finding["what"] not in GAINS or n < 2 or len(own[kind].drop_duplicates()) > 1:
        return ""
    places = own[[*kind, "block", "device"]].drop_duplicates()
    busy = jobs_alone(runs).merge(places)["gract"].dropna()
    if busy.empty:
        return ""
    return (
        f"Alone, the job has a GRACT of {_spread(busy, '.2f')}: if {n:.0f} only used the time that "
        f"one leaves idle, they would gain {min(n, 1 / busy.mean()):.2f}."
    )


def _memory(own: pd.DataFrame) -> str:
    """What the largest of the sets took of its card; nothing for a job alone."""
    own = own[own["n"] == own["n"].max()]
    used = own.groupby("cell")["gpu_memory_used"].max().mean()
    card = own["gpu_memory_total"].max()
    if pd.isna(used) or pd.isna(card) or own["n"].max() < 2:
        return ""
    return f"The {own['n'].max():.0f} together: {used / _GB:.1f} of the card's {card / _GB:.1f} GB."
