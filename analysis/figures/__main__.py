"""Draw figures from a merged study: one file set per figure and arm, arms never share a figure.

    python -m analysis.figures all --runs results/smoke/runs.parquet --output results/smoke/figures
    python -m analysis.figures epoch_time --runs ... --arm faithful --output STEM

With `all`, --output is a folder that gets <figure>_<arm>.{png,pdf,csv}; with one figure it is a
stem that gets <stem>_<arm>.{png,pdf,csv}.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis import style
from analysis.cells import load, read_expected, read_runs
from analysis.figures import FIGURES


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=["all", *FIGURES], help="which figure")
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--arm", action="append", help="draw only this arm (may be repeated)")
    parser.add_argument("--hardware", help="GPU model to draw, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER|STEM")
    arguments = parser.parse_args(argv)

    expected = read_expected(arguments.expected)
    study = load(read_runs(arguments.runs), expected, arguments.hardware)
    for arm in arguments.arm or study.arms():
        for name in FIGURES if arguments.name == "all" else [arguments.name]:
            single = arguments.output.with_name(f"{arguments.output.name}_{arm}")
            stem = arguments.output / f"{name}_{arm}" if arguments.name == "all" else single
            figure, drawn = FIGURES[name](study, arm)
            for path in style.save(figure, stem, drawn):
                print(path)
    if not (arguments.arm or study.arms()):
        sys.stderr.write(f"nothing to draw: {arguments.runs} holds no cells\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
