"""Archives that are the same bytes whenever they are made of the same files."""

import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

EPOCH = 315_532_800  # 1980-01-01: what every format can say


def write(output: Path, top: str, files: Mapping[str, Path | bytes]) -> None:
    """A tar.gz with these files (name → where it is, or its content) below the folder `top`.

    Sorted, without owners, all of one time; whole or not at all. Says what it wrote.
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
    print(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:.1f} MB")


def read(source: Path | bytes) -> bytes:
    """The content of one of an archive's files."""
    return source if isinstance(source, bytes) else source.read_bytes()
