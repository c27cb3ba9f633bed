"""Which files of a study ship, and the lists of their SHA-256, as `sha256sum` writes them.

raw.sha256 lists the raw files, as they were measured; its own SHA-256 is the study's root.
MANIFEST.sha256 lists raw.sha256 and everything derived.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from analysis.files import write_if_changed
from workflow.collocation.study.layout import MANIFEST, PLAN, RAW, RUNS
from workflow.collocation.study.regular_files import open_regular, read_bytes, read_json, read_text

NOT_RUN = "not_run.txt"

_RAW = re.compile(r"cells/.+|(plan|mig_layouts|datasets/[^/]+)\.json|(runs|not_run)\.txt")
_LINE = re.compile(r"^([0-9a-f]{64})  (.+)\n", re.MULTILINE)
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/([^/]+)")
# Files of one run of the workflow, and large files that are soon made again.
_NEVER = {"complete", "report.zip", "report.html", RAW, MANIFEST}
_NEVER_ENDING = (".svg", ".partial")
_NEVER_FOLDERS = {"log", "jobs", "plan", "ready", "mlruns"}
# Their bytes change with the libraries that write them: protected by hashes, and not made again.
_AS_SEALED = (".png", ".pdf", "explorer.html")


class Attempt(NamedTuple):
    """One attempt at measuring a cell."""

    cell: str
    number: int

    @property
    def folder(self) -> str:
        """Its folder, relative to the study's."""
        return f"cells/{self.cell}/a{self.number}"

    def __str__(self) -> str:
        return f"{self.cell} a{self.number}"


def attempts(names: Iterable[str]) -> dict[Attempt, list[str]]:
    """The attempts among a study's files, sorted, each with the names of its files."""
    files: dict[Attempt, list[str]] = {}
    for name in names:
        if match := _ATTEMPT.fullmatch(name):
            cell, number, file = match.groups()
            files.setdefault(Attempt(cell, int(number)), []).append(file)
    return dict(sorted(files.items()))


def is_raw(name: str) -> bool:
    """Whether a file was measured or planned, and not derived."""
    return _RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether a file is derived again and compared by value; others are compared by SHA-256."""
    return not (is_raw(name) or name.endswith(_AS_SEALED))


def never_ships(name: str) -> bool:
    """Whether a file belongs to one run of the workflow (logs, locks), or is soon made again."""
    if name in _NEVER or name.endswith(_NEVER_ENDING):
        return True
    return any(part.startswith(".") or part in _NEVER_FOLDERS for part in name.split("/"))


def shipped(folder: Path) -> list[str]:
    """Names of a study's files that ship, sorted, relative to its folder, without the two lists.

    Raises ValueError for a link or anything else that is no plain file, without opening it.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if never_ships(name):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{name} is a link or no plain file: it is not opened")
        if path.is_file():
            names.append(name)
    return names


def sha256(path: Path) -> str:
    """SHA-256 of a regular file, in hexadecimal."""
    with open_regular(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of a study's files that ship, by name."""
    return {name: sha256(folder / name) for name in shipped(folder)}


def list_text(files: Mapping[str, str]) -> str:
    """The text of a list of files, from their SHA-256 by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))


def read_list(path: Path) -> dict[str, str]:
    """SHA-256 by name from a list; of one that was cut off, the whole lines. Raises OSError."""
    lines = _LINE.findall(read_bytes(path).decode("utf-8", errors="replace"))
    return {name: digest for digest, name in lines}


def write_lists(folder: Path, files: Mapping[str, str]) -> str:
    """Write both lists of a study, from its files' SHA-256 by name; returns the root."""
    raw = {name: digest for name, digest in files.items() if is_raw(name)}
    write_if_changed(folder / RAW, list_text(raw))
    derived = {name: digest for name, digest in files.items() if name not in raw}
    write_if_changed(folder / MANIFEST, list_text(derived | {RAW: root(folder)}))
    return root(folder)


def root(folder: Path) -> str:
    """SHA-256 of a study's list of raw files, which can be published elsewhere."""
    return sha256(folder / RAW)


def analysed_records(folder: Path) -> list[str]:
    """The records (run.json) that a study was analysed from, relative to its folder."""
    lines = read_text(folder / RUNS).splitlines()
    return ["cells/" + line.rpartition("/cells/")[2] for line in lines]


def cells_not_run(folder: Path, names: Iterable[str]) -> list[str]:
    """Ids of planned cells that have no record among the study's files, sorted."""
    planned = {cell["id"] for cell in read_json(folder / PLAN)}
    return sorted(planned - {attempt.cell for attempt in attempts(names)})


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of these lines, if its content changes."""
    write_if_changed(path, "".join(f"{line}\n" for line in lines))


def unsealed(study: Path) -> str:
    """The message about a study without lists of its files."""
    return f"{study} is not sealed"
