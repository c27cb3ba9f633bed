"""What people read of a study: pages in Markdown and HTML, and tables as CSV, of its estimates."""

import csv
from collections.abc import Iterable
from pathlib import Path

from workflow.collocation.study.regular_files import read_text

PAGES = ("results", "advice", "belief")
TABLES = ("alone", "sets", "hosts", "pair", "advice")
FIGURES = "figures/index.csv"  # which figures there are; without a title where one is not drawn
ENDINGS = (".csv", ".png", ".pdf")  # of a figure that ships: its data, its pictures


def files(pages: Iterable[str] = PAGES) -> list[str]:
    """Files that are written of these pages, and tables, relative to the study's folder."""
    return [
        *(f"{page}.md" for page in pages),
        *(f"tables/{table}.csv" for table in TABLES),
        *(f"report/{page}.html" for page in pages),
    ]


def closing(folder: Path) -> str:
    """The last lines of a run: advice first, then where to look. Empty without estimates."""
    from analysis.report.pages.render import closing_lines  # noqa: PLC0415, the Snakefile needs names only

    return closing_lines(folder)


def listed(folder: Path) -> list[dict[str, str]]:
    """Rows of the list of figures; none before any was drawn. Raises OSError, or ValueError."""
    path = folder / FIGURES
    return [*csv.DictReader(read_text(path).splitlines())] if path.exists() else []


def drawn(folder: Path) -> tuple[dict[str, str], list[Path]]:
    """Pictures that are there → their titles; files of drawn figures that are not there any more.
    SVGs do not ship: where there is none, none is missing.
    """
    endings = {*ENDINGS, *(path.suffix for path in folder.glob("figures/*.svg"))}
    titles = {folder / "figures" / row["figure"]: row["title"] for row in listed(folder)}
    files = [f.with_suffix(e) for f, title in titles.items() if title for e in endings]
    pictures = [path for path in files if path.suffix == ".png" and path.exists()]
    lost = [path for path in files if not path.exists()]
    return {path.as_posix(): titles[path.with_suffix("")] for path in pictures}, lost
