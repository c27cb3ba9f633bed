"""What this package is, as a digest: what other code made of a study is made anew."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent
_KINDS = {".py", ".csv", ".j2", ".html", ".css", ".js"}


def digest(package: Path = PACKAGE) -> str:
    """Of all that it reads of itself: its modules, lists, templates, styles and scripts."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in _KINDS:
            found.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
