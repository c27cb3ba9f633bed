"""What is made of a study's records: python -m analysis COMMAND --help"""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module
from math import inf
from pathlib import Path

from analysis.code import digest
from analysis.records.untrusted_files import printable

ROOT = Path(__file__).resolve().parents[1]

_FOLDER = ("--folder", {"required": True, "type": Path, "metavar": "RESULTS/STUDY"})
_CLAIMS = ("--claims", {"type": Path, "default": ROOT / "config/claims.yaml"})
_RECORDS = (
    ("--study", {"required": True}),
    ("--output", {"required": True, "type": Path, "metavar": "FILE.parquet"}),
    ("--list", {"type": Path, "metavar": "FILE", "help": "file with the path of a record a line"}),
    ("runs", {"nargs": "*", "type": Path, "metavar": "RUN.json", "help": "records to read"}),
)
# Command → its module, what it does, its arguments. A module's `run` takes them, and returns what
# is to be printed. It is imported when it is used: drawing needs no more than matplotlib.
COMMANDS = {
    "merge": ("records.merge", "run.json files → runs.parquet", _RECORDS),
    "telemetry": ("records.telemetry", "gpu.parquet files → telemetry.parquet", _RECORDS),
    "estimate": (
        "publish",
        "runs.parquet → estimates.parquet: every published number, once",
        (_FOLDER, _CLAIMS, ("--reported", {"type": Path, "default": ROOT / "config/reported.csv"})),
    ),
    "explain": (
        "explain",
        "the cells, baselines and arithmetic behind a number",
        (_FOLDER, ("id", {"help": "of a number; of a part of one, ids that have it are told"})),
    ),
    "figures": (
        "figures.command",
        "the figures that a study has data for, each with its data",
        (_FOLDER, ("--data-only", {"action": "store_true", "help": "no pictures"})),
    ),
    "pages": (
        "pages.render",
        "results, claims, advice and tables from the estimates",
        (
            _FOLDER,
            _CLAIMS,
            ("--readme", {"action": "store_true", "help": "write README.md and docs/ instead"}),
        ),
    ),
    "explorer": (
        "explorer.command",
        "the study as one page",
        (_FOLDER, ("--output", {"required": True, "type": Path, "metavar": "HTML"})),
    ),
    "advise": (
        "advise",
        "how many of a job, by which method",
        (
            _FOLDER,
            ("--job", {"default": "", "help": "a workload of the study"}),
            ("--slowdown", {"default": inf, "type": float, "help": "most of the slowest job"}),
            ("--memory", {"default": inf, "type": float, "help": "most that may be used, GB"}),
        ),
    ),
    "compare": (
        "compare",
        "two studies side by side",
        (
            ("a", {"type": Path, "metavar": "A", "help": "folder of a study: results/STUDY"}),
            ("b", {"type": Path, "metavar": "B"}),
            ("--output", {"required": True, "type": Path, "metavar": "FOLDER"}),
        ),
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command. What a person got wrong is one line on stderr, and the code 1."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument("--code", help="end at once unless the analysis code has this digest")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, what, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        for flag, settings in arguments:
            command.add_argument(flag, **settings)
    given = parser.parse_args(argv)
    try:
        _planned_by(given.code)
        text = import_module(f"analysis.{COMMANDS[given.command][0]}").run(given)
        _planned_by(given.code)
    except (OSError, ValueError) as error:
        lines = map(printable, str(error).split("\n"))
        sys.stderr.write("\n".join(lines) + "\n")
        return 1
    if given.command in ("advise", "explain") and (newer := _newer(given.folder)):
        print(f"{newer} cells are newer than these numbers: 'make figures' first", file=sys.stderr)
    if text:
        print(text)
    return 0


def _newer(folder: Path) -> int:
    """How many records were written after the estimates; 0 in a study that ships."""
    if (folder / "MANIFEST.sha256").exists():  # of which a clone sets all times anew
        return 0
    made = (folder / "estimates.parquet").stat().st_mtime
    found = folder.glob("cells/*/*/*/*/*/run.json")
    return sum(path.stat().st_mtime > made for path in found)


def _planned_by(code: str | None) -> None:
    """Raise ValueError where a run was planned with other analysis code than there is now."""
    if code not in (None, digest()):
        raise ValueError("the code of the analysis has changed since this run began; start again")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, and who draws for it, wordlessly
    sys.exit(main())
