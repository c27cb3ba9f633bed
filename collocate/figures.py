"""`collocate figures`: draw what is there."""

from collocate import studies
from collocate.app import app


@app.command()
def figures(
    name: studies.Name = studies.AUTO,
    results: studies.Results = None,
    settings: studies.Settings = [],  # noqa: B006, Typer reads it and copies it
) -> None:
    """Draw what is measured; measure nothing."""
    words = studies.checked(studies.config(name, settings, results, measure=False))
    studies.run_snakemake(words, "--", "figures")
