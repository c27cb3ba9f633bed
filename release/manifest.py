"""The files of a study that ship, and their SHA-256 as `sha256sum` writes and checks them.

raw.sha256 lists the raw files, as they were measured; its own SHA-256 is the study's root.
MANIFEST.sha256 lists raw.sha256 and everything derived.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from analysis.files import write_if_changed
from workflow.collocation.study.regular_files import open_regular, read_bytes, read_json, read_text

RUN, RUNS, PLAN, NOT_RUN = "run.json", "runs.txt", "plan.json", "not_run.txt"
RAW, MANIFEST = "raw.sha256", "MANIFEST.sha256"

_RAW = re.compile(r"cells/.+|(plan|mig_layouts|datasets/[^/]+)\.json|(runs|not_run)\.txt")
_LINE = re.compile(r"^([0-9a-f]{64})  (.+)\n", re.MULTILINE)
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/([^/]+)")
# What an invocation leaves behind, or what is large and soon made again.
_NEVER = {"complete", "report.zip", "report.html", RAW, MANIFEST}
_NEVER_ENDING = (".svg", ".partial")
_UNSEEN = {"log", "jobs", "plan", "ready", "mlruns"}  # folders
# Made by libraries that write other bytes with each version: not made again, but held by its hash.
_AS_SEALED = (".png", ".pdf", "explorer.html")


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
    for name in names:
        if of := _ATTEMPT.fullmatch(name):
            found.setdefault(Attempt(of[1], int(of[2])), []).append(of[3])
    return dict(sorted(found.items()))


def is_raw(name: str) -> bool:
    """Whether a file was measured or planned, and not derived."""
    return _RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether a file is made anew and compared by its values; any other has to be as it was."""
    return not (is_raw(name) or name.endswith(_AS_SEALED))


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
    with open_regular(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files of a study that ship."""
    return {name: sha256(folder / name) for name in shipped(folder)}


def text(found: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(path: Path) -> dict[str, str]:
    """Name → SHA-256 of a list's whole lines: it may be cut off. Raises OSError."""
    lines = _LINE.findall(read_bytes(path).decode("utf-8", errors="replace"))
    return {name: digest for digest, name in lines}


def write(folder: Path, found: Mapping[str, str]) -> str:
    """Write both lists of a study's files; the root."""
    raw = {name: digest for name, digest in found.items() if is_raw(name)}
    write_if_changed(folder / RAW, text(raw))
    derived = {name: digest for name, digest in found.items() if name not in raw}
    write_if_changed(folder / MANIFEST, text(derived | {RAW: root(folder)}))
    return root(folder)


def root(folder: Path) -> str:
    """The SHA-256 of the list of raw files, for a place outside the folder to hold on to."""
    return sha256(folder / RAW)


def listed(folder: Path) -> list[str]:
    """The records that the study was analysed from, by name relative to its folder."""
    lines = read_text(folder / RUNS).splitlines()
    return ["cells/" + line.rpartition("/cells/")[2] for line in lines]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    write_if_changed(path, "".join(f"{line}\n" for line in lines))


def not_run(folder: Path, names: Iterable[str]) -> list[str]:
    """The planned cells of which there is no record among files of a study, sorted."""
    return sorted(
        {cell["id"] for cell in read_json(folder / PLAN)} - {a.cell for a in attempts(names)}
    )


def unsealed(study: Path) -> str:
    """What is said of a study that has no lists of its files."""
    return f"{study} is not sealed"
