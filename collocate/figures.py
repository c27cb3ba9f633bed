"""`collocate figures`: draw what is there."""

from collocate import studies
from collocate.app import app


@app.command()
def figures(
    name: studies.Name = studies.AUTO,
    results: studies.Results = None,
    settings: studies.Settings = None,
) -> None:
    """Draw what is measured; measure nothing."""
    studies.run_snakemake(studies.to_draw(name, settings, results), "--", "figures")
