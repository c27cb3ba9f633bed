"""`collocate study`: measure what is left of a study, and draw."""

from typing import Annotated

import typer

from collocate import studies
from collocate.app import app


@app.command()
def study(
    name: studies.Name = studies.AUTO,
    budget: studies.Budget = "",
    gpus: studies.Gpus = "",
    draw: Annotated[bool, typer.Option(help="make tables, figures and pages, too")] = True,
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> None:
    """Measure what is left of a study, and draw it.

    The same command carries on where it was stopped. Snakemake's own command line does the same:
    snakemake --cores 1 --resources gpu=1 --config study=STUDY
    """
    count = studies.number_of_gpus(gpus) if gpus else None
    words = studies.checked(studies.config(name, settings, results, budget=budget))
    studies.run_snakemake(words, *([] if draw else ["--until", "collocate"]), gpus=count)
