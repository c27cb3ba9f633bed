"""The command line of what is made of one study's folder: seal, artifact, contribute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def of_study(
    module: str, about: str, argv: list[str] | None, output: bool = False
) -> argparse.Namespace:
    """`study`, a folder; with `output` also the archive to write. `about` is the module's text.

    Ends with a line where there is no such folder.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="RESULTS/STUDY")
    if output:
        parser.add_argument("--output", required=True, type=Path, metavar="FILE.tar.gz")
    given = parser.parse_args(argv)
    if message := absent(given.study):
        sys.exit(message)
    return given


def absent(study: Path) -> str:
    """That there is no such folder, and which there are; empty where there is."""
    if study.is_dir():
        return ""
    there = sorted(path.parent.name for path in study.parent.glob("*/runs.txt"))
    return f"there is no {study}; {study.parent} has: {', '.join(there) or 'no finished study'}"
