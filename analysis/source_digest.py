"""A digest of the code that makes results from records, to make results of other code anew."""

import hashlib

from workflow.collocation import ROOT

PACKAGES = ("analysis", "paper", "workflow/collocation/study", "workflow/collocation/record")
SUFFIXES = {".py", ".csv", ".yaml", ".j2", ".html", ".css", ".js"}


def analysis_digest() -> str:
    """Digest of all modules, lists, templates, styles and scripts that results depend on."""
    content = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in SUFFIXES:
                content.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return content.hexdigest()[:16]
