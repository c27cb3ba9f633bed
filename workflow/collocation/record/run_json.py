"""run.json: the record of one cell. Its schema, and writing it atomically.

A cell's folder with a valid run.json is a finished attempt; one without is nothing.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from workflow.collocation.record.values import File, Part, Telemetry, Window

SCHEMA_VERSION = 1
MEASURED = ("completed", "out_of_memory")
RESULTS = (*MEASURED, "unsupported")  # an answer; asking again gives the same
FAULTS = ("failed", "timed_out")  # tried again, a few times
STATUSES = (*RESULTS, *FAULTS, "postponed")
Phase = Literal["setup", "build", "warm", "window", "stop"]


class CellName(Part):
    id: str
    scenario: str
    arm: str
    method: str
    replicate: int = Field(ge=1)
    attempt: int = Field(ge=1)


class MethodEvidence(Part):
    """`verified`: the evidence shows that the method was in force; null where it could not tell,
    or nothing ran.
    """

    name: str
    verified: bool | None = None
    evidence: dict = {}


class Gpu(Part):
    uuid: str
    name: str
    memory_bytes: int | None
    sm_count: int | None = None
    driver: str


class Rate(Part):
    """What one member did in one window; samples/s from its first to its last step end there, or,
    where `slices` has those of each span, over all of them together.
    """

    steps: int
    samples_per_s: float | None
    step_ms_p50: float | None = None
    step_ms_p95: float | None = None
    step_ms_p99: float | None = None
    drift: float | None = None
    drift_error: float | None = None
    slices: list[float] | None = None


class Loss(Part):
    step: list[int] = []
    value: list[float | None] = []


class Member(Part):
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


class Record(Part):
    schema_version: Literal[1] = SCHEMA_VERSION
    study: str
    cell: CellName
    spec: dict
    status: Literal[STATUSES]
    reason: str | None = None
    phase: Phase | None = None
    method: MethodEvidence
    gpu: Gpu | None = None
    gpu_state: dict = {}  # of earlier records; telemetry has it now
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
    """Write run.json so that a reader sees all of it or nothing; NaN and infinity become null."""
    text = record.model_dump_json(indent=1) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
