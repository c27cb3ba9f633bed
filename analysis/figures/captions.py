"""The figures' captions as files, which is how Snakemake's report wants them.

python -m analysis.figures.captions --output workflow/report/figures
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from analysis.figures import NAMES


def captions() -> dict[str, str]:
    """Figure → its caption in reStructuredText, as its module has it."""
    modules = {name: import_module(f"analysis.figures.{name}") for name in NAMES}
    return {name: f"**{each.TITLE}.** {each.CAPTION}\n" for name, each in modules.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures.captions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    folder = parser.parse_args(argv).output
    folder.mkdir(parents=True, exist_ok=True)
    found = captions()
    for path in folder.glob("*.rst"):
        if path.stem not in found:
            path.unlink()
    for name, text in found.items():
        (folder / f"{name}.rst").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
