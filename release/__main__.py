"""What reviewers use, of a study's folder: python -m release COMMAND --help"""

import argparse
import sys
from pathlib import Path

COMMANDS = {
    "verify": "do the shipped results follow from the raw files?",
    "seal": "make a finished study one that ships",
    "artifact": "one archive of code, raw and derived results, and how to evaluate it",
    "merge": "take in cells of a study that were measured elsewhere",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command; its module is imported only then."""
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
    given = parser.parse_args(argv)
    for study in given.study:
        if not (study.is_dir() or given.command == "merge" and study.is_file()):
            there = sorted(path.parent.name for path in study.parent.glob("*/runs.txt"))
            sys.exit(f"there is no {study}; {study.parent} has: {', '.join(there) or 'no study'}")
    try:
        return _run(given)
    except KeyboardInterrupt:
        return 130


def _run(given: argparse.Namespace) -> int:
    if given.command == "verify":
        from release import verify

        return verify.main(given.study, given.all)
    if given.command == "merge":
        from release.merge import merge

        return merge(given.study[0], given.config)
    from release.bundle import artifact, seal

    study = given.study[0]
    return seal(study) if given.command == "seal" else artifact(study, given.output)


if __name__ == "__main__":
    sys.exit(main())
