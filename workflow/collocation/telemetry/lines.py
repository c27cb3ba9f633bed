"""What a sampler wrote, read back: JSON lines → lists of rows by kind."""

import json
from dataclasses import dataclass, field
from pathlib import Path

# A line's "k" → the list that it goes to; a head and an end there is one of each.
LISTS = {
    "gpu": "gpu",
    "member": "members",
    "host": "host",
    "mark": "marks",
    "span": "spans",
    "seen": "seen",
    "error": "errors",
}


@dataclass
class Lines:
    """All lines of one sampler, as it wrote them (sampler.py says what they hold).

    Rows of a kind are ordered by their time. problem: why they may be incomplete, a sentence; None
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
    for name in LISTS.values():
        # A mark is written once its energy is known, and threads write as they come.
        getattr(lines, name).sort(key=_time)
    if damaged:
        lines.problem = f"{damaged} of the sampler's lines cannot be read"
    elif cut:
        lines.problem = "the sampler's last line is cut"
    elif stuck := (lines.end or {}).get("stuck"):
        lines.problem = f"the sampler got stuck in a reading: {', '.join(stuck)}"
    elif lines.head is None:
        lines.problem = "the sampler did not begin"
    elif lines.end is None:
        lines.problem = "the sampler did not end as it should"
    return lines


def _take(lines: Lines, line: bytes) -> bool:
    """Put one line where it belongs; False if it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    kind = row.pop("k", None) if isinstance(row, dict) else None
    if kind in ("head", "end"):
        setattr(lines, kind, row)
    elif kind in LISTS and isinstance(_time(row), int):
        getattr(lines, LISTS[kind]).append(row)
    else:
        return False
    return True


def _time(row: dict):
    return row.get("end_ns") if "end_ns" in row else row.get("t")
