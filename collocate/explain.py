"""`collocate explain`: what a published number is made of."""

from typing import Annotated

import typer

from collocate import studies, terminal
from collocate.app import app


@app.command()
def explain(
    study: studies.Measured,
    number: Annotated[
        str,
        typer.Argument(metavar="ID", help="as in estimates.csv; a part lists the nearest"),
    ],
    results: studies.Results = None,
) -> None:
    """Show what a published number is made of."""
    folder = studies.folder_of(study, results)
    from analysis.estimates import table as estimates
    from analysis.report.explain import explain as lines_of

    terminal.show(lines_of(estimates.read_estimates(folder / "estimates.parquet"), number))
    studies.warn_if_outdated(folder)
