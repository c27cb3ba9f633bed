"""`collocate report`: Snakemake's report of a study."""

from collocate import studies
from collocate.app import app


@app.command()
def report(
    name: studies.Name = studies.AUTO,
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> None:
    """Make Snakemake's report of a study.

    It writes report.html and report.zip into the study's folder."""
    studies.run_snakemake(studies.to_draw(name, settings, results), "--", "report")
