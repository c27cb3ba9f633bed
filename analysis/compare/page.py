"""Two studies side by side: two GPUs, two drivers, two versions of the code. Nothing is averaged.

python -m analysis.compare.page results/paper ../other/results/paper --output results/compare/two

Writes comparison.md and .csv into the folder: first what differs (hardware, driver, trainer digest,
data source, ...), then gain, throughput alone and energy per sample; and a figure for each arm.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis import flags, style
from analysis.cells import Study, read_study
from analysis.compare import dumbbells, side_by_side
from analysis.compare.side_by_side import UNPLANNED
from analysis.names import parse_scenario, told_window
from analysis.web import environment
from analysis.words import significant

_TITLES = {
    "gain": "Throughput gain (STP)",
    "alone": "Throughput of a job alone (samples/s)",
    "energy": "Energy per sample (J)",
}
_LEGEND = (
    "Geometric means over replicates with 95 % intervals (log ratios, variance pooled over a "
    "workload's cells; none for one replicate), and in brackets the number of replicates. B/A: "
    "ratio of the means. Apart: the intervals do not overlap. In the place of a value: how the "
    "cells ended."
)


@dataclass(frozen=True)
class Side:
    """A study that is compared, and what it is called."""

    letter: str
    folder: str
    study: Study

    @property
    def name(self) -> str:
        """`A: paper, NVIDIA H200`; a study that lies under another name has that first."""
        names = sorted({*self.study.runs["study"].dropna()} - {self.folder})
        called = [self.folder, *names, self.study.hardware or "nothing measured"]
        return f"{self.letter}: {', '.join(called)}"

    def foot(self, arm: str) -> list[str]:
        """What a figure's footer says of an arm's cells."""
        runs = self.study.runs[self.study.runs["arm"] == arm]
        counted = flags.counted(runs)
        parts = [part for part in style.footer_parts(runs) if part not in counted]
        return [f"{self.letter}: {', '.join(parts)}", self.study.note]


def read(letter: str, folder: Path, hardware: str | None) -> Side:
    """The study in results/<study>. Raises OSError where it was not merged."""
    expected = folder / "plan.json"
    plan = expected if expected.exists() else None
    return Side(letter, folder.resolve().name, read_study(folder / "runs.parquet", plan, hardware))


def differences(a: Side, b: Side) -> pd.DataFrame:
    """What differs between the studies: a row per field (analysis.web.environment)."""
    found = environment.differences(a.study.runs, b.study.runs)
    return pd.DataFrame(found, columns=["what differs", "A", "B"])


def markdown(a: Side, b: Side, rows: pd.DataFrame) -> str:
    """The page: what is compared, what differs, and a table per quantity."""
    unlike = differences(a, b)
    lines = ["# Two studies side by side", f"- {a.name}\n- {b.name}"]
    lines += [f"{side.letter}: {side.study.note}." for side in (a, b) if side.study.note]
    lines.append("## What differs")
    if unlike.empty:
        lines.append("Nothing that is recorded: hardware, versions, code and data are the same.")
    else:
        lines.append(_table(unlike.to_dict("records")))
        lines.append("A difference below may come of any of these.")
    shared = shared_by_both(rows)
    for quantity, title in _TITLES.items():
        told = [_shown(row) for row in shared[shared["quantity"] == quantity].to_dict("records")]
        lines += [f"## {title}", _table(told) if told else "No such cell in both studies."]
    cells = rows[rows["quantity"] != "energy"]
    lines.append(
        f"Cells of one study alone, which stand in comparison.csv: "
        f"{(cells['b_status'] == UNPLANNED).sum()} of A, "
        f"{(cells['a_status'] == UNPLANNED).sum()} of B."
    )
    if legend := flags.legend([*shared["a_flags"], *shared["b_flags"]]):
        lines.append(f"{'; '.join(legend)}.")
    lines.append(_LEGEND)
    return "\n\n".join(lines) + "\n"


def shared_by_both(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of cells that both studies planned."""
    return rows[(rows["a_status"] != UNPLANNED) & (rows["b_status"] != UNPLANNED)]


def _shown(row: dict) -> dict[str, str]:
    window = f", {told}" if (told := told_window(row["window"])) else ""
    return {
        "arm": row["arm"],
        "scenario": parse_scenario(row["scenario"]).label + window,
        "method": row["method"],
        "A": _value(row, "a"),
        "B": _value(row, "b"),
        "B/A": significant(row["ratio"]),
        "intervals": row["intervals"] or "",
    }


def _value(row: dict, side: str) -> str:
    if pd.isna(row[side]):
        status = row[f"{side}_status"]
        return "no value" if status == "completed" else style.status_label(status)
    low, high = row[f"{side}_low"], row[f"{side}_high"]
    interval = "" if pd.isna(low) else f" [{significant(low)}, {significant(high)}]"
    text = f"{significant(row[side])}{interval} ({row[f'{side}_n']})"
    return f"{text} {flags.marks(row[f'{side}_flags'])}".rstrip()


def _table(rows: list[dict]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.compare.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", type=Path, metavar="RESULTS/A")
    parser.add_argument("b", type=Path, metavar="RESULTS/B")
    parser.add_argument("--hardware-a", help="GPU model, where study A holds several")
    parser.add_argument("--hardware-b", help="GPU model, where study B holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    arguments = parser.parse_args(argv)
    try:
        a = read("A", arguments.a, arguments.hardware_a)
        b = read("B", arguments.b, arguments.hardware_b)
    except OSError as error:
        sys.exit(f"{error.filename} cannot be read; is it in the folder of a merged study?")
    rows = side_by_side.rows(a.study, b.study)
    arguments.output.mkdir(parents=True, exist_ok=True)
    page = arguments.output / "comparison.md"
    page.write_text(markdown(a, b, rows), encoding="utf-8")
    rows.to_csv(page.with_suffix(".csv"), index=False)
    names, shared = {"a": a.name, "b": b.name}, shared_by_both(rows)
    for arm in sorted(shared["arm"].unique()):
        figure, drawn = dumbbells.draw(rows, arm, names, [*a.foot(arm), *b.foot(arm)])
        style.save(figure, arguments.output / f"side_by_side_{arm}", drawn.to_csv(index=False))
    cells = len(shared[["arm", "scenario", "method"]].drop_duplicates())
    apart = ", ".join(differences(a, b)["what differs"]) or "nothing that is recorded"
    print(f"in both studies: {cells} sets of jobs under a method; what differs: {apart}")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
