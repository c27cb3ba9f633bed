"""`collocate merge`: take in what was measured elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from collocate import studies
from collocate.app import Mistyped, app


@app.command()
def merge(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="a study's folder, or an archive of one")
    ],
    name: Annotated[
        str, typer.Option("--study", metavar="STUDY", show_default="the one in SOURCE")
    ] = studies.AUTO,
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> int:
    """Take in what was measured elsewhere.

    Each measurement is checked first: it must belong to the same study. What does not belong is
    named and left out; nothing that was measured is overwritten.
    """
    source = source.expanduser().absolute()
    words = studies.checked(studies.config(name, settings, results))
    from release import merge as release
    from release.scratch import scratch

    with scratch():
        if not source.exists():
            raise Mistyped(f"{source}: no such file or folder")
        return release.merge(source, words)
