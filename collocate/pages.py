"""`collocate pages`: README.md, its picture, and the generated pages of docs/."""

from pathlib import Path
from typing import Annotated

import typer

from collocate import studies
from collocate.app import app


@app.command()
def pages(
    study: studies.Measured,
    advice: Annotated[
        Path | None,
        typer.Option(
            metavar="ADVICE.json",
            exists=True,
            show_default="the one recorded before",
            help="record this answer of `collocate advise` for the picture in README.md",
        ),
    ] = None,
    results: studies.Results = None,
) -> None:
    """Write README.md and docs/ from a study.

    For maintainers: the numbers in them are those of a study that ships.
    """
    folder = studies.folder_of(study, results)
    from collocate import picture
    from paper.pages import write_docs

    if advice is not None:
        picture.record(advice)
    picture.draw()
    write_docs(folder)
