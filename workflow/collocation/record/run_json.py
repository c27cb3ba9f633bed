"""run.json: the record of one cell. Its schema, its one reader and its one writer.

A cell's folder with a valid run.json is a finished attempt; one without is nothing.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from workflow.collocation.record.values import (
    REQUEST_METRICS,
    FileDigest,
    RecordPart,
    Telemetry,
    Window,
)
from workflow.collocation.study.names import ALONE_VARIANTS, conditions_of, parse_scenario
from workflow.collocation.study.redaction import open_for_owner
from workflow.collocation.study.regular_files import read_bytes

PROGRESS_FILE = (
    "now"  # file beside a running cell's log: what it does, for who shows that elsewhere
)
MEASURED = ("completed", "out_of_memory")
RESULTS = (*MEASURED, "unsupported")  # an answer; asking again gives the same
FAULTS = ("failed", "timed_out")  # tried again, a few times
Phase = Literal["setup", "build", "warm", "window", "stop"]
Samples = Annotated[float, Field(ge=0, allow_inf_nan=False)]


SCHEMA_VERSION = 2


class NoRecord(ValueError):
    """What stands in a run.json is no record of a cell; one line says why."""


class OtherVersion(NoRecord):
    """A record that another version of the study wrote: not to be measured again."""


class CellName(RecordPart):
    id: str
    scenario: Annotated[str, AfterValidator(lambda scenario: parse_scenario(scenario).id)]
    implementation: str
    method: str
    replicate: int = Field(ge=1)
    attempt: int = Field(ge=1)


class MethodEvidence(RecordPart):
    """`verified`: the evidence shows that the method was in force; null where it could not tell,
    or nothing ran.
    """

    name: str
    verified: bool | None = None
    evidence: dict = {}


class GpuRecord(RecordPart):
    uuid: str
    name: str
    memory_bytes: int | None
    sm_count: int | None = None
    driver: str


class Rate(RecordPart):
    """What one member did in one window; samples/s from its first to its last step end there, or,
    where `slices` has those of each span, over all of them together. distinct_samples: of those in
    its steps, where files are read.
    """

    steps: int
    samples_per_s: Samples | None
    step_ms_p50: float | None = None
    step_ms_p95: float | None = None
    step_ms_p99: float | None = None
    drift: float | None = None
    drift_error: float | None = None
    latency: dict[Literal[*REQUEST_METRICS], float] = {}  # of a server's requests
    slices: list[Samples] | None = None
    distinct_samples: int | None = None


class Loss(RecordPart):
    step: list[int] = []
    value: list[float | None] = []


class MemberRecord(RecordPart):
    member: int = Field(ge=0)
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
    input_share: float | None = None  # of results/ladder: no longer measured
    data_wait_share: float | None = None
    windows: dict[str, Rate] = {}
    epochs: list = Field([], exclude=True)  # always empty: records of results/ladder have it
    loss: Loss = Loss()


class Record(RecordPart):
    """What one attempt at a cell says. A completed one has rates; members are those of its spec;
    windows of an interleaved cell are its conditions.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    study: str
    cell: CellName
    spec: dict
    status: Literal[*RESULTS, *FAULTS, "postponed"]
    reason: str | None = None
    phase: Phase | None = None
    method: MethodEvidence
    gpu: GpuRecord | None = None
    gpu_state: dict = Field({}, exclude=True)  # the same
    windows: list[Window] = []
    members: list[MemberRecord] = []
    data: list[dict] = []
    flags: list[str] = []
    telemetry: Telemetry | None = None
    host: dict = {}
    provenance: dict = {}
    timing: dict[str, float | None] = {}
    files: dict[str, FileDigest] = {}

    @model_validator(mode="after")
    def _holds_together(self):
        jobs = self.spec.get("members")
        if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
            raise ValueError("spec.members is no list of objects")
        if not all(isinstance(job.get("workload", ""), str) for job in jobs):
            raise ValueError("spec.members: a workload's name is no text")
        names = {window.name for window in self.windows}
        known = conditions_of(self.cell.scenario, self.cell.method).keys() or names
        for member in self.members:
            if member.member >= len(jobs):
                raise ValueError(f"members: {member.member} is none of spec.members")
            if odd := member.windows.keys() - known:
                raise ValueError(f"members[{member.member}].windows: {min(odd)} is none of {known}")
        if self.status == "completed" and not any(member.windows for member in self.members):
            raise ValueError("completed without any member's window: nothing was measured")
        return self

    @property
    def jobs(self) -> list[dict]:
        """The members' entries in the spec."""
        return self.spec["members"]

    @property
    def device(self) -> str:
        """The GPU's UUID; on a machine without one its alias, so that machines are never mixed."""
        return self.gpu.uuid if self.gpu else f"cpu:{self.provenance.get('machine')}"

    @property
    def is_baseline(self) -> bool:
        """Completed alone, naive, in a window, with its share of the cores: what progress is by."""
        scenario = parse_scenario(self.cell.scenario)
        alone = scenario.n == 1 and scenario.variant in ALONE_VARIANTS
        return self.status == "completed" and self.cell.method == "naive" and alone


def read_record(path: Path) -> Record:
    """The record in a run.json, UTF-8 whatever the locale. Raises OSError, NoRecord."""
    try:
        return Record.model_validate_json(read_bytes(path))
    except ValidationError as caught:
        error = caught.errors(include_url=False, include_context=False)[0]
    if error["loc"] == ("schema_version",) and isinstance(version := error["input"], int):
        raise OtherVersion(
            f"{path}: schema_version is {version}, this version of the study reads "
            f"{SCHEMA_VERSION}; carry on with the version that wrote it, or give another "
            "results=FOLDER"
        )
    where = ".".join(map(str, error["loc"]))
    raise NoRecord(" ".join(f"{where}: {error['msg']}".lstrip(": ").split()))


def record_text(record: Mapping[str, Any]) -> str:
    """What a run.json holds: a line for each key of the record, a third less than indented."""
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in record.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_record(path: Path, record: Record) -> None:
    """Write run.json so that a reader sees all of it or nothing; NaN and infinity become null.

    That of somebody's command is for its owner alone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    opener = open_for_owner if any(job.get("kind") == "command" for job in record.jobs) else None
    try:
        with open(temporary, "w", encoding="utf-8", opener=opener) as handle:
            handle.write(record_text(json.loads(record.model_dump_json())))
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
