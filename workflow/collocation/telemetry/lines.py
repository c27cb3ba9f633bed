"""The sampler's file of JSON lines: how it is written, and read back as lists of rows by kind."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class Output:
    """The file of lines. Each is there whole as soon as it is written, whatever follows."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._said: set[tuple[str, type | str]] = set()

    def line(self, kind: str, **fields) -> None:
        """Write one line; ends the process where that fails: nothing it could say would be read."""
        data = json.dumps({"k": kind} | fields, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("the disk took half a line")
        except OSError as error:
            print(f"cannot write: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def error(self, where: str, error: Exception | str) -> None:
        """Say it once per place and kind: what fails at one tick may fail at every one."""
        kind = type(error) if isinstance(error, Exception) else error
        if (where, kind) not in self._said:
            self._said.add((where, kind))
            self.line("errors", t=time.monotonic_ns(), where=where, message=sentence(error))

    def attempt(self, where: str, call: Callable, *args):
        """What it gives; None where it fails, which is said: the others go on."""
        try:
            return call(*args)
        except Exception as error:
            self.error(where, error)
            return None


@dataclass
class Lines:
    """All lines of one sampler; a line's "k" names the field here that it belongs to.

    Rows of a kind are ordered by their time. phases: when each phase of the cell began (ns), which
    is no line's, for the conductor knows it. problem: why they may be incomplete, a sentence; None
    when the sampler began and ended as it should.
    """

    head: dict | None = None
    end: dict | None = None
    gpu: list[dict] = field(default_factory=list)
    members: list[dict] = field(default_factory=list)
    host: list[dict] = field(default_factory=list)
    marks: list[dict] = field(default_factory=list)
    spans: list[dict] = field(default_factory=list)
    seen: list[dict] = field(default_factory=list)
    errors: list[dict] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)
    problem: str | None = None


def read(path: Path) -> Lines:
    """The lines of a file that may be missing, cut in its last line or damaged; never raises."""
    lines = Lines()
    try:
        data = path.read_bytes()
    except OSError as error:
        lines.problem = f"the sampler left no readable output: {error.strerror}"
        return lines
    *whole, cut = data.split(b"\n")
    damaged = sum(not _take(lines, line) for line in whole)
    for rows in vars(lines).values():
        if isinstance(rows, list):  # threads write as they come, a mark once its energy is known
            rows.sort(key=lambda row: row["t"])
    if damaged:
        lines.problem = f"{damaged} of the sampler's lines cannot be read"
    elif cut:
        lines.problem = "the sampler's last line is cut"
    elif stuck := (lines.end or {}).get("stuck"):
        lines.problem = f"the sampler got stuck in a reading: {', '.join(stuck)}"
    elif lines.head is None:
        lines.problem = f"the {'GPU gave no answer' if lines.end else 'sampler did not begin'}"
    elif lines.end is None:
        lines.problem = "the sampler did not end as it should"
    return lines


def _take(lines: Lines, line: bytes) -> bool:
    """Put one line where it belongs; False if it is none."""
    try:
        row = json.loads(line)
        kind = row.pop("k")
        if kind in ("head", "end"):
            setattr(lines, kind, row)
        else:
            row["t"] += 0  # a row without a time is none
            getattr(lines, kind).append(row)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def one_line(error: Exception) -> str:
    """What kind of error, and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def sentence(error: Exception | str) -> str:
    """One line of what went wrong."""
    return (" ".join(error.split()) if isinstance(error, str) else one_line(error))[:500]
