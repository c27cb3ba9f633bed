"""What reviewers use, of a study's folder: python -m release COMMAND --help"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

COMMANDS = {
    "verify": "do the shipped results follow from the raw files?",
    "seal": "make a finished study one that ships",
    "artifact": "one archive of code, raw and derived results, and how to evaluate it",
    "contribute": "an anonymised, checked bundle of a study measured elsewhere",
    "merge": "take in cells of a study that were measured elsewhere",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command. Its module is imported when it is used."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        several = "*" if name == "verify" else 1
        place = "FOLDER_OR_BUNDLE" if name == "merge" else "RESULTS/STUDY"
        command.add_argument("study", nargs=several, type=Path, metavar=place)
        if name == "verify":
            command.add_argument("--all", action="store_true", help="a line for each artefact")
        elif name == "merge":
            command.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
        elif name != "seal":
            command.add_argument("--output", required=True, type=Path, metavar="FILE.tar.gz")
    given = vars(parser.parse_args(argv))
    name, studies = given.pop("command"), given.pop("study")
    for study in studies:
        if not (study.is_dir() or name == "merge" and study.is_file()):
            there = sorted(path.parent.name for path in study.parent.glob("*/runs.txt"))
            sys.exit(f"there is no {study}; {study.parent} has: {', '.join(there) or 'no study'}")
    try:
        run = import_module(f"release.{name}").main
        return run(studies if name == "verify" else studies[0], *given.values())
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
