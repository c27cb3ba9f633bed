"""The sampler's output, a file of JSON lines, read back as lists of rows by kind."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class SamplerOutput:
    """All lines of one sampler, in order of time; a line's "k" names its field here.

    head, end: its first and its last line. gpu, members, host: readings. marks: a window's ends,
    with the energy counter. spans: rates between two samples. seen: PIDs on the card whenever they
    changed. errors: what failed. phases: when each phase of the cell began (ns), from the
    conductor. problem: why lines may be missing, as a sentence.
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


def read_output(path: Path) -> SamplerOutput:
    """Read the sampler's file, which may be missing or cut. Never raises."""
    output = SamplerOutput()
    try:
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            rows = getattr(output, row.pop("k"))
            rows.append(row) if isinstance(rows, list) else rows.update(row)
    except (OSError, ValueError) as error:
        output.problem = f"the sampler's output cannot be read on: {one_line(error)}"
    if not (output.problem or output.end):
        output.problem = "the sampler did not end as it should"
    return output


def one_line(error: Exception) -> str:
    """An error's class and message."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
