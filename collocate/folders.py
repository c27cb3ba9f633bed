"""The folder `collocate` in the user's project, where answers and sweeps go."""

from pathlib import Path

PROJECT = Path("collocate")


def project_folder() -> Path:
    """That folder, which is made if need be, and is hidden from git."""
    if not PROJECT.exists():
        PROJECT.mkdir(exist_ok=True)
        (PROJECT / ".gitignore").write_text("*\n", encoding="utf-8")
    return PROJECT
