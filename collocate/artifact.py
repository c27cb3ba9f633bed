"""`collocate artifact`: one archive of a study and the code."""

from pathlib import Path
from typing import Annotated

import typer

from collocate import studies
from collocate.app import app


@app.command()
def artifact(
    study: studies.Measured,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default="STUDY-artifact.tar.xz"),
    ] = None,
    results: studies.Results = None,
) -> int:
    """Pack a sealed study and the code."""
    folder = studies.folder_of(study, results)
    from collocate.outputs import derive
    from release import bundle
    from release.scratch import scratch

    with scratch():
        output = output or Path(f"{folder.resolve().name}-artifact.tar.xz")
        return bundle.artifact(folder, output, derive)
