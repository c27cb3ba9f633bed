"""The summary of a study: one row per scenario and method, as CSV, Markdown and for a terminal.

python -m analysis.tables.summary --runs results/smoke/runs.parquet \\
    --output results/smoke/tables/summary --telemetry results/smoke/tables/telemetry
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from operator import itemgetter
from pathlib import Path
from statistics import median

import pandas as pd
from tabulate import tabulate

from analysis import flags
from analysis.cells import OF_THE_GPU, Study, read_study, summarise
from analysis.names import COMPLETION, parse_scenario, told_window
from analysis.tables import activity
from analysis.twins import phrase, twin_checks
from analysis.words import fixed, percent, significant, told

WIDTH = 100
LINES = 3  # of scenarios that were not run: more of them are counted
_NUMBERS = ["epoch_time_s", "stp", "low", "high", "antt", "jain", "saving", "accuracy"]
_NUMBERS += OF_THE_GPU
_OF_MEMBERS = ["epoch_time_s", "accuracy", "source"]


def summary(study: Study) -> pd.DataFrame:
    """Summary rows (analysis.cells.summarise), with data source, accuracy and status in words.

    epoch_times names each workload's median epoch time in seconds, by workload in a mix.
    """
    table = summarise(study.cells)
    keys = ["arm", "scenario", "method", "window"]
    runs = study.runs[study.runs["status"] == "completed"]
    # Filtering the whole table for each row takes far longer.
    members: dict[tuple, list[dict]] = {}
    for row in runs[[*keys, "workload", *_OF_MEMBERS]].to_dict("records"):
        members.setdefault(itemgetter(*keys)(row), []).append(row)
    epoch_times, accuracy, source = [], [], []
    for place in zip(*(table[key] for key in keys), strict=True):
        rows = members.get(place, [])
        by_workload: dict[str, list[float]] = {}
        for row in rows:
            if pd.notna(row["epoch_time_s"]):
                by_workload.setdefault(row["workload"], []).append(row["epoch_time_s"])
        times = {name: _seconds(median(values)) for name, values in by_workload.items()}
        names = [f"{name} {time}" for name, time in times.items()]
        epoch_times.append(" / ".join(times.values() if len(times) < 2 else names))
        known = [row["accuracy"] for row in rows if pd.notna(row["accuracy"])]
        accuracy.append(median(known) if known else math.nan)
        source.append("/".join(sorted({r["source"] for r in rows if pd.notna(r["source"])})))
    table["status"] = [_status(row) for row in table.to_dict("records")]
    return table.assign(epoch_times=epoch_times, accuracy=accuracy, source=source)


def _status(row: dict) -> str:
    """`completed`, or each outcome with its number of replicates."""
    if len(row["statuses"]) == 1:
        return next(iter(row["statuses"])).replace("_", " ")
    parts = sorted(row["statuses"].items(), key=lambda item: (item[0] != "completed", item[0]))
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in parts)


def _other(window: object) -> str:
    """A window that is not the default; empty also where a row has none."""
    return window if isinstance(window, str) and window != "window" else ""


def _interval(row: dict) -> str:
    if pd.isna(row["stp"]):
        return ""
    text = f"{row['stp']:.3f}"
    return text if pd.isna(row["low"]) else f"{text} [{row['low']:.3f}, {row['high']:.3f}]"


def markdown(table: pd.DataFrame, study: Study, twins: str) -> str:
    """The table as Markdown, with the hardware, what A/A says (`twins`), and how to read it."""
    rows = [
        {
            "arm": row["arm"],
            "scenario": parse_scenario(row["scenario"]).label,
            "method": row["method"],
            "window": _other(row["window"]),
            "status": row["status"],
            "n": row["completed"],
            "epoch time per instance (s)": row["epoch_times"],
            "STP [95 %]": _interval(row),
            "ANTT": fixed(row["antt"], 3),
            "GRACT %": percent(row["gract"]),
            "SMACT %": percent(row["smact"]),
            "power (W)": fixed(row["power"], 0),
            "J/sample": significant(row["energy_per_sample"]),
            "energy saved %": percent(row["energy_saving"]),
            "accuracy": fixed(row["accuracy"], 3),
            "flags": row["flags"].replace(";", ", ").replace("_", " "),
            "data": row["source"],
        }
        for row in table.to_dict("records")
    ]
    head = f"# Summary\n\nHardware: {study.hardware or 'none measured'}. {study.note}\n\n"
    legend = (
        "\n\nSTP: sum of normalised progress (1 = serial), geometric mean over n completed "
        "replicates; interval: log ratios, variance pooled over a workload's cells, none for one "
        "replicate. ANTT: mean slowdown, geometric over replicates. Epoch time: median over "
        "instances and replicates, which may be of other blocks than another row's; STP and ANTT "
        "are within blocks. unsteady: a member's speed in the last third of its window is "
        f"{flags.DRIFT:.0%} or more, and two standard errors, off that in the first; suspect "
        f"baseline: a member faster than alone (progress above {flags.PROGRESS}, or above 1 by its "
        "interval); "
        f"uneven: a member further than {flags.SPREAD:.0%} from the median of the others like it; "
        "unverified: the method was not proven in force. "
        "synthetic = generated data.\n"
    )
    if table[OF_THE_GPU].notna().any(axis=None):
        legend += f"\n{activity.HEADLINES}\n"
    if twins:
        legend += (
            f"\n{twins}: aggregate rate of naive_again over that of naive, with 95 % intervals.\n"
        )
    rows = told(rows, optional=_OPTIONAL)
    return head + tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True) + legend


_OPTIONAL = ("window", "GRACT %", "SMACT %", "power (W)", "J/sample", "energy saved %")
_LEGEND = "epoch s: median over a row's replicates, be they of other blocks; gain: within blocks"
_GPU_LEGEND = (
    "GR/SM: graphics engine and SMs active; W: mean power; mJ: energy of the set per sample"
)


def terminal(table: pd.DataFrame) -> str:
    """A compact table of gains, at most 100 columns wide, an arm after the other.

    Each scenario has a line of its own. What was not run is named: methods of a
    scenario, scenarios of an arm, of which many are only counted. Columns of which nothing is known
    are left out.
    """
    lines = told([_line(row) for row in table.to_dict("records")])
    sections = []
    for arm, rows in table.groupby("arm", sort=True):
        ran = rows[rows["status"] != "not run"]
        text = [f"arm {arm}"]
        if len(ran):
            body = [lines[place] for place in ran.index]
            widths = {of: max(len(of), *(len(line[of]) for line in body)) for of in body[0]}
            text.append(_joined({title: title for title in widths}, widths))
            text.append(_joined({title: "-" * width for title, width in widths.items()}, widths))
        idle = []
        for scenario, of in rows.groupby("scenario", sort=False):
            there = [place for place in of.index if place in ran.index]
            if not there:
                idle.append(scenario)
                continue
            text += [_wrapped(scenario, WIDTH), *(_joined(lines[place], widths) for place in there)]
            if left := [m for place, m in of["method"].items() if place not in there]:
                text.append(_filled(f"  not run: {', '.join(dict.fromkeys(left))}"))
        if idle:
            named = _filled(f"not run: {', '.join(idle)}")
            long = named.count("\n") >= LINES
            text.append(f"not run: {len(idle)} scenarios, see summary.md" if long else named)
        sections.append("\n".join(text))
    if legend := flags.legend(table["flags"]):
        sections.append(textwrap.fill("; ".join(legend), WIDTH))
    if table.loc[table["stp"].notna(), "completed"].nunique() > 1:
        sections.append(textwrap.fill(_LEGEND, WIDTH))
    if table[OF_THE_GPU].notna().any(axis=None):
        sections.append(_GPU_LEGEND)
    return "\n\n".join(sections) if sections else "no cells yet"


def _joined(line: dict[str, str], widths: dict[str, int]) -> str:
    """Cells side by side: words begin alike, numbers end alike."""
    words = ("method", "gain [95 %]")
    padded = (f"{c:{'<' if t in words else '>'}{widths[t]}}" for t, c in line.items())
    return "  ".join(padded).rstrip()


def _line(row: dict) -> dict[str, str]:
    """What the terminal tells of a row."""
    active = [percent(row["gract"]), percent(row["smact"])]
    joules = row["energy_per_sample"]
    return {
        "method": f"  {row['method']} {told_window(row['window'])}".rstrip(),
        "ok": f"{row['completed']}/{row['replicates']}",
        "epoch s": "" if row["mixed"] else row["epoch_times"],
        "gain [95 %]": f"{_interval(row) or _outcome(row)} {flags.marks(row['flags'])}".rstrip(),
        "ANTT": fixed(row["antt"], 2),
        "GR/SM %": "/".join(part or "-" for part in active) if any(active) else "",
        "W": fixed(row["power"], 0),
        "mJ": significant(None if joules is None else 1000 * joules),
        "acc.": fixed(row["accuracy"], 3),
    }


def _outcome(row: dict) -> str:
    if row["status"] != "completed":
        return row["status"][:22]
    return "fixed work" if row["window"] == COMPLETION else "no baseline"


def _wrapped(scenario: str, width: int) -> str:
    """A mix too long for a line: a member a line, what is still too long broken at `--` or `_`."""
    if len(scenario) <= width:
        return scenario
    lines = []
    for part in scenario.replace("+", "\n  + ").split("\n"):
        while len(part) > width:
            cut = part.rfind("--", 0, width)
            cut = cut if cut > 0 else part.rfind("_", 0, width) + 1 or width
            lines.append(part[:cut])
            part = "    " + part[cut:]
        lines.append(part)
    return "\n".join(lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.summary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--output", type=Path, metavar="STEM", help="writes STEM.csv, .md, .txt")
    parser.add_argument("--telemetry", type=Path, metavar="STEM", help="what the GPU did, likewise")
    arguments = parser.parse_args(argv)
    study = read_study(arguments.runs, arguments.expected, arguments.hardware)
    table = summary(study)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        flat = table.drop(columns="statuses").round(dict.fromkeys(_NUMBERS, 6))
        flat.to_csv(arguments.output.with_name(arguments.output.name + ".csv"), index=False)
        twins = phrase(twin_checks(study.runs))
        lines = "\n".join(filter(None, [terminal(table), twins]))
        for ending, text in ((".md", markdown(table, study, twins)), (".txt", f"{lines}\n")):
            page = arguments.output.with_name(arguments.output.name + ending)
            page.write_text(text, encoding="utf-8")
    if arguments.telemetry:
        activity.write(activity.table(study.runs), arguments.telemetry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
