"""What people read of a study: pages in Markdown and HTML, and tables as CSV, of its estimates."""

from pathlib import Path

PAGES = ("results", "claims", "advice", "belief")
TABLES = ("alone", "sets", "hosts", "pair", "advice")
FIGURES = "figures/index.csv"  # which figures there are; without a title where one is not drawn
# Outputs, relative to the study's folder.
FILES = (
    *(f"{name}.md" for name in PAGES),
    *(f"tables/{name}.csv" for name in TABLES),
    *(f"report/{name}.html" for name in PAGES),
)


def closing(folder: Path) -> str:
    """The last lines of a run: advice first, then where to look. Empty without estimates."""
    from analysis.pages.render import closing_lines  # noqa: PLC0415, the Snakefile needs FILES only

    return closing_lines(folder)
