"""Lists of files with their SHA-256, as `sha256sum` writes and checks them.

raw.sha256 lists the raw files; its own SHA-256 is the study's root, which README repeats.
MANIFEST.sha256 lists raw.sha256 and everything derived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from release.contents import LISTS, is_raw, read_text

RAW, MANIFEST = LISTS


def sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name → SHA-256 of plain files in the folder."""
    return {name: sha256(folder / name) for name in names}


def text(found: Mapping[str, str]) -> str:
    """A line a file, by name: what `sha256sum -c` reads in the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(path: Path) -> dict[str, str]:
    """Name → SHA-256 of a list. Raises OSError, or ValueError with the line that is none."""
    found = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise ValueError(f"{path.name}, line {number}: not a SHA-256 and a name")
        found[name] = digest
    return found


def write(folder: Path, found: Mapping[str, str]) -> str:
    """Write both lists of a study's files; the root."""
    raw = {name: digest for name, digest in found.items() if is_raw(name)}
    (folder / RAW).write_text(text(raw), encoding="utf-8")
    rest = {name: digest for name, digest in found.items() if name not in raw}
    rest[RAW] = root(folder)
    (folder / MANIFEST).write_text(text(rest), encoding="utf-8")
    return rest[RAW]


def known(folder: Path) -> dict[str, str]:
    """What both lists of a study say. Raises OSError, ValueError."""
    return {**read(folder / MANIFEST), **read(folder / RAW)}


def root(folder: Path) -> str:
    """The SHA-256 of the list of raw files, for a place outside the folder to hold on to."""
    return sha256(folder / RAW)
