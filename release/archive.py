"""Archives that are the same bytes whenever they are made of the same files."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from release import manifest

EPOCH = 315_532_800  # 1980-01-01: what every format can say


def write(output: Path, top: str, files: Mapping[str, Path | bytes]) -> None:
    """A tar.gz with these files (name → where it is, or its content) below the folder `top`.

    Sorted, without owners, all of one time; whole or not at all.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=EPOCH, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, source in sorted(files.items()):
            content = read(source)
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime = len(content), EPOCH
            runs = isinstance(source, Path) and os.access(source, os.X_OK)
            entry.mode = 0o755 if runs else 0o644
            archive.addfile(entry, io.BytesIO(content))
    partial.replace(output)


def read(source: Path | bytes) -> bytes:
    """The content of one of an archive's files."""
    return source if isinstance(source, bytes) else source.read_bytes()


def code(root: Path) -> list[str]:
    """The repository's own files, without results: those that git tracks, or in an unpacked archive
    those of its list. Raises OSError or ValueError.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    # Not those of a repository that an archive was unpacked into.
    surroundings = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
        names = run.stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = list(manifest.read(root / manifest.MANIFEST))
    own = (name for name in names if name and name not in ("ARTIFACT.md", manifest.MANIFEST))
    return sorted(n for n in own if not n.startswith("results/") and (root / n).is_file())
