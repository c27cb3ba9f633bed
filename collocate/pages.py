"""`collocate pages`: README.md and the generated pages of docs/."""

from collocate import studies
from collocate.app import app


@app.command()
def pages(study: studies.Measured, results: studies.Results = None) -> None:
    """Write README.md and docs/ from a study.

    For maintainers: the numbers in them are those of a study that ships."""
    folder = studies.folder_of(study, results)
    from analysis.pages.render import write_docs

    write_docs(folder)
