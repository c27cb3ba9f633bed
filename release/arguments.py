"""The command line of what is made of one study's folder: seal, artifact, contribute."""

from __future__ import annotations

import argparse
from pathlib import Path


def of_study(
    module: str, about: str, argv: list[str] | None, output: bool = False
) -> argparse.Namespace:
    """`study`, a folder; with `output` also the archive to write. `about` is the module's text."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="RESULTS/STUDY")
    if output:
        parser.add_argument("--output", required=True, type=Path, metavar="FILE.tar.gz")
    return parser.parse_args(argv)
