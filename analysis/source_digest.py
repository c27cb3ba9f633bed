"""A digest of the code that makes results of records: what other code made is made anew."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("analysis", "paper", "workflow/collocation/study", "workflow/collocation/record")
KINDS = {".py", ".csv", ".yaml", ".j2", ".html", ".css", ".js"}


def digest() -> str:
    """Of modules, lists, templates, styles and scripts of the analysis and of what it imports."""
    content = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in KINDS:
                content.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return content.hexdigest()[:16]
