"""The sampler's file of JSON lines, read back as lists of rows by kind."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Lines:
    """All lines of one sampler; a line's "k" names the field here that it belongs to.

    Rows of a kind are ordered by their time. phases: when each phase of the cell began (ns), which
    the conductor knows. problem: a sentence, why they may be incomplete.
    """

    head: dict = field(default_factory=dict)
    end: dict = field(default_factory=dict)
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
    """The lines of a file that may be missing or cut; never raises."""
    lines = Lines()
    try:
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            of = getattr(lines, row.pop("k"))
            of.append(row) if isinstance(of, list) else of.update(row)
    except (OSError, ValueError) as error:
        lines.problem = f"the sampler's output cannot be read on: {one_line(error)}"
    if not (lines.problem or lines.end):
        lines.problem = "the sampler did not end as it should"
    return lines


def one_line(error: Exception) -> str:
    """What kind of error, and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
