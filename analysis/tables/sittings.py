"""What differs between sittings: rates and GRACT of jobs alone, and gains, each as measured there.

python -m analysis.tables.sittings --runs results/h200/runs.parquet \\
    --output results/h200/tables/sittings

A launch-bound job runs at the pace of its host's CPU, so that its rate, the share of time in which
the GPU is active and what it gains in company may differ from host to host. STEM.csv has a row per
arm, scenario, method and sitting; STEM.md has a column per sitting, the first one first.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean

import pandas as pd
from tabulate import tabulate

from analysis.cells import cell_table, of_baselines, read_study
from analysis.names import method_order, parse_scenario
from analysis.words import fixed, percent, significant

WIDTH = 120  # of the text below the tables
MISSING = "–"
UNKNOWN = "unknown"  # sitting or machine of a record that does not name it
_CELL, _SITTING = ["arm", "scenario", "method", "n"], ["sitting", "machine"]
_NUMBERS = ["gain", "samples_per_s", "spread", "gract"]
COLUMNS = [*_CELL, *_SITTING, "replicates", "gains", *_NUMBERS]


def measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Cells completed in a window (cell_table), with sitting, machine and start (started_at, UTC).

    Also the older attempts of jobs alone that others' gains are held against: a replicate may have
    been measured in two sittings.
    """
    done = runs[(runs["status"] == "completed") & (runs["window"] == "window")]
    done = done.fillna(dict.fromkeys(_SITTING, UNKNOWN))
    # A gain over what another sitting measured is neither's.
    here = set(done[["cell", *_SITTING]].itertuples(index=False, name=None))
    over = done[["baseline_cell", *_SITTING]].itertuples(index=False, name=None)
    done.loc[[place not in here for place in over], "progress"] = math.nan
    # Of one cell, attempts of several sittings may be there: each is one of its own.
    parts = [
        cell_table(own).assign(sitting=sitting, machine=machine, started_at=_first(own))
        for (sitting, machine, _), own in done.groupby([*_SITTING, "attempt"])
    ]
    return pd.concat(parts) if parts else cell_table(done).assign(**dict.fromkeys(_SITTING))


def _first(runs: pd.DataFrame) -> str | None:
    return min(runs["started_at"].dropna(), default=None)


def in_time(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """Sittings with their machines by their first record; those without a time last, by name."""
    starts = {place: _first(own) for place, own in cells.groupby(_SITTING)}
    return sorted(starts, key=lambda place: (starts[place] is None, starts[place] or "", place))


def table(cells: pd.DataFrame) -> pd.DataFrame:
    """COLUMNS: a row per cell of the grid and sitting, from those of `measured`.

    replicates: cells completed; gain: geometric mean of STP (1 = serial) over `gains` of them,
    those with a job alone of that sitting to be held against; samples_per_s (samples/s, of all
    members together): geometric mean; spread: the largest of these over the least, missing of one;
    gract (a share, 1 = always active): mean over replicates with telemetry.
    """
    order = {place: number for number, place in enumerate(in_time(cells))}
    rows = []
    for place, own in cells.groupby([*_CELL, *_SITTING], sort=False):
        row = dict(zip([*_CELL, *_SITTING], place, strict=True))
        row |= {"replicates": len(own), "gains": int((own["stp"] > 0).sum())}
        rates = own["samples_per_s"]
        row |= {"gain": _geometric(own["stp"]), "samples_per_s": _geometric(rates)}
        row["spread"] = rates.max() / rates.min() if len(own) > 1 else None
        rows.append(row | {"gract": own["gract"].mean()})
    rows.sort(key=lambda row: (*_place(row), order[row["sitting"], row["machine"]]))
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(_NUMBERS, float))


def _geometric(values: pd.Series) -> float | None:
    """Over the values above 0, as figures have it."""
    known = values[values > 0]
    return geometric_mean(known) if len(known) else None


def _place(row: dict) -> tuple:
    scenario = parse_scenario(row["scenario"])
    order = (scenario.mixed, scenario.family, scenario.variant, scenario.n, scenario.id)
    return row["arm"], *order, method_order(row["method"])


def markdown(rows: pd.DataFrame, sittings: list[tuple[str, str]], note: str = "") -> str:
    """Jobs alone, then gains, a column per sitting; one sentence where there are no two.

    `sittings` with their machines in the order of columns (`in_time`); note: of the study.
    """
    if len(sittings) < 2:
        text = _lone(sittings)
    else:
        titles = _titles(sittings)
        alone = of_baselines(rows)
        jobs = [_job(*of, titles.values()) for of in _by_cell(rows[alone], titles)]
        gains = [_gain(*of, titles.values()) for of in _by_cell(rows[~alone], titles)]
        text = f"## Jobs alone\n\n{_shown(jobs)}\n\n## Gains\n\n{_shown(gains)}\n\n"
        text += _notes(sittings)
    text = "\n\n".join(filter(None, [text, note]))
    return f"# What differs between sittings\n\n{text}\n"


