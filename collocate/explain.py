"""`collocate explain`: what a published number is made of."""

from typing import Annotated

import typer

from collocate import studies, terminal
from collocate.app import Mistyped, app


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
    from analysis.estimates import table
    from analysis.report.explain import explain as explanation

    estimates = table.read_estimates(folder / "estimates.parquet")
    try:
        text = explanation(estimates, number)
    except ValueError as error:  # there is no such number
        raise Mistyped(str(error)) from None
    terminal.show(text)
    studies.warn_if_outdated(folder)
