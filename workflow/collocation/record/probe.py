"""The record of a probe, probe.json: one job measured alone, then together with copies of it.

Beside it lie steps.parquet, when each job's steps ended, and the telemetry, as of a cell.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from workflow.collocation.record.run_json import GpuRecord, MemberRecord, record_text
from workflow.collocation.record.values import FileDigest, RecordPart, Telemetry, Window
from workflow.collocation.study.redaction import write_private

PROBE_FILE = "probe.json"
# Names of the windows of the job alone: by itself before anything else is loaded; in turns with
# sets (of a second group of sets, the name has a number); and once more after a set.
ALONE, IN_TURNS, AGAIN = "alone", "alone in turns", "alone again"
DROP_S = 0.5  # at the beginning of each turn, which does not count
MEMORY_ROOM = 0.95  # of the card's, for jobs
AGREE = 0.1  # rates of the job alone that differ by more contradict each other


def pair_alone(index: int) -> str:
    """The window of a job of a pair by itself, while the other waits or is not yet loaded."""
    return f"job {index + 1} alone"


def pair_in_turns(index: int) -> str:
    """The window of a job of a pair, in turns with the other and with both."""
    return f"job {index + 1} alone in turns"


class JobSet(RecordPart, frozen=True):
    """Copies of the job together. n: how many. method: naive or mps."""

    n: int = Field(ge=1)
    method: str

    @property
    def name(self) -> str:
        """As windows are named: `4xmps`."""
        return f"{self.n}x{self.method}"


class LoneReading(NamedTuple):
    """What is known of the job alone, before a set is started.

    rate: steps per second. peak_bytes: the most device memory in use, None without a GPU. cores:
    logical CPUs that each copy may use. methods: of sharing, which this machine allows.
    """

    rate: float
    telemetry: Telemetry
    peak_bytes: int | None
    cores: int
    methods: Sequence[str]


class SetGroup(NamedTuple):
    """Sets that are loaded at once.

    with_lone: whether the lone copy stays loaded, so that it takes turns with them. Where memory
    has no room for that, sets under MPS are compared to what it did before. is_needed: whether it
    is measured even if no time is left.
    """

    sets: Sequence[JobSet]
    with_lone: bool = True
    is_needed: bool = True


class ProbeRecord(RecordPart):
    """What a probe measured.

    jobs: one, or the two of a pair, by name: entries of the catalogue, without secrets. windows:
    named ALONE, IN_TURNS, AGAIN, as a pair's, or like their set; those with spans were measured in
    turns. sets: those that were measured, with the copies that ran: fewer than were started if some
    ran out of memory. peak_bytes: the most device memory in use while the lone copies alone were
    loaded. no_mps: why MPS could not be used, or None. needed_s: how long a probe has to be for a
    job that pauses so rarely; None where the time sufficed. problem: why no more was measured.
    seconds: "wall", and "counted", those in windows.
    """

    schema_version: int = 1
    jobs: dict[str, dict]
    started_at: str
    gpu: GpuRecord | None
    host: dict
    provenance: dict
    windows: list[Window]
    members: list[MemberRecord]
    sets: list[JobSet]
    telemetry: Telemetry
    peak_bytes: int | None
    flags: list[str]
    evidence: dict
    no_mps: str | None
    needed_s: float | None
    problem: str | None
    seconds: dict[str, float]
    files: dict[str, FileDigest]

    def window(self, name: str) -> Window | None:
        return next((window for window in self.windows if window.name == name), None)


def write_probe(path: Path, record: ProbeRecord) -> None:
    """Write probe.json, readable by its owner only: the user's command is in it."""
    write_private(path, record_text(json.loads(record.model_dump_json())))
