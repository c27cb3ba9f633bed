"""The data of all figures, one figure drawn from its data, or both for all that changed.

python -m analysis figures all --folder results/h200
python -m analysis figures data --folder results/h200
python -m analysis figures draw --data activity.csv --output activity.png activity.pdf
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from analysis.figures import APPENDIX, NAMES

ENDINGS = ("png", "pdf", "svg")
PROCESSES = 2


def draw(data: Path, outputs: list[Path]) -> None:
    """One figure, from its CSV alone. Raises OSError or ValueError."""
    from analysis.figures.draw import save
    from analysis.figures.sheet import Sheet

    save(Sheet.read(data), outputs)


def write(folder: Path) -> list[Path]:
    """The data of all figures; returns the files that changed. Raises OSError or ValueError."""
    from analysis.figures import data

    return data.write(folder)


def everything(folder: Path) -> list[str]:
    """Write all data, and draw each figure whose data or code are newer than its pictures.

    Returns the names of the figures drawn. Raises OSError or ValueError.
    """
    changed = {path.stem for path in write(folder)}
    code = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    tasks = []
    for name in (*NAMES, *APPENDIX):
        pictures = [folder / "figures" / f"{name}.{ending}" for ending in ENDINGS]
        fresh = all(path.exists() and path.stat().st_mtime > code for path in pictures)
        if name in changed or not fresh:
            tasks.append((folder / "figures" / f"{name}.csv", pictures))
    with ProcessPoolExecutor(PROCESSES, get_context("fork")) as pool:
        for done in [pool.submit(draw, *task) for task in tasks]:
            done.result()
    return [data.stem for data, _ in tasks]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("all", "the data of all figures, and pictures of what changed"),
        ("data", "figures/<name>.csv of all figures; only what changed"),
    ):
        one = commands.add_parser(name, help=what)
        one.add_argument("--folder", required=True, type=Path, metavar="RESULTS/STUDY")
    one = commands.add_parser("draw", help="one figure, from its CSV alone")
    one.add_argument("--data", required=True, type=Path, metavar="FIGURE.csv")
    one.add_argument("--output", required=True, type=Path, nargs="+", action="extend")
    given = parser.parse_args(argv)
    try:
        if given.command == "all":
            print(f"drawn: {', '.join(everything(given.folder)) or 'nothing, all is as it was'}")
        elif given.command == "data":
            write(given.folder)
        else:
            draw(given.data, given.output)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
