"""What this package is, as a digest: what other code made of a study is made anew."""

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent
_CORE = PACKAGE.parent / "workflow" / "collocation"
_KINDS = {".py", ".csv", ".j2", ".html", ".css", ".js"}


def digest() -> str:
    """Of its modules, lists, templates, styles and scripts, and of the core that it imports."""
    found = hashlib.sha256()
    for package in (PACKAGE, _CORE / "spec", _CORE / "record"):
        for path in sorted(package.rglob("*")):
            if path.suffix in _KINDS:
                found.update(f"{path.relative_to(PACKAGE.parent)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
