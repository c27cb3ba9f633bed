"""What a study's folder holds: raw files as they were measured, and what is derived from them.

Raw are the cells' files and the few of the whole study that no analysis can make again. What runs
leave behind (logs, locks, Snakemake's report) does not ship, nor what is large and soon made again.
Nothing but plain files is ever opened: a link, a FIFO or a socket is named instead.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from analysis.records import safe
from analysis.records.safe import MOST_TABLE, read_json, read_text

RUN, RUNS, PLAN = "run.json", "runs.txt", "plan.json"
NOT_RUN = "not_run.txt"  # cells that were planned and have no record, written by who seals
CONTRIBUTED = "CONTRIBUTED.md"  # what says of a bundle where it is from
LISTS = ("raw.sha256", "MANIFEST.sha256")
# Of an invocation, or large and soon made again.
_NEVER = ("complete", "report.zip", "report.html", "telemetry.parquet", *LISTS)
_NEVER_ENDING = (".svg", ".partial", ".unreadable.txt")
_RAW = re.compile(r"cells/.+|(plan|mig_layouts|(datasets|bench)/[^/]+)\.json|(runs|not_run)\.txt")
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/(.+)")
_STUDY = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_UNSEEN = ("log", "jobs", "ready")  # folders
DEEPEST = 20  # folders within each other


class Attempt(NamedTuple):
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


def owner(name: str) -> str:
    """How a message names a file: with its cell, where it has one."""
    found = Attempt.of(name)
    return f"cell {found[0]}: {found[1]}" if found else name


def is_raw(name: str) -> bool:
    """Whether the file was measured or planned, not derived."""
    return _RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether the file is made anew and compared by its values; any other has to be as it was."""
    return not (is_raw(name) or name == CONTRIBUTED or name.endswith((".png", ".pdf")))


def shipped(folder: Path) -> list[str]:
    """The plain files of a study that ship, by name relative to it, sorted; without the lists."""
    return sorted(name for name, found in _walk(folder) if not _odd(found))


def strange(folder: Path) -> list[str]:
    """Sentences: what is among them and is no plain file, or one too large to read."""
    odd = {name: why for name, found in _walk(folder) if (why := _odd(found))}
    return [f"{owner(name)} is {odd[name]}: it is not opened" for name in sorted(odd)]


def _odd(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "a link or no plain file"
    return f"larger than {MOST_TABLE} bytes" if found.st_size > MOST_TABLE else ""


def _walk(folder: Path, within: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """All in a folder but folders, each with what it is; links are not followed.

    Raises OSError, or ValueError where folders lie too deep.
    """
    if within.count("/") > DEEPEST:
        raise ValueError(f"{within[:60]} has more than {DEEPEST} folders within each other")
    with os.scandir(folder / within) as entries:
        for entry in entries:
            name = f"{within}/{entry.name}".lstrip("/")
            found = entry.stat(follow_symlinks=False)
            if _unseen(entry.name):
                continue
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(folder, name)
            elif name not in _NEVER and not name.endswith(_NEVER_ENDING):
                yield name, found


def _unseen(part: str) -> bool:
    return part.startswith(".") or part in _UNSEEN


def one_line(error: Exception) -> str:
    """What kind of error, and what it says."""
    return f"{type(error).__name__}: {safe.one_line(error)[:200]}"


def listed(folder: Path) -> list[str]:
    """The records that the study was analysed from, by name relative to its folder.

    Raises OSError, or ValueError for a line that leads elsewhere.
    """
    lines = [line for line in read_text(folder / RUNS).splitlines() if line.strip()]
    names = ["cells/" + line.rpartition("/cells/")[2] for line in lines]
    for line, name in zip(lines, names, strict=True):
        if (Attempt.of(name) or "  ")[1] != RUN or any(map(_unseen, name.split("/"))):
            raise ValueError(f"{RUNS} lists {line[:200]!r}, which is no record of a cell")
    return names


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_not_run(folder: Path) -> list[str]:
    """Say in the folder which planned cells have no record; these."""
    recorded = {attempt.cell for attempt in attempts(shipped(folder))}
    missing = sorted({cell["id"] for cell in read_json(folder / PLAN)} - recorded)
    write_lines(folder / NOT_RUN, missing)
    return missing


def study_name(folder: Path) -> str:
    """The name that the study's records give it. Raises OSError, ValueError."""
    first = next((name for name in listed(folder) if Attempt.of(name)), None)
    found = str(read_json(folder / first).get("study")) if first else ""
    if not _STUDY.fullmatch(found):
        raise ValueError(
            f"{RUNS} lists no record, or one of study {found[:60]!r}, which is no name"
        )
    return found
