"""The folder `collocate` in the user's project, where answers and sweeps go."""

from pathlib import Path

from collocate import ROOT

PROJECT = Path("collocate")


def project_folder() -> Path:
    """That folder, made if need be and hidden from git; results/ in the clone, whose collocate/ is
    a package.
    """
    if Path.cwd() == ROOT:
        return Path("results")
    if not PROJECT.exists():
        PROJECT.mkdir(exist_ok=True)
        (PROJECT / ".gitignore").write_text("*\n", encoding="utf-8")
    return PROJECT
