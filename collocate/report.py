"""`collocate report`: Snakemake's report of a study."""

from collocate import studies
from collocate.app import app


@app.command()
def report(
    name: studies.Name = studies.AUTO,
    results: studies.Results = None,
    settings: studies.Settings = [],  # noqa: B006, Typer reads it and copies it
) -> None:
    """Make Snakemake's report of a study.

    It writes report.html and report.zip into the study's folder."""
    words = studies.checked(studies.config(name, settings, results, measure=False))
    studies.run_snakemake(words, "--", "report")
