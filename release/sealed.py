"""What a run that makes tables and figures anew says of a study that ships, in one line."""

from pathlib import Path

from release.contents import LISTS


def notice(study: Path) -> str:
    """The line; empty where the study is not sealed."""
    again = f"'make seal STUDY={study.name}' checks it and seals it anew"
    said = f"{study.name} is sealed: 'make verify STUDY={study.name}' tells what differs, {again}"
    return said if (study / LISTS[1]).exists() else ""
