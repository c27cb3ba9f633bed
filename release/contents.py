"""What a study's folder holds: raw files as they were measured, and what is derived from them.

Raw are the cells' files and the few of the whole study that no analysis can make again. Everything
else that ships is derived. What runs leave behind (logs, locks, specs, Snakemake's report) does not
ship, nor what is large and soon made again.

Nothing but plain files is ever opened: a link, a FIFO or a socket is named instead.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

RUN = "run.json"
NOT_RUN = "not_run.txt"  # cells that were planned and have no record, written by who seals
CONTRIBUTED = "CONTRIBUTED.md"  # what says of a bundle where it is from
IMAGES = (".png", ".pdf")
# Of an invocation, not of a study. telemetry.parquet and the SVGs are large, and soon made again.
NEVER = ("complete", "report.zip", "report.html", "telemetry.parquet")
UNSHIPPED = (".svg", ".partial", ".unreadable.txt")
STUDY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
MOST_TEXT, MOST_TABLE = 200_000_000, 2_000_000_000  # bytes that are read of a file
_RAW = re.compile(
    r"cells/.+|(plan|mig_layouts)\.json|(runs|not_run)\.txt|(datasets|bench)/[^/]+\.json"
)
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/(.+)")
LISTS = ("raw.sha256", "MANIFEST.sha256")


class Unfit(ValueError):
    """A file that is not read, with the reason."""


@dataclass(frozen=True, order=True)
class Attempt:
    """One attempt at a cell; `folder` is relative to the study's."""

    cell: str
    number: int

    @property
    def folder(self) -> str:
        return f"cells/{self.cell}/a{self.number}"

    def __str__(self) -> str:
        return f"{self.cell} a{self.number}"

    @classmethod
    def of(cls, name: str) -> tuple[Attempt, str] | None:
        """The attempt that a file of the study belongs to, and the file's name there."""
        found = _ATTEMPT.fullmatch(name)
        return (cls(found[1], int(found[2])), found[3]) if found else None


def attempts(names: Iterable[str]) -> list[Attempt]:
    """The attempts that these files of a study are of, in order."""
    return sorted({of[0] for name in names if (of := Attempt.of(name))})


def shipped(folder: Path) -> list[str]:
    """The plain files of a study that ship, by name relative to it, sorted; without the lists."""
    return sorted(name for name, mode in _walk(folder) if stat.S_ISREG(mode))


def strange(folder: Path) -> list[str]:
    """Sentences: what is among them and is no plain file."""
    return sorted(
        f"{owner(name)} is {'a link' if stat.S_ISLNK(mode) else 'no plain file'}: it is not opened"
        for name, mode in _walk(folder)
        if not stat.S_ISREG(mode)
    )


def _walk(folder: Path, within: str = "") -> Iterator[tuple[str, int]]:
    """Name and mode of all in a folder but folders; links are not followed."""
    with os.scandir(folder / within) as entries:
        for entry in entries:
            name = f"{within}/{entry.name}".lstrip("/")
            mode = entry.stat(follow_symlinks=False).st_mode
            if entry.name.startswith(".") or entry.name in ("log", "jobs"):
                continue
            if stat.S_ISDIR(mode):
                yield from _walk(folder, name)
            elif name not in (*NEVER, *LISTS) and not name.endswith(UNSHIPPED):
                yield name, mode


def is_raw(name: str) -> bool:
    """Whether the file was measured or planned, not derived."""
    return _RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether the file is made anew and compared by its values; any other has to be as it was."""
    return not (is_raw(name) or name == CONTRIBUTED or Path(name).suffix in IMAGES)


def owner(name: str) -> str:
    """How a message names a file: with its cell, where it has one."""
    found = Attempt.of(name)
    return f"cell {found[0]}: {found[1]}" if found else name


# -- reading ----------------------------------------------------------------------------------


def read_bytes(path: Path, most: int = MOST_TEXT) -> bytes:
    """A plain file's content. Raises OSError, or Unfit for anything else or larger than `most`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as content:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Unfit(f"{path.name} is no plain file")
        if found.st_size > most:
            raise Unfit(f"{path.name} has {found.st_size} bytes, more than {most} are not read")
        return content.read()


def read_text(path: Path) -> str:
    """A plain text file. Raises OSError, ValueError."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> object:
    """Raises OSError, or ValueError where it is no JSON, or nested too deeply."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError:
        raise Unfit(f"{path.name} is nested too deeply") from None


def read_table(path: Path) -> pa.Table:
    """A Parquet file that fits into memory. Raises OSError, Unfit, pa.ArrowException."""
    import pyarrow as pa  # noqa: PLC0415, the Snakefile reads names only
    import pyarrow.parquet  # noqa: PLC0415

    read = pa.parquet.ParquetFile(pa.BufferReader(read_bytes(path, MOST_TABLE)))
    about = read.metadata
    encoded = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    # A column that repeats one value is small however many rows it has.
    if max(encoded, 8 * about.num_rows * about.num_columns) > MOST_TABLE:
        raise Unfit(f"{path.name} would take more than {MOST_TABLE / 1e9:.0f} GB of memory")
    return read.read()


def listed(folder: Path) -> list[str]:
    """The records that the study was analysed from (runs.txt), by name relative to its folder.

    Raises OSError where there is no such list.
    """
    lines = read_text(folder / "runs.txt").splitlines()
    return ["cells/" + line.rpartition("/cells/")[2] for line in lines if line.strip()]


def study_name(study: Path) -> str:
    """The name that the study's records give it. Raises OSError, ValueError."""
    for name in listed(study):
        if Attempt.of(name):
            found = str(read_json(study / name).get("study"))
            if STUDY_NAME.fullmatch(found):
                return found
            raise ValueError(f"{owner(name)} is of study {found[:60]!r}, which is no name")
    raise ValueError("runs.txt lists no record")
