"""T1: DLRM beside ResNet152 in the paper's layout, ours and what is reported.

python -m analysis.tables.pair_table --runs results/h200/runs.parquet \\
    --expected results/h200/plan.json \\
    --reported config/reported.csv --output results/h200/tables/pair

Writes STEM.csv (every number), STEM.md and STEM.tex (ours, in brackets what is reported).

The work is fixed: one ImageNet epoch of ResNet152, and of DLRM as much as takes, alone, as many
times longer as in the paper. Both start together and run at their collocated rates until one is
done; the rest of the other runs at its rate alone, under MIG at its collocated rate, for an
instance does not grow (analysis.quantities.time_of_fixed_work, as claim C11 has it).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis import flags, metrics, reported
from analysis.cells import Study, read_expected, read_study
from analysis.names import method_order
from analysis.quantities import Measurements, quantity
from analysis.statistics import pooled_estimates
from analysis.tables import pair
from analysis.tables.completion import completions
from analysis.tables.pair import ARM, SOURCE, Jobs
from analysis.views import Key, View, alone, views_of_runs
from analysis.words import fixed, percent, told

# What the rule says of fixed work agrees with what such work took within this.
AGREES = 0.03
_HOUR = 3600.0
_METHODS = ("naive", "mps", "mig_shared")  # the paper's; others of the study follow them
_LABELS = {"naive": "naive", "mps": "MPS", "mig_shared": "MIG, shared memory"}
_LABELS |= {"dlrm": "DLRM", "resnet152": "ResNet152"}
_BESIDE = ("gract", "memory_gb", "short_h", "long_h", "total_h", "saving")
_MISSING = "–"
COLUMNS = ["row", "method", "status", "replicates"]
COLUMNS += [name for value in _BESIDE for name in (value, f"{value}_reported")]
COLUMNS += ["saving_low", "saving_high", "bound", "stp", "stp_low", "stp_high"]
COLUMNS += ["completion", "completion_low", "completion_high", "completion_blocks", "lone", "flags"]
_TEXT = ("row", "method", "status", "flags")


@dataclass(frozen=True)
class Table:
    """The table, and what must be said of it."""

    rows: pd.DataFrame
    jobs: Jobs
    unlike: str  # why the pair is not comparable to the paper's; empty if it is
    about: str  # what was measured


def build(study: Study, expected: Sequence[dict], values: pd.DataFrame) -> Table:
    """The table of a study; values as analysis.reported.read gives them.

    Raises reported.ReportedError where they hold no pair.
    """
    jobs = pair.find(study.runs, [cell["scenario"] for cell in expected], values)
    values = values[values["source"] == SOURCE]
    measured = Measurements(views_of_runs(study.with_references, expected, ARM))
    rows = [
        _alone_row(name, jobs, study.runs, measured, values) for name in (jobs.long, jobs.short)
    ]
    rows.append(_serial_row(jobs, study.runs, measured, values))
    found = {key.method for key in measured.cells() if key == jobs.key(key.method)}
    for method in sorted({*_METHODS, *found}, key=lambda m: (m not in _METHODS, method_order(m))):
        rows.append(_pair_row(method, jobs, study.runs, measured, values))
    return Table(
        pd.DataFrame(rows, columns=COLUMNS),
        jobs,
        pair.unlike(jobs, measured),
        _about(study, jobs),
    )


# -- rows -----------------------------------------------------------------------------------------


def _alone_row(
    name: str, jobs: Jobs, runs: pd.DataFrame, measured: Measurements, values: pd.DataFrame
) -> dict:
    """A job alone. What the long one takes follows from the short one's epoch and the ratio."""
    column = "long_h" if name == jobs.long else "short_h"
    hours = list(_hours_alone(measured.at(alone(jobs.short)), jobs, runs).values())
    if name == jobs.long:
        hours = [jobs.ratio * each for each in hours]
    row = _readings(alone(name), measured)
    row |= {"row": f"{_label(jobs.models[name])} alone", "method": "naive", column: _mean(hours)}
    return row | _reported(values, {jobs.models[name]}, "naive", {column: ""})


def _serial_row(
    jobs: Jobs, runs: pd.DataFrame, measured: Measurements, values: pd.DataFrame
) -> dict:
    hours = _hours_alone(measured.at(alone(jobs.short)), jobs, runs).values()
    serial = _mean([each * (1 + jobs.ratio) for each in hours])
    row = {"row": "serial (sum)", "method": "serial", "total_h": serial, "replicates": len(hours)}
    row["status"] = "computed" if hours else "no baseline"
    return row | _reported(values, set(jobs.models.values()), "serial", {"total_h": ""})


