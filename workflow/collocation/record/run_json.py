"""The schema of run.json, the record of one attempt at a cell, and how it is read and written.

An attempt is finished once its folder holds a valid run.json.
"""

import json
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
from workflow.collocation.study.regular_files import read_bytes, write_whole

MEASURED = ("completed", "out_of_memory")
RESULTS = (*MEASURED, "unsupported")  # trying again would give the same
FAULTS = ("failed", "timed_out")  # tried again a few times
Phase = Literal["setup", "build", "warm", "window", "stop"]
Samples = Annotated[float, Field(ge=0, allow_inf_nan=False)]


SCHEMA_VERSION = 2


class NoRecord(ValueError):
    """A run.json holds no valid record; the message says why in one line."""


class OtherVersion(NoRecord):
    """A record of another schema version, which must not be measured again."""


class CellName(RecordPart):
    id: str
    scenario: Annotated[str, AfterValidator(lambda scenario: parse_scenario(scenario).id)]
    implementation: str
    method: str
    replicate: int = Field(ge=1)
    attempt: int = Field(ge=1)


class MethodEvidence(RecordPart):
    """Evidence on the method. verified: whether it was in force; null if that is not known."""

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
    """Progress of one member in one window.

    samples_per_s: between its first and last step end in the window, or over all spans together.
    drift: mean step time of the last third / of the first third - 1, with its standard error.
    latency: of a server's requests. slices: samples/s in each span. distinct_samples: number of
    different samples, if files are read.
    """

    steps: int
    samples_per_s: Samples | None
    step_ms_p50: float | None = None
    step_ms_p95: float | None = None
    step_ms_p99: float | None = None
    drift: float | None = None
    drift_error: float | None = None
    latency: dict[Literal[*REQUEST_METRICS], float] = {}
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
    input_share: float | None = None  # in older records only
    data_wait_share: float | None = None
    optimizer: str | None = None  # of a script: the class of the one whose steps count
    starts_ns: list[int] = []  # of a script: when each of its runs was started
    windows: dict[str, Rate] = {}
    epochs: list = Field([], exclude=True)  # in older records only
    loss: Loss = Loss()


class Record(RecordPart):
    """The record of one attempt at a cell.

    members: in the order of spec["members"]. The windows of an interleaved cell are named after its
    conditions.
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
    gpu_state: dict = Field({}, exclude=True)  # in older records only
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
    def _check_members(self):
        jobs = self.spec.get("members")
        if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
            raise ValueError("spec.members is no list of objects")
        if not all(isinstance(job.get("workload", ""), str) for job in jobs):
            raise ValueError("spec.members: a workload's name is no text")
        allowed = conditions_of(self.cell.scenario, self.cell.method).keys()
        allowed = allowed or {window.name for window in self.windows}
        for member in self.members:
            if member.member >= len(jobs):
                raise ValueError(f"members: {member.member} is none of spec.members")
            if unknown := member.windows.keys() - allowed:
                where = f"members[{member.member}].windows"
                raise ValueError(f"{where}: {min(unknown)} is none of {allowed}")
        if self.status == "completed" and not any(member.windows for member in self.members):
            raise ValueError("completed without any member's window: nothing was measured")
        return self

    @property
    def jobs(self) -> list[dict]:
        """The members' entries in the spec."""
        return self.spec["members"]

    @property
    def device(self) -> str:
        """The GPU's UUID; without a GPU the machine's alias, so that machines are told apart."""
        return self.gpu.uuid if self.gpu else f"cpu:{self.provenance.get('machine')}"

    @property
    def is_baseline(self) -> bool:
        """Whether other cells are normalised by this one: one completed job alone, method naive."""
        scenario = parse_scenario(self.cell.scenario)
        alone = scenario.n == 1 and scenario.variant in ALONE_VARIANTS
        return self.status == "completed" and self.cell.method == "naive" and alone


def read_record(path: Path) -> Record:
    """The record in a run.json. Raises OSError, NoRecord or OtherVersion."""
    try:
        return Record.model_validate_json(read_bytes(path))
    except ValidationError as invalid:
        error = invalid.errors(include_url=False, include_context=False)[0]
    if error["loc"] == ("schema_version",) and isinstance(version := error["input"], int):
        raise OtherVersion(
            f"{path}: schema_version is {version}, this version of the study reads "
            f"{SCHEMA_VERSION}; carry on with the version that wrote it, or give another "
            "results=FOLDER"
        )
    where = ".".join(map(str, error["loc"]))
    raise NoRecord(" ".join(f"{where}: {error['msg']}".lstrip(": ").split()))


def record_text(record: Mapping[str, Any]) -> str:
    """The text of a run.json: one line for each key of the record."""
    lines = []
    for key, value in record.items():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        lines.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_record(path: Path, record: Record) -> None:
    """Write run.json atomically; NaN and infinity become null.

    Only its owner can read it if it holds a user's command.
    """
    opener = open_for_owner if any(job.get("kind") == "command" for job in record.jobs) else None
    write_whole(path, record_text(json.loads(record.model_dump_json())), opener)
