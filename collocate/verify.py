"""`collocate verify`: do published numbers follow from the raw files?"""

from typing import Annotated

import typer

from collocate import ROOT, studies
from collocate.app import app


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY]...",
            help="names or folders",
            show_default="all that ship",
            autocompletion=studies.names_of_results,
        ),
    ] = None,
    results: studies.Results = None,
) -> int:
    """Recompute published numbers from raw files."""
    folders = [studies.folder_of(name, results) for name in names or []]
    from collocate.outputs import derive
    from release import verify as release
    from release.scratch import scratch

    with scratch():
        return release.verify(folders, (results or ROOT / "results").expanduser(), derive)