def _pair_row(
    method: str, jobs: Jobs, runs: pd.DataFrame, measured: Measurements, values: pd.DataFrame
) -> dict:
    key = jobs.key(method)
    row = {"row": _label(method), "method": method} | _readings(key, measured)
    row["bound"] = jobs.bound
    if time := measured.estimate(jobs.time, key):
        row["saving"] = metrics.saving(time.mean, 1.0)
        if time.low is not None:
            row |= {"saving_low": 1 - time.high, "saving_high": 1 - time.low}
    if gain := measured.estimate(quantity("gain"), key):
        row |= {"stp": gain.mean, "stp_low": gain.low, "stp_high": gain.high}
    epochs = _hours_alone(measured.references(alone(jobs.short)).values(), jobs, runs)
    ends = [
        _hours(view, share, jobs, epochs[view.place])
        for view, share in measured.values(jobs.time, key)
        if view.place in epochs
    ]
    for column in ("short_h", "long_h", "total_h"):
        row[column] = _mean([end[column] for end in ends])
    checks, lone = completions(jobs, method, runs, measured)
    row |= {"completion_blocks": len(checks), "lone": lone}
    for tried in pooled_estimates({method: checks}).values():
        row |= {"completion": tried.mean}
        row |= {"completion_low": tried.low, "completion_high": tried.high}
    long, short = jobs.models[jobs.long], jobs.models[jobs.short]
    times = {"long_h": long, "short_h": short, "total_h": ""}
    return row | _reported(values, {long, short}, method, times)


def _readings(key: Key, measured: Measurements) -> dict:
    """How a key's replicates ended, and what its telemetry reads."""
    views = measured.at(key)
    done = [view for view in views if view.completed]
    status = "completed" if done else (views[0].status if views else "not in the study")
    row = {"status": status, "replicates": len(done)}
    row["gract"] = measured.mean(quantity("gract"), key)
    row["memory_gb"] = measured.mean(quantity("memory"), key)
    row["flags"] = flags.union(view.flags for view in done)
    return row


def _hours_alone(views: Iterable[View], jobs: Jobs, runs: pd.DataFrame) -> dict[tuple, float]:
    """Block and device → hours of one nominal epoch of the short job alone, of whose cells."""
    sizes = runs.loc[runs["workload"] == jobs.short, "nominal_train_size"].dropna()
    if sizes.empty:
        return {}
    return {
        view.place: sizes.iloc[0] / view.members[0].rate / _HOUR
        for view in views
        if view.completed and view.members and view.members[0].rate
    }


def _hours(view: View, share: float, jobs: Jobs, epoch: float) -> dict[str, float]:
    """When each job of a replicate is done, and both; share: of serial, epoch: alone, hours."""
    total = share * epoch * (1 + jobs.ratio)
    alone_h = {jobs.short: epoch, jobs.long: jobs.ratio * epoch}
    ends = {m.workload: alone_h[m.workload] * m.alone / m.rate for m in view.members}
    ends[max(ends, key=ends.get)] = total
    return {"short_h": ends[jobs.short], "long_h": ends[jobs.long], "total_h": total}


def _label(name: str) -> str:
    return _LABELS.get(name, name)


def _mean(values: Sequence[float]) -> float | None:
    """Geometric, as all means over replicates."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _reported(values: pd.DataFrame, models: set[str], method: str, times: dict[str, str]) -> dict:
    """The paper's numbers of a row; times: column → the job that it is of, "" for the whole."""
    own = [
        row
        for row in values.to_dict("records")
        if (row["source"], row["method"], row["kind"]) == (SOURCE, method, "label")
        and set(row["model"].split("+")) == models
    ]

    def value(of: Sequence[str], member: str = "") -> float | None:
        found = (row["value"] for row in own if row["metric"] in of and row["member"] == member)
        return next((float(number) for number in found if number > 0), None)

    row = {"gract_reported": value(["gpu_util"]), "memory_gb_reported": value(["memory"])}
    row["saving_reported"] = value(["saving"])
    for column, member in times.items():
        seconds = value(["epoch_time", "total_time"], member)
        row[f"{column}_reported"] = None if seconds is None else seconds / _HOUR
    return row


# -- what must be said of it ----------------------------------------------------------------------


def _about(study: Study, jobs: Jobs) -> str:
    """What was measured on what."""
    shown = study.runs[study.runs["workload"].isin([jobs.long, jobs.short])]
    shown = shown[(shown["arm"] == ARM) & (shown["status"] == "completed")]
    pairs = shown[["dataset", "source"]].dropna().drop_duplicates().sort_values("dataset")
    data = [f"{dataset}: {source}" for dataset, source in pairs.itertuples(index=False)]
    parts = [f"Hardware: {study.hardware or 'none measured'}", f"arm {ARM}"]
    parts += [f"data: {', '.join(data)}"] if data else []
    return "; ".join([*parts, *filter(None, [study.note])])


# -- for people -----------------------------------------------------------------------------------


def _cells(table: Table) -> list[dict[str, str]]:
    """Ours, and in brackets what is reported."""
    jobs, found = table.jobs, []
    for row in table.rows.astype(object).where(table.rows.notna(), None).to_dict("records"):
        cell = {
            "collocation": row["row"],
            "GRACT % (GPU util %)": _both(row, "gract", percent),
            "memory GB": _both(row, "memory_gb", _hundredths),
            f"{_label(jobs.models[jobs.short])} h": _both(row, "short_h", _hundredths),
            f"{_label(jobs.models[jobs.long])} h": _both(row, "long_h", _hundredths),
            "total h": _both(row, "total_h", _hundredths),
            "saved %": _both(row, "saving", percent, _interval(row)),
            "STP": _hundredths(row["stp"]),
            "n": str(row["replicates"]),
            "flags": (row["flags"] or "").replace(";", ", ").replace("_", " "),
        }
        if row["status"] not in ("completed", "computed"):
            said = cell["total h"].removeprefix(_MISSING)
            cell["total h"] = row["status"].replace("_", " ") + said
        found.append(cell)
    return told(found, optional=("flags",))


