"""estimates.parquet → what people read: pages, tables and the report's HTML.

python -m analysis pages --folder results/h200            the study's own files
python -m analysis pages --folder results/h200 --readme   README.md and the generated pages of docs/
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from jinja2 import TemplateError

from analysis.choose import update
from analysis.pages import render

ROOT = Path(__file__).parents[2]


def run(given: Namespace) -> None:
    """The command: pages into the study's folder, or README.md and docs/ into the repository."""
    try:
        if given.readme:
            into, files = ROOT, render.shipped(given.folder, given.claims)
        else:
            into, files = given.folder, render.Study(given.folder, given.claims).outputs()
        for name, text in files:
            update(into / name, text)
    except TemplateError as error:
        raise ValueError(f"a page's template: {error}") from None
