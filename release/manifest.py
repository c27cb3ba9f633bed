"""The files of a study that ship, and their SHA-256 as `sha256sum` writes and checks them.

raw.sha256 lists the raw files, as they were measured; its own SHA-256 is the study's root.
MANIFEST.sha256 lists raw.sha256 and everything derived.
"""

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from analysis.records.untrusted_files import read_json, read_text

RUN, RUNS, PLAN, NOT_RUN = "run.json", "runs.txt", "plan.json", "not_run.txt"
RAW, MANIFEST = "raw.sha256", "MANIFEST.sha256"
EPOCH = 315_532_800  # 1980-01-01, the time of every file in an archive

_RAW = re.compile(r"cells/.+|(plan|mig_layouts|(datasets|bench)/[^/]+)\.json|(runs|not_run)\.txt")
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/([^/]+)")
_STUDY = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
# What an invocation leaves behind, or what is large and soon made again.
_NEVER = {"complete", "report.zip", "report.html", "telemetry.parquet", RAW, MANIFEST}
_NEVER_ENDING = (".svg", ".partial", ".unreadable.txt")
_UNSEEN = {"log", "jobs", "ready"}  # folders


class Attempt(NamedTuple):
    """One attempt at a cell."""

    cell: str
    number: int

    @property
    def folder(self) -> str:
        """Relative to the study's folder."""
        return f"cells/{self.cell}/a{self.number}"

    def __str__(self) -> str:
        return f"{self.cell} a{self.number}"


def attempts(names: Iterable[str]) -> dict[Attempt, list[str]]:
    """Attempt → the names of its files, among files of a study."""
    found: dict[Attempt, list[str]] = {}
    for name in sorted(names):
        if of := _ATTEMPT.fullmatch(name):
            found.setdefault(Attempt(of[1], int(of[2])), []).append(of[3])
    return dict(sorted(found.items()))


def is_raw(name: str) -> bool:
    """Whether a file was measured or planned, and not derived."""
    return _RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether a file is made anew and compared by its values; any other has to be as it was."""
    return not (is_raw(name) or name.endswith((".png", ".pdf")))


def never_ships(name: str) -> bool:
    """Whether a file is of an invocation (logs, locks), or large and soon made again."""
    unseen = any(part.startswith(".") or part in _UNSEEN for part in name.split("/"))
    return unseen or name in _NEVER or name.endswith(_NEVER_ENDING)


def shipped(folder: Path) -> list[str]:
    """The files of a study that ship, by name relative to it, sorted; without the two lists.

    Raises ValueError for a link or anything else that is no plain file: it is never opened.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if never_ships(name):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{name} is a link or no plain file: it is not opened")
        if path.is_file():
            found.append(name)
    return found


def sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files of a study that ship."""
    return {name: sha256(folder / name) for name in shipped(folder)}


def text(found: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(path: Path) -> dict[str, str]:
    """Name → SHA-256 of a list. Raises OSError, or ValueError for what is none."""
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
    derived = {name: digest for name, digest in found.items() if name not in raw}
    (folder / MANIFEST).write_text(text(derived | {RAW: root(folder)}), encoding="utf-8")
    return root(folder)


def root(folder: Path) -> str:
    """The SHA-256 of the list of raw files, for a place outside the folder to hold on to."""
    return sha256(folder / RAW)


def listed(folder: Path) -> list[str]:
    """The records that the study was analysed from, by name relative to its folder.

    Raises OSError, or ValueError for a line that names no record.
    """
    lines = [line for line in read_text(folder / RUNS).splitlines() if line.strip()]
    names = ["cells/" + line.rpartition("/cells/")[2] for line in lines]
    for line, name in zip(lines, names, strict=True):
        of = _ATTEMPT.fullmatch(name)
        if of is None or of[3] != RUN or ".." in name:
            raise ValueError(f"{RUNS} lists {line[:200]!r}, which is no record of a cell")
    return names


def study_name(folder: Path) -> str:
    """The name that the study's records give it. Raises OSError, ValueError."""
    first = next(iter(attempts(shipped(folder))), None)
    found = str(read_json(folder / first.folder / RUN).get("study")) if first else ""
    if not _STUDY.fullmatch(found):
        raise ValueError(f"no record of a cell names the study: {found[:60]!r}")
    return found


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_not_run(folder: Path) -> list[str]:
    """Write not_run.txt: the planned cells that have no record; these."""
    recorded = {attempt.cell for attempt in attempts(shipped(folder))}
    missing = sorted({cell["id"] for cell in read_json(folder / PLAN)} - recorded)
    write_lines(folder / NOT_RUN, missing)
    return missing


def pack(output: Path, top: str, files: Mapping[str, bytes]) -> None:
    """Write a tar.gz of files below the folder `top`: sorted, without owners, all of one time."""
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
