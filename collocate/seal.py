"""`collocate seal`: make a finished study one that ships."""

from collocate import studies
from collocate.app import app


@app.command()
def seal(study: studies.Measured, results: studies.Results = None) -> int:
    """Check a finished study, and hash its files.

    From then on it is an input: nothing in it is measured again."""
    folder = studies.folder_of(study, results)
    from collocate.outputs import derive
    from release import bundle
    from release.scratch import scratch

    with scratch():
        return bundle.seal(folder, derive)
