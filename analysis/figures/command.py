"""The data of all figures, or one figure drawn from its data.

python -m analysis figures data --folder results/h200
python -m analysis figures draw --data activity.csv --output activity.png activity.pdf
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="figures/<name>.csv of all figures; only what changed")
    data.add_argument("--folder", required=True, type=Path, metavar="RESULTS/STUDY")
    draw = commands.add_parser("draw", help="one figure, from its CSV alone")
    draw.add_argument("--data", required=True, type=Path, metavar="FIGURE.csv")
    draw.add_argument("--output", required=True, type=Path, nargs="+", action="extend")
    given = parser.parse_args(argv)
    try:
        if given.command == "data":
            from analysis.figures.data import write

            write(given.folder)
        else:
            from analysis.figures.draw import save
            from analysis.figures.sheet import Sheet

            save(Sheet.read(given.data), given.output)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
