"""What a run that makes tables and figures anew says of a study that ships, in one line."""

from __future__ import annotations

from pathlib import Path

from release.contents import LISTS


def notice(study: Path) -> str:
    """The line; empty where the study is not sealed."""
    name = study.name
    return (
        f"study '{name}' is sealed: 'make verify STUDY={name}' tells what differs from then, "
        f"'make seal STUDY={name}' checks it and seals it anew"
        if (study / LISTS[1]).exists()
        else ""
    )
