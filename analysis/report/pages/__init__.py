"""Pages of a study in Markdown and HTML, and tables as CSV: names of their files.

The Snakefile imports this module, so it does not import pandas.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from workflow.collocation.study.regular_files import read_text

PAGES = ("results", "advice", "belief")
TABLES = ("alone", "sets", "hosts", "pair", "advice")
FIGURES = "figures/index.csv"  # the list of figures; one that is not drawn has no title
SHIPPED_ENDINGS = (".csv", ".png", ".pdf")  # of a figure: its data and pictures


def files(pages: Iterable[str] = PAGES) -> list[str]:
    """Files of these pages, and of the tables, relative to the study's folder."""
    return [
        *(f"{page}.md" for page in pages),
        *(f"tables/{table}.csv" for table in TABLES),
        *(f"report/{page}.html" for page in pages),
    ]


def closing(folder: Path) -> str:
    """The last lines of a run: advice first, then where to look. Empty without estimates."""
    from analysis.report.pages.render import closing_lines  # noqa: PLC0415, it imports pandas

    return closing_lines(folder)


def listed(folder: Path) -> list[dict[str, str]]:
    """Read the list of figures; empty before any was drawn. Raises OSError or ValueError."""
    path = folder / FIGURES
    return [*csv.DictReader(read_text(path).splitlines())] if path.exists() else []


def drawn(folder: Path) -> tuple[dict[str, str], list[Path]]:
    """Existing pictures → their titles, and files of drawn figures that are missing.

    SVG files do not ship: none is missing where there is no SVG at all.
    """
    endings = {*SHIPPED_ENDINGS, *(path.suffix for path in folder.glob("figures/*.svg"))}
    pictures, missing = {}, []
    for figure in listed(folder):
        for ending in endings if figure["title"] else ():
            path = folder / "figures" / f"{figure['figure']}{ending}"
            if not path.exists():
                missing.append(path)
            elif ending == ".png":
                pictures[path.as_posix()] = figure["title"]
    return pictures, missing
