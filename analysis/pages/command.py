"""estimates.parquet → what people read: pages, tables and the report's HTML.

python -m analysis pages --folder results/h200            the study's own files
python -m analysis pages --folder results/h200 --readme   README.md and the generated pages of docs/
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jinja2 import TemplateError

from analysis.choose import update
from analysis.pages import render
from analysis.pages.book import PageError

ROOT = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", required=True, type=Path, metavar="RESULTS/STUDY")
    parser.add_argument("--claims", type=Path, default=ROOT / "config/claims.yaml")
    parser.add_argument("--readme", action="store_true", help="write README.md and docs/ instead")
    given = parser.parse_args(argv)
    try:
        if given.readme:
            into, files = ROOT, render.shipped(given.folder, given.claims)
        else:
            into, files = given.folder, render.Study(given.folder, given.claims).outputs()
        for name, text in files:
            update(into / name, text)
    except (OSError, ValueError, PageError, TemplateError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
