"""What reviewers use, of a study's folder: python -m release COMMAND --help"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from workflow.collocation.process_lifetime import end_with_starter

MODULES = {"verify": "verify", "seal": "bundle", "artifact": "bundle", "merge": "merge"}


def main(argv: list[str] | None = None) -> int:
    """Run a command: the function of its name. Its module is imported only then."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    of_study = {"type": Path, "metavar": "RESULTS/STUDY"}
    verify = commands.add_parser("verify", help="do the shipped results follow from the raw files?")
    verify.add_argument("studies", nargs="*", **of_study)
    seal = commands.add_parser("seal", help="make a finished study one that ships")
    seal.add_argument("study", **of_study)
    artifact = commands.add_parser("artifact", help="one archive of a study and the code")
    artifact.add_argument("study", **of_study)
    artifact.add_argument("--output", required=True, type=Path, metavar="FILE.tar.xz")
    merge = commands.add_parser("merge", help="take in cells that were measured elsewhere")
    merge.add_argument("source", type=Path, metavar="FOLDER_OR_BUNDLE")
    merge.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    given = vars(parser.parse_args(argv))
    name = given.pop("command")
    asked = [given["study"]] if "study" in given else given.get("studies", [])
    for study in asked:
        if not study.is_dir():
            from analysis.files import no_study  # noqa: PLC0415, only then

            sys.stderr.write(f"{no_study(study, 'cells')}\n")
            return 2
    try:
        return getattr(import_module(f"release.{MODULES[name]}"), name)(**given)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    end_with_starter()
    sys.exit(main())
