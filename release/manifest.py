"""Lists of files with their SHA-256, as `sha256sum` writes and checks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path


def sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name → SHA-256 of files in the folder."""
    return {name: sha256(folder / name) for name in names}


def text(found: Mapping[str, str]) -> str:
    """A line a file, by name: what `sha256sum -c` reads in the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(path: Path) -> dict[str, str]:
    """Name → SHA-256 of a list. Raises OSError, or ValueError with the line that is none."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise ValueError(f"{path.name}, line {number}: not a SHA-256 and a name")
        found[name] = digest
    return found


def root(text: str) -> str:
    """One digest of a list, for a place outside it to hold on to."""
    return hashlib.sha256(text.encode()).hexdigest()
