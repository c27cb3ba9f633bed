"""What a run that makes tables and figures anew does to a study that ships, in one line."""

from __future__ import annotations

from pathlib import Path

from release import manifest
from release.contents import is_raw, owner, shipped

NAMED = 3  # files that the line names


def notice(study: Path) -> str:
    """The line; empty where the study is not sealed. Never raises for what the folder holds."""
    if not (study / manifest.MANIFEST).exists():
        return ""
    try:
        known = manifest.read(study / manifest.RAW)
        found = manifest.digests(study, filter(is_raw, shipped(study)))
        files = [owner(n) for n in sorted({*known, *found}) if known.get(n) != found.get(n)]
    except (OSError, ValueError) as error:
        files = [" ".join(str(error).split())]
    more = ", …" if len(files) > NAMED else ""
    changed = f"; not as it was sealed: {', '.join(files[:NAMED])}{more}" if files else ""
    return (
        f"study '{study.name}' is sealed{changed}; 'make verify STUDY={study.name}' tells what "
        f"differs, 'make seal STUDY={study.name}' checks it and seals it anew"
    )
