"""What reviewers use, of a study's folder: python -m release COMMAND --help"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

# Command → its module, what it does, its arguments. A module's function of that name takes them.
_STUDY = ("study", {"type": Path, "metavar": "RESULTS/STUDY"})
COMMANDS = {
    "verify": (
        "verify",
        "do the shipped results follow from the raw files?",
        (
            ("studies", {"type": Path, "metavar": "RESULTS/STUDY", "nargs": "*"}),
            ("--all", {"action": "store_true", "help": "a line for each artefact"}),
        ),
    ),
    "seal": ("bundle", "make a finished study one that ships", (_STUDY,)),
    "artifact": (
        "bundle",
        "one archive of code, raw and derived results, and how to evaluate it",
        (_STUDY, ("--output", {"required": True, "type": Path, "metavar": "FILE.tar.gz"})),
    ),
    "merge": (
        "merge",
        "take in cells of a study that were measured elsewhere",
        (
            ("source", {"type": Path, "metavar": "FOLDER_OR_BUNDLE"}),
            ("--config", {"nargs": "*", "default": [], "metavar": "KEY=VALUE"}),
        ),
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; its module is imported only then."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, about, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        for flag, settings in arguments:
            command.add_argument(flag, **settings)
    given = vars(parser.parse_args(argv))
    name = given.pop("command")
    try:
        return getattr(import_module(f"release.{COMMANDS[name][0]}"), name)(**given)
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
