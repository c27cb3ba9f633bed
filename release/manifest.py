"""Lists of files with their SHA-256, as `sha256sum` writes and checks them; and archives.

raw.sha256 lists the raw files; its own SHA-256 is the study's root, which README repeats.
MANIFEST.sha256 lists raw.sha256 and everything derived.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from analysis.records.safe import read_text
from release.contents import LISTS, is_raw, shipped

RAW, MANIFEST = LISTS
EPOCH = 315_532_800  # 1980-01-01: what every format can say


def sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files of a study that ship."""
    return {name: sha256(folder / name) for name in shipped(folder)}


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
    (folder / MANIFEST).write_text(text(rest | {RAW: root(folder)}), encoding="utf-8")
    return root(folder)


def root(folder: Path) -> str:
    """The SHA-256 of the list of raw files, for a place outside the folder to hold on to."""
    return sha256(folder / RAW)


def pack(output: Path, top: str, files: Mapping[str, bytes]) -> None:
    """A tar.gz of files below the folder `top`: sorted, without owners, all of one time."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=EPOCH, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime = len(content), EPOCH
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    partial.replace(output)
    print(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:.1f} MB")
