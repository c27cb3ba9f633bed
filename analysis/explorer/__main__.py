"""The study as one page to explore: choose workload, method, count, metric; click for a timeline.

python -m analysis.explorer --runs results/smoke/runs.parquet --expected results/smoke/plan.json \\
    --telemetry results/smoke/telemetry.parquet --reported config/reported.csv --output FILE.html

One file that asks for nothing: Vega, Vega-Lite and the data stand in it.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # as in analysis.figures

import argparse
import sys
from pathlib import Path

import pandas as pd

from analysis import flags, reported, web
from analysis.cells import Study, load, read_expected, read_runs
from analysis.explorer import kept, points, timelines
from analysis.explorer.shapes import SHAPES
from analysis.looks import footer_parts
from analysis.looks import looks as looks_of
from analysis.names import TWIN, method_order


def studies(runs: pd.DataFrame, expected: list[dict]) -> list[Study]:
    """The study, once for each GPU model that it was measured on: they are never drawn together.

    Cells without a record belong to the model with most cells, which comes first.
    """
    first = load(runs, expected)
    done = runs[runs["current"] & (runs["status"] == "completed")]
    others = sorted(set(done["hardware"].dropna()) - {first.hardware})
    return [first, *(load(runs[runs["hardware"] == name], hardware=name) for name in others)]


def page(
    runs: pd.DataFrame, expected: list[dict], telemetry: Path | None, values: pd.DataFrame | None
) -> str:
    """The HTML page. `runs`: rows of runs.parquet; `values`: analysis.reported.read."""
    every = [row for study in studies(runs, expected) for row in points.cell_rows(study)]
    rows = [row for row in every if row["method"] != TWIN]
    current = runs[runs["current"] & (runs["method"] != TWIN)]
    names = sorted({row["method"] for row in rows}, key=method_order)
    looks = looks_of(names, current)
    data = {
        "study": _study(runs),
        "gpu": bool(current["gpu_uuid"].notna().any()),
        "metrics": [{key: getattr(metric, key) for key in _METRIC} for metric in points.METRICS],
        "methods": [
            {
                "key": name,
                "label": looks[name].label,
                "colour": looks[name].colour,
                "shape": SHAPES[looks[name].marker],
            }
            for name in names
        ],
        "places": list(dict.fromkeys(row["place"] for row in rows)),
        "rows": rows,
        "estimates": [e for e in points.estimates(every) if e["method"] != TWIN],
        "reported": points.reported_rows(values, sorted({row["family"] for row in rows})),
        "timelines": timelines.of_cells(telemetry, {row["id"] for row in rows}),
        "lines": [
            {key: getattr(line, key) for key in ("key", "label", "panel", "step")}
            for line in timelines.LINES
        ],
        "specs": kept.charts(),
    }
    counted = flags.counted(current)
    return web.render(
        "explorer.html",
        study=data["study"],
        warnings=_warnings(current),
        about="; ".join(part for part in footer_parts(current) if part not in counted) + ".",
        flags=counted,
        bins=timelines.MOST,
        gpu=data["gpu"],
        reported=bool(data["reported"]),
        data=web.json_text(data),
        library=web.script(kept.library()),
    )


_METRIC = ("key", "label", "unit", "says", "member", "ratio", "reference")


def _study(runs: pd.DataFrame) -> str:
    return ", ".join(sorted(runs["study"].dropna().unique())) or "without cells"


def _warnings(runs: pd.DataFrame) -> list[str]:
    """What must not be overlooked."""
    found = []
    made = sorted(runs.loc[runs["source"] == "synthetic", "dataset"].dropna().unique())
    if made:
        found.append(
            f"The data of {', '.join(made)} were generated (synthetic): rates and memory mean what "
            "they say, losses and accuracies do not."
        )
    hardware = sorted(runs.loc[runs["status"] == "completed", "hardware"].dropna().unique())
    if len(hardware) > 1:
        found.append(f"Cells of several kinds of hardware, one at a time: {', '.join(hardware)}.")
    if runs.empty:
        found.append("Nothing was measured yet: there is nothing to show.")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.explorer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--telemetry", type=Path, metavar="TELEMETRY.parquet")
    parser.add_argument("--reported", type=Path, metavar="REPORTED.csv", help="the paper's values")
    parser.add_argument("--output", required=True, type=Path, metavar="EXPLORER.html")
    arguments = parser.parse_args(argv)
    try:
        values = reported.read(arguments.reported) if arguments.reported else None
    except reported.ReportedError as error:
        sys.exit(str(error))
    runs, expected = read_runs(arguments.runs), read_expected(arguments.expected)
    web.write(page(runs, expected, arguments.telemetry, values), arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
