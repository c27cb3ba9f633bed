"""raw.csv: the SHA-256 of every raw file that the shipped tables were made from.

Written when a study is sealed, after everything derived was found to follow from these files. It
only grows: an attempt at a cell never changes once it was measured, so an entry of an attempt that
another seal would alter or drop is refused. By it a changed number is found that no table shows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from release.contents import LEDGER, Attempt, is_raw, owner

COLUMNS = ("cell", "attempt", "file", "sha256")


def text(digests: Mapping[str, str]) -> str:
    """The ledger of the raw files among these (name → SHA-256)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in filter(is_raw, sorted(digests)):
        found = Attempt.of(name)
        where = (found[0].cell, found[0].number, found[1]) if found else ("", "", name)
        writer.writerow([*where, digests[name]])
    return out.getvalue()


def read(folder: Path) -> dict[str, str] | None:
    """Name → SHA-256 as a study's ledger has them; None without one.

    Raises ValueError where it is no such table.
    """
    path = folder / LEDGER
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    if not rows or tuple(rows[0]) != COLUMNS or any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"{LEDGER} is not a table of {', '.join(COLUMNS)}")
    return {
        f"cells/{cell}/a{attempt}/{file}" if cell else file: digest
        for cell, attempt, file, digest in rows[1:]
    }


def differences(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Sentences: raw files that are not those that the tables were made from."""
    said = []
    for name in sorted({*known, *filter(is_raw, found)}):
        if name not in found:
            said.append(f"{owner(name)} is missing, and the tables were made from it")
        elif name not in known:
            said.append(f"{owner(name)} is there, and the tables were made without it")
        elif known[name] != found[name]:
            said.append(f"{owner(name)} differs from what the tables were made from")
    return said


def rewritten(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The attempts' files that have changed or gone since a ledger was written."""
    return [n for n in sorted(known) if Attempt.of(n) and known[n] != found.get(n)]