def _lone(sittings: list[tuple[str, str]]) -> str:
    if not sittings:
        return "No cell yet."
    [(sitting, machine)] = sittings
    return (
        f"Every cell was measured in one sitting, {sitting} on {machine}: there is no other to "
        "hold it against."
    )


def _titles(sittings: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Sitting and machine → title: the sitting's name, with the machine where it used several."""
    names = [sitting for sitting, _ in sittings]
    return {
        place: place[0] if names.count(place[0]) == 1 else " ".join(place) for place in sittings
    }


def _by_cell(rows: pd.DataFrame, titles: dict) -> Iterator[tuple[dict, dict[str, dict]]]:
    """Of each cell the words that name it, and column → its row there."""
    for (arm, scenario, method), own in rows.groupby(["arm", "scenario", "method"], sort=False):
        found = {titles[row["sitting"], row["machine"]]: row for row in own.to_dict("records")}
        yield {"arm": arm, "jobs": parse_scenario(scenario).label, "method": method}, found


def _job(named: dict, at: dict[str, dict], sittings: Iterable[str]) -> dict[str, str]:
    """A job alone: its rate and GRACT in each sitting, and how its rate differs within one."""
    line = {"arm": named["arm"], "job": named["jobs"]}
    for sitting in sittings:
        row = at.get(sitting, {})
        rate = significant(row.get("samples_per_s"), 4)
        line[f"{sitting}: samples/s"] = _counted(rate, row.get("replicates"))
    line["ratio"] = _ratio(row["samples_per_s"] for row in at.values())
    spreads = [row["spread"] for row in at.values() if pd.notna(row["spread"])]
    line["within one"] = fixed(max(spreads, default=None), 2)
    for sitting in sittings:
        line[f"{sitting}: GRACT %"] = percent(at.get(sitting, {}).get("gract"))
    return line | {"GRACT ratio": _ratio(row["gract"] for row in at.values())}


def _gain(named: dict, at: dict[str, dict], sittings: Iterable[str]) -> dict[str, str]:
    """The rate and the gain of a set of jobs in each sitting."""
    line = dict(named)
    for sitting in sittings:
        line[f"{sitting}: samples/s"] = significant(at.get(sitting, {}).get("samples_per_s"), 4)
    line["ratio"] = _ratio(row["samples_per_s"] for row in at.values())
    for sitting in sittings:
        row = at.get(sitting, {})
        line[f"{sitting}: gain"] = _counted(fixed(row.get("gain"), 2), row.get("gains"))
    return line | {"gain ratio": _ratio(row["gain"] for row in at.values())}


def _counted(number: str, replicates: int | None) -> str:
    return f"{number} ({replicates})" if number else ""


def _ratio(values: Iterable[float | None]) -> str:
    """Largest over least, where there are two to hold against each other."""
    known = [value for value in values if pd.notna(value) and value > 0]
    return fixed(max(known) / min(known), 2) if len(known) > 1 else ""


def _shown(lines: list[dict[str, str]]) -> str:
    """The table, with a dash for what is missing."""
    filled = [{title: cell or MISSING for title, cell in line.items()} for line in lines]
    return tabulate(filled, "keys", "github", disable_numparse=True) or "None was measured."


def _notes(sittings: list[tuple[str, str]]) -> str:
    where = ", ".join(f"{sitting} on {machine}" for sitting, machine in sittings)
    return textwrap.fill(
        f"Sittings: {where}. Geometric means (of GRACT the mean) over a sitting's replicates, how "
        f"many in brackets; {MISSING}: nothing there. Ratio: of the sittings, largest over least; "
        "within one: the same of the replicates of one sitting, where that is largest. A sitting "
        "has few replicates: no interval is given, and a ratio between sittings that is not well "
        "above the one within may be chance. Gain: STP, against the job alone of the same "
        "replicate, GPU and sitting. All sets of a block are held against the same run of a job "
        "alone, so that their gains move together. Intervals of summary and figures pool the "
        "blocks of all sittings as if alike. Each sitting begins with anchors, jobs alone, which "
        "the table of variance holds against each other. GRACT over rate is the time that the GPU "
        "is active for a sample: where a job's rate and GRACT differ by the same factor, that time "
        "does not, but the GPU idled longer between. Sittings may differ in the host, in the GPU "
        "itself (of one model) and in what else ran on the host; this table cannot tell which of "
        "them it was. A job alone as a plain process has a gain of 1 by construction, and stands "
        "in the first table only; an attempt at it that was repeated elsewhere counts there, too. "
        "Cells measured in a window only.",
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.sittings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    study, stem = read_study(arguments.runs, hardware=arguments.hardware), arguments.output
    cells = measured(study.with_references)
    rows = table(cells)
    stem.parent.mkdir(parents=True, exist_ok=True)
    rows.round(6).to_csv(stem.with_name(f"{stem.name}.csv"), index=False)
    text = markdown(rows, in_time(cells), study.note)
    stem.with_name(f"{stem.name}.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
