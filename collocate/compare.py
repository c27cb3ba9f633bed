"""`collocate compare`: two studies side by side."""

from pathlib import Path
from typing import Annotated

import typer

from collocate import studies, terminal
from collocate.app import app


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="a study: its name, or its folder")],
    second: Annotated[str, typer.Argument(metavar="B", help="the study to compare it with")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", show_default="compare-A-B"),
    ] = None,
    results: studies.Results = None,
) -> None:
    """Compare the numbers of two studies."""
    folders = [studies.folder_of(name, results) for name in (first, second)]
    from analysis.report.compare import write_comparison

    names = "-".join(folder.resolve().name for folder in folders)
    terminal.show(write_comparison(*folders, output or Path(f"compare-{names}")))
