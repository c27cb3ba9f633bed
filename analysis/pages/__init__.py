"""What people read of a study: pages and tables as Markdown, CSV and HTML, from its estimates."""

from __future__ import annotations

from pathlib import Path

PAGES = ("findings", "claims", "advice", "belief")
TABLES = ("alone", "sets", "pair", "hosts", "isolation")
# Outputs, relative to the study's folder.
FILES = (
    *(f"{name}.md" for name in PAGES),
    "advice.csv",
    *(f"tables/{name}.{ending}" for name in TABLES for ending in ("md", "csv")),
    *(f"report/{name}.html" for name in (*PAGES, *TABLES)),
)


def closing(folder: Path) -> str:
    """The last lines of a run: advice first, then where to look. Empty without estimates."""
    from analysis.pages.render import closing_lines  # noqa: PLC0415, the Snakefile needs FILES only

    return closing_lines(folder)
