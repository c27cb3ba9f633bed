"""The repository's own files: what git tracks, or in an unpacked archive what its list says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from release import manifest
from release.contents import MANIFEST


def tracked(root: Path) -> list[str]:
    """Names of the files of the code, without results. Raises OSError or ValueError."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    # Not those of a repository that an archive was unpacked into.
    surroundings = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
        names = run.stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = list(manifest.read(root / MANIFEST))
    names = (name for name in names if name and name != "ARTIFACT.md")
    return sorted(n for n in names if not n.startswith("results/") and (root / n).is_file())
