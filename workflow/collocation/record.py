"""run.json: the record of one cell. Its schema, writing it atomically, and finding what is there.

A cell's folder with a valid run.json is a finished attempt; one without is nothing.
"""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workflow.collocation.cell.spec import digest

SCHEMA_VERSION = 1
MEASURED = ("completed", "out_of_memory")
RESULTS = (*MEASURED, "unsupported")  # an answer; asking again gives the same
FAULTS = ("failed", "timed_out")  # tried again, a few times
STATUSES = (*RESULTS, *FAULTS, "postponed")
Phase = Literal["setup", "build", "warm", "window", "stop"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CellName(_Part):
    id: str
    scenario: str
    arm: str
    method: str
    replicate: int = Field(ge=1)
    attempt: int = Field(ge=1)


class MethodEvidence(_Part):
    """`verified`: the evidence shows that the method was in force; null where it could not tell,
    or nothing ran.
    """

    name: str
    verified: bool | None = None
    evidence: dict = {}


class Gpu(_Part):
    uuid: str
    name: str
    memory_bytes: int | None
    sm_count: int | None = None
    driver: str


class Window(_Part):
    """A stretch of the monotonic clock (ns) in which every member named by the cell trained."""

    name: Literal["window", "epochs", "before", "after", "completion"]
    start_ns: int
    end_ns: int
    seconds: float


class Rate(_Part):
    """What one member did in one window; samples/s from its first to its last step end there."""

    steps: int
    samples_per_s: float | None
    step_ms_p50: float | None = None
    step_ms_p95: float | None = None
    step_ms_p99: float | None = None
    drift: float | None = None
    drift_error: float | None = None


class Loss(_Part):
    step: list[int] = []
    value: list[float | None] = []


class Member(_Part):
    member: int
    workload: str
    pid: int | None = None
    status: Literal[
        "completed", "departed", "stopped", "out_of_memory", "failed", "killed", "timed_out"
    ]
    phase: Phase | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    cores: list[int] = []
    threads: int | None = None
    parameters: int | None = None
    parameter_bytes: int | None = None
    resident_bytes: int | None = None
    memory_peak_allocated: int | None = None
    memory_peak_reserved: int | None = None
    device_uuid: str | None = None
    sm_count: int | None = None
    sm_source: str | None = None
    memory_free: int | None = None
    build_s: dict[str, float] = {}
    input_share: float | None = None
    data_wait_share: float | None = None
    windows: dict[str, Rate] = {}
    epochs: list[dict] = []
    loss: Loss = Loss()


class File(_Part):
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> "File":
        """Of a file that is there."""
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return cls(sha256=digest, bytes=path.stat().st_size)


Values = dict[str, float | None]  # metric → value in the vocabulary's unit, null where missing


class Energy(_Part):
    """What the set used in a window, in J: the counter's mean power (W) between its two readings,
    `seconds` apart, times the window's length.

    idle_joules: idle power for as long. integrated_joules: the power readings, integrated.
    """

    joules: float
    seconds: float
    mean_power: float
    idle_joules: float | None = None
    above_idle_joules: float | None = None
    integrated_joules: float | None = None


class WindowTelemetry(_Part):
    """What was seen in one window.

    entities: headline values by entity ("gpu", "gi:1"): of a rate the one pair of samples that
    spans the window, of a gauge the mean, of a counter the growth. series: the means of the series.
    members, host: means; a member's `entity` is where it ran, null without a GPU. whole_card, under
    MIG: means of the instances weighted by SMs, over `sm_count` SMs.
    """

    seconds: float
    entities: dict[str, Values] = {}
    series: dict[str, Values] = {}
    energy: Energy | None = None
    members: dict[str, dict[str, float | str | None]] = {}
    host: Values = {}
    whole_card: Values = {}


class Sampler(_Part):
    """What the sampler says of itself; longest_gap_s: between rows, in a window."""

    ticks: int | None = None
    skipped: int | None = None
    longest_gap_s: float | None = None
    cpu_s: float | None = None
    tick_ms_p50: float | None = None
    tick_ms_p95: float | None = None
    tick_ms_max: float | None = None


class Telemetry(_Part):
    """What was seen from outside the members. `source` is null where there was no GPU to read.

    idle: means before the first member was built. disagree: sentences. throttled: reason → share of
    the windows' samples. strangers: who else computed on the card; null where nobody can tell.
    """

    status: Literal["complete", "incomplete", "off"]
    reason: str | None = None
    source: str | None = None
    hz: float | None = None
    idle: Values = {}
    windows: dict[str, WindowTelemetry] = {}
    disagree: list[str] = []
    throttled: dict[str, float] = {}
    strangers: list[str] | None = None
    sampler: Sampler = Sampler()


class Record(_Part):
    schema_version: Literal[1] = SCHEMA_VERSION
    study: str
    cell: CellName
    spec: dict
    status: Literal[STATUSES]
    reason: str | None = None
    phase: Phase | None = None
    method: MethodEvidence
    gpu: Gpu | None = None
    gpu_state: dict = {}
    windows: list[Window] = []
    members: list[Member] = []
    data: list[dict] = []
    flags: list[str] = []
    telemetry: Telemetry | None = None
    host: dict = {}
    provenance: dict = {}
    timing: dict[str, float] = {}
    files: dict[str, File] = {}


def write(path: Path, record: Record) -> None:
    """Write run.json so that a reader sees all of it or nothing."""
    text = json.dumps(_finite(record.model_dump()), indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _finite(value):
    """`value` with null for numbers that are none: JSON has no NaN, and a diverged loss is NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cpu_key(machine: str | None) -> str:
    """How the CPU of a machine is told from others where GPUs have their UUIDs."""
    return f"cpu:{machine}" if machine else "cpu"


@dataclass(frozen=True)
class Attempt:
    """What planning needs to know of one attempt at a cell; `content` is None if corrupt."""

    cell: str
    number: int
    path: Path
    content: dict | None

    @property
    def status(self) -> str:
        return self.content["status"] if self.content else "corrupt"

    @cached_property
    def spec_digest(self) -> str | None:
        """Equal to that of a planned cell's spec where it measured the same."""
        return digest(self.content["spec"]) if self.content else None

    @property
    def refused_in_setup(self) -> bool:
        """Unsupported for a reason that only trying showed, such as missing rights."""
        return self.status == "unsupported" and self.content.get("phase") == "setup"

    @property
    def device(self) -> str:
        """The key of the device it ran on: a GPU UUID, or 'cpu:' and the machine's alias."""
        content = self.content or {}
        if gpu := content.get("gpu"):
            return gpu["uuid"]
        return cpu_key(content.get("provenance", {}).get("machine"))


def scan(folder: Path) -> dict[str, list[Attempt]]:
    """All attempts below `folder` (results/<study>/cells), by cell id, oldest first."""
    found: dict[str, list[Attempt]] = {}
    for path in folder.glob("*/*/*/r*/a*/run.json"):
        attempt_folder = path.parent
        cell = attempt_folder.parent.relative_to(folder).as_posix()
        number = attempt_folder.name[1:]
        if number.isdecimal():
            attempt = Attempt(cell, int(number), path, _content(path, cell, int(number)))
            found.setdefault(cell, []).append(attempt)
    for attempts in found.values():
        attempts.sort(key=lambda attempt: attempt.number)
    return found


def _content(path: Path, cell: str, number: int) -> dict | None:
    """The record, or None where it is not one: cut short, edited, of another cell or schema."""
    try:
        content = json.loads(path.read_bytes())
        named = Record.model_validate(content).cell
    except (OSError, ValueError):  # pydantic's error is a ValueError
        return None
    return content if (named.id, named.attempt) == (cell, number) else None
