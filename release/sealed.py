"""What a run that makes tables and figures anew does to a study that ships, in one line."""

from __future__ import annotations

from pathlib import Path

from release import manifest
from release.contents import MANIFEST, is_raw, owner, shipped

NAMED = 3  # files that the line names


def notice(study: Path) -> str:
    """The line; empty where the study is not sealed. Never raises for what the folder holds."""
    if not (study / MANIFEST).exists():
        return ""
    try:
        files = changed(study)
    except (OSError, ValueError) as error:
        files = [f"{MANIFEST}: {' '.join(str(error).split())}"]
    name, what = study.name, f": what is made anew now may have other bytes than {MANIFEST} lists"
    if files:
        named = ", ".join([*files[:NAMED], *(["…"] if len(files) > NAMED else [])])
        what = f", and not as it was: {named}; what is made now follows that, and not {MANIFEST}"
    return (
        f"study '{name}' is sealed{what}; 'make verify STUDY={name}' tells what differs, "
        f"'make seal STUDY={name}' checks and seals it anew"
    )


def changed(study: Path) -> list[str]:
    """Raw files that are not as the manifest has them, or not there. Raises OSError, ValueError."""
    known = {name: d for name, d in manifest.read(study / MANIFEST).items() if is_raw(name)}
    found = manifest.digests(study, filter(is_raw, shipped(study)))
    return [owner(n) for n in sorted({*known, *found}) if known.get(n) != found.get(n)]
