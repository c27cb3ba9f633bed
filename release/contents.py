"""What a study's folder holds: raw files as they were measured, and what is derived from them.

Raw are the cells' files and the few of the whole study that no analysis can make again. Everything
else that ships is derived. What runs leave behind (logs, locks, specs, Snakemake's report) does not
ship, nor what is large and soon made again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "MANIFEST.sha256"
LEDGER = "raw.csv"
RUN = "run.json"
CONTRIBUTED = "CONTRIBUTED.md"  # what says of a bundle where it is from
IMAGES = (".png", ".pdf")
# Of an invocation, not of a study; drawn.json says what need not be drawn again. telemetry.parquet
# and the SVGs are large and made again in seconds.
NEVER = ("specs.json", "complete", "report.zip", "report.html", "figures/drawn.json")
NEVER += ("telemetry.parquet",)
UNSHIPPED = (".svg", ".partial")
RAW = re.compile(r"cells/.+|(plan|mig_layouts)\.json|runs\.txt|(datasets|bench)/[^/]+\.json")
_ATTEMPT = re.compile(r"cells/((?:[^/]+/){3}r\d+)/a(\d+)/(.+)")


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
        """The attempt that a file of the study belongs to, and what it is called there."""
        found = _ATTEMPT.fullmatch(name)
        return (cls(found[1], int(found[2])), found[3]) if found else None


def shipped(folder: Path) -> list[str]:
    """The files of a study that ship, by name relative to it, sorted; but not its manifest."""
    return sorted(name for name in map(_name(folder), folder.rglob("*")) if name and _ships(name))


def _name(folder: Path):
    return lambda path: path.relative_to(folder).as_posix() if path.is_file() else None


def _ships(name: str) -> bool:
    parts = name.split("/")
    passing = "log" in parts or any(part.startswith(".") for part in parts)
    return not passing and name not in (*NEVER, MANIFEST) and not name.endswith(UNSHIPPED)


def is_raw(name: str) -> bool:
    """Whether the file was measured or planned, not derived."""
    return RAW.fullmatch(name) is not None


def by_value(name: str) -> bool:
    """Whether the file is made anew and compared by its values; any other has to be as it was."""
    exact = name in (LEDGER, CONTRIBUTED) or Path(name).suffix in IMAGES
    return not (exact or is_raw(name))


def owner(name: str) -> str:
    """How a message names a file: with its cell, where it has one."""
    found = Attempt.of(name)
    return f"cell {found[0]}: {found[1]}" if found else name


def listed(folder: Path) -> list[str]:
    """The records that the study was analysed from (runs.txt), by name relative to its folder.

    Raises OSError where there is no such list.
    """
    lines = (folder / "runs.txt").read_text(encoding="utf-8").splitlines()
    return ["cells/" + line.rpartition("/cells/")[2] for line in lines if line.strip()]