def _both(row: dict, name: str, spell: Callable, interval: str = "") -> str:
    ours, said = spell(row[name]), spell(row[f"{name}_reported"])
    return f"{ours or _MISSING}{interval} ({said})" if said else f"{ours}{interval}"


def _hundredths(value: float | None) -> str:
    return fixed(value, 2)


def _interval(row: dict) -> str:
    if row["saving_low"] is None:
        return ""
    return f" [{percent(row['saving_low'])}, {percent(row['saving_high'])}]"


def notes(table: Table) -> list[str]:
    """What a reader must know, a sentence or two each."""
    jobs = table.jobs
    short, long = _label(jobs.models[jobs.short]), _label(jobs.models[jobs.long])
    said = [
        f"Ours, and in brackets what the paper reports ({SOURCE}, an A100 with 40 GB). The work is "
        f"fixed: one epoch of {short}, and of {long} as much as takes, alone, {jobs.ratio:.2f} "
        f"times as long, as in the paper; so the hours of {long} alone are set, not measured. Both "
        "run at their collocated rates until one is done, the rest of the other at its rate "
        "alone, under MIG at its collocated rate.",
        f"{short}'s share of serial, {100 * jobs.bound:.1f} %, is the most that can be saved. In "
        "square brackets the 95 % interval, from two replicates on. STP: sum of normalised "
        "progress while both run. n: completed replicates.",
        "GRACT: share of the window in which a graphics or compute engine was active; of the "
        "paper's GPU utilisation the counter is not stated.",
    ]
    beyond = table.rows["saving"] > jobs.bound
    if beyond.any():
        names = ", ".join(table.rows.loc[beyond, "row"])
        said.append(f"{names}: more than can be saved, for a job ran faster than alone.")
    if table.unlike:
        said.append(f"**Not comparable** to the paper's pair: {table.unlike}.")
    elif table.rows["saving"].notna().any():
        said.append(f"Comparable to the paper's pair: {long} alone reads as there.")
    return [*said, _completion(table), f"{table.about}."]


def _completion(table: Table) -> str:
    rows = table.rows[table.rows["completion"].notna()]
    if rows.empty:
        lone = table.rows["lone"].fillna(0).sum()
        return (
            "The rule was not tried: the pair was run to the end of fixed work, but on another GPU "
            "than the cells that the rule takes its rates from."
            if lone
            else "The rule was not tried: no cell in which the pair runs to the end of fixed work."
        )
    found = []
    for row in rows.to_dict("records"):
        off = f"{100 * (row['completion'] - 1):+.1f} %"
        if pd.notna(row["completion_low"]):
            low, high = (100 * (row[f"completion_{end}"] - 1) for end in ("low", "high"))
            off += f" [{low:+.1f}, {high:+.1f}]"
        found.append(f"{row['row']} {off} ({_agrees(row)} within {100 * AGREES:.0f} %)")
    return (
        "The rule against cells in which both jobs run to the end of fixed work, a fraction of the "
        f"table's: time by the rule, against the time it took: {'; '.join(found)}."
    )


def _agrees(row: dict) -> str:
    """By the whole interval; one replicate, which has none, says nothing."""
    low, high = row["completion_low"], row["completion_high"]
    if pd.isna(low):
        return "one replicate cannot say whether it agrees"
    if low >= 1 - AGREES and high <= 1 + AGREES:
        return "agrees"
    return "does not agree" if low > 1 + AGREES or high < 1 - AGREES else "may or may not agree"


def markdown(table: Table) -> str:
    text = tabulate(_cells(table), "keys", "github", disable_numparse=True)
    return "# DLRM and ResNet152\n\n" + "\n\n".join([text, *notes(table)]) + "\n"


def latex(table: Table) -> str:
    """The table alone, for booktabs; the notes are comments above it."""
    text = tabulate(_cells(table), "keys", "latex_booktabs", disable_numparse=True)
    comments = "".join(f"% {note}\n" for note in notes(table))
    return comments + text.replace(_MISSING, "--") + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.pair_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--reported", required=True, type=Path, metavar="REPORTED.csv")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    expected = read_expected(arguments.expected)
    study = read_study(arguments.runs, arguments.expected, arguments.hardware)
    try:
        table = build(study, expected, reported.read(arguments.reported))
    except reported.ReportedError as error:
        sys.exit(str(error))
    stem = arguments.output
    stem.parent.mkdir(parents=True, exist_ok=True)
    table.rows.round({name: 6 for name in COLUMNS if name not in _TEXT}).to_csv(
        f"{stem}.csv", index=False
    )
    for ending, text in (("md", markdown(table)), ("tex", latex(table))):
        stem.with_name(f"{stem.name}.{ending}").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
