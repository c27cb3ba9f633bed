"""What a study may say: the models behind config.yaml, workloads.yaml and studies/*.yaml.

load.py reads the files into them. `workflow/schemas/` holds the same rules as JSON Schema for
editors, written by `python -m workflow.collocation.schema.study` and kept equal by a test.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    TypeAdapter,
    field_validator,
    model_validator,
)

from workflow.collocation import ROOT
from workflow.collocation.methods import METHODS, MOST_MEMBERS, Limits
from workflow.collocation.methods.limits import Name

KINDS = ("window", "epochs", "departure", "completion")
CONFIG = ROOT / "config"
SCHEMAS = ROOT / "workflow" / "schemas"

DATASETS = ("cifar10", "digits", "imagenet64", "imagenet", "criteo")
Dataset = Literal[DATASETS]

# How well a job is written. `tuned_graph` is a further step of `tuned`, for vision models whose
# input is resident: the whole training step in one CUDA graph.
ARMS = {
    "faithful": {"precision": "tf32", "channels_last": False, "sync": True, "cuda_graph": False},
    "tuned": {"precision": "bf16", "channels_last": True, "sync": False, "cuda_graph": False},
    "tuned_graph": {"precision": "bf16", "channels_last": True, "sync": False, "cuda_graph": True},
}
Arm = Literal[tuple(ARMS)]

Count = Annotated[StrictInt, Field(ge=1, le=MOST_MEMBERS)]
Method = Name  # one of METHODS, or a variant of the study's own
VariantName = Annotated[str, Field(pattern=r"^mps_[a-z0-9_]+$")]
# A MIG instance, such as 2g; one with double memory, 1g2x; or a compute instance in a GPU instance
# that is shared, such as 3c.7g.
Slice = Annotated[str, Field(pattern=r"^([1-7]c\.)?[1-7]g$|^1g2x$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Measure(Strict):
    """How a cell is measured; seconds, steps and epochs."""

    kind: Literal[KINDS] = "window"
    window_s: float = Field(10, gt=0)
    min_steps: StrictInt = Field(30, ge=3)
    warmup_s: float = Field(3.0, ge=0)
    settle_s: float = Field(1.0, ge=0)
    epochs: StrictInt = Field(5, ge=1)

    def resolved(self) -> dict:
        """Only the keys that matter for this kind."""
        own = {"epochs": {"epochs"}, "completion": set()}
        keys = {"kind", "warmup_s", "settle_s"} | own.get(self.kind, {"window_s", "min_steps"})
        return self.model_dump(include=keys)


class MeasureOverride(Strict):
    """What a group of cells measures differently from its study."""

    kind: Literal[KINDS] | None = None
    window_s: float | None = Field(None, gt=0)
    min_steps: StrictInt | None = Field(None, ge=3)
    warmup_s: float | None = Field(None, ge=0)
    settle_s: float | None = Field(None, ge=0)
    epochs: StrictInt | None = Field(None, ge=1)


class Group(Strict):
    """What ladders and mixes share."""

    arms: list[Arm] | None = Field(None, min_length=1)
    measure: MeasureOverride = MeasureOverride()
    input: Literal["resident", "files"] | None = None
    replicates: StrictInt | None = Field(None, ge=1)
    tier: StrictInt = Field(1, ge=1)


class Ladder(Group):
    """Copies of one workload: for each count the methods that collocate them."""

    workloads: list[Name] = Field(min_length=1)
    counts: dict[Count, Annotated[list[Method], Field(min_length=1)]] = Field(min_length=1)
    cores: Literal["share", "all"] = "share"

    @property
    def least(self) -> int:
        """The members of its smallest cell."""
        return min(self.counts)

    def uses(self) -> Iterator[tuple[str, str]]:
        """Every method it names, with its key below the ladder."""
        for count, methods in self.counts.items():
            for index, method in enumerate(methods):
                yield f"counts.{count}.{index}", method

    @model_validator(mode="after")
    def _counts_are_possible(self):
        for count, methods in self.counts.items():
            _refuse_crowd(methods, count)
            for method in methods:
                if method in METHODS and count < (least := METHODS[method].least):
                    raise ValueError(f"'{method}' needs at least {least} members, not {count}")
        if self.cores == "all" and max(self.counts) > 1:
            raise ValueError("cores 'all' is the control of one member alone; allowed: share")
        return self


class Mix(Group):
    """Different workloads on one GPU. `slices` says what MIG gives each of them.

    departs: who leaves, of a departure. work: steps of each, of a completion.
    """

    members: dict[Name, Count] = Field(min_length=1)
    methods: list[Method] = Field(min_length=1)
    slices: dict[Name, Slice] = {}
    departs: Name | None = None
    work: dict[Name, Annotated[StrictInt, Field(ge=1)]] = {}

    @property
    def least(self) -> int:
        """How many members it has."""
        return sum(self.members.values())

    def uses(self) -> Iterator[tuple[str, str]]:
        """Every method it names, with its key below the mix."""
        for index, method in enumerate(self.methods):
            yield f"methods.{index}", method

    @model_validator(mode="after")
    def _names_are_members(self):
        for name in [*self.slices, *([self.departs] if self.departs else []), *self.work]:
            if name not in self.members:
                raise ValueError(f"'{name}' is not among its members: {', '.join(self.members)}")
        if any(method in METHODS and METHODS[method].parts for method in self.methods):
            missing = [name for name in self.members if name not in self.slices]
            if missing:
                raise ValueError(f"MIG needs a slice for {', '.join(missing)} under 'slices'")
        return self

    @model_validator(mode="after")
    def _count_is_possible(self):
        if self.least > MOST_MEMBERS:
            raise ValueError(f"{self.least} members; at most {MOST_MEMBERS} share one GPU")
        _refuse_crowd(self.methods, self.least)
        return self


def _refuse_crowd(methods: list[str], count: int) -> None:
    for name in methods:
        most = METHODS[name].most if name in METHODS else MOST_MEMBERS
        if count > most:
            fitting = [method.name for method in METHODS.values() if count <= method.most]
            raise ValueError(
                f"'{name}' holds at most {most} member(s), not {count}; "
                f"allowed for {count}: {', '.join(fitting)}"
            )


class Sizes(Strict):
    """How many samples to generate (or, for criteo, to read) of a dataset."""

    train: StrictInt = Field(ge=8)
    validation: StrictInt = Field(ge=8)


def not_allowed(where: str, given: str, known: Iterable[str]) -> str:
    """One line: the key, what stands there, what may, and what was probably meant."""
    near = difflib.get_close_matches(given, list(known), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"{where}: '{given}' is not allowed; allowed: {', '.join(known)}{hint}"


class Impossible(Strict):
    """A row of the authors' schedule that cannot exist, and why."""

    row: str
    reason: str


class Study(Strict):
    """A named grid of cells: scenario x method x arm x replicate.

    anchor: workloads whose job alone begins every session, so that sessions can be held against
    each other. cores_for: a member's cores are the machine's divided by so many, the same in every
    cell, alone too; cores_for_workload: the same for members of one workload.
    """

    description: str
    seed: StrictInt = Field(42, ge=0)
    replicates: StrictInt = Field(3, ge=1)
    arms: list[Arm] = Field(["faithful"], min_length=1)
    measure: Measure = Measure()
    datasets: dict[Dataset, Sizes] = {}
    variants: dict[VariantName, Limits] = {}
    anchor: list[Name] = []
    cores_for: Count = Field(7, examples=[4])  # as many as a GPU has MIG slices
    cores_for_workload: dict[Name, Count] = Field({}, examples=[{"dlrm_criteo_b2048": 2}])
    ladders: list[Ladder] = []
    mixes: list[Mix] = []
    impossible: list[Impossible] = []

    @model_validator(mode="after")
    def _not_empty(self):
        if not self.ladders and not self.mixes:
            raise ValueError("a study needs at least one entry under 'ladders' or 'mixes'")
        return self

    @model_validator(mode="after")
    def _methods_exist(self):
        if taken := [name for name in self.variants if name in METHODS]:
            raise ValueError(f"variants.{taken[0]}: is a method already; give it another name")
        known = (*METHODS, *self.variants)
        for where, group in self.groups():
            for key, method in group.uses():
                if method not in known:
                    raise ValueError(not_allowed(f"{where}.{key}", method, known))
                if method in self.variants:
                    self._check_names(where, group, method)
        return self

    def _check_names(self, where: str, group: Ladder | Mix, method: str) -> None:
        """A variant that names workloads names all of a group that uses it."""
        named = self.variants[method].named()
        members = group.workloads if isinstance(group, Ladder) else group.members
        if named and (missing := [name for name in members if name not in named]):
            raise ValueError(f"variants.{method}: says nothing of '{missing[0]}', used in {where}")

    def limits(self, method: str, workload: str, members: int) -> dict:
        """What a method limits a member to, such as sm_percent."""
        found = self.variants.get(method) or METHODS[method].limits
        return found.of(workload, members) if found else {}

    def cores_of(self, workload: str) -> int:
        """By how many the machine's cores are divided for a member of that workload."""
        return self.cores_for_workload.get(workload, self.cores_for)

    @model_validator(mode="after")
    def _departures_leave_survivors(self):
        for where, group in self.groups():
            departure = (group.measure.kind or self.measure.kind) == "departure"
            if departure and group.least < 2:
                raise ValueError(f"{where}: a departure needs at least 2 members; allowed: 2 to 48")
            if isinstance(group, Mix) and group.departs and not departure:
                raise ValueError(f"{where}.departs: allowed with measure {{kind: departure}} only")
        return self

    @model_validator(mode="after")
    def _completions_have_work(self):
        for where, group in self.groups():
            completion = (group.measure.kind or self.measure.kind) == "completion"
            work = group.work if isinstance(group, Mix) else {}
            if completion and not isinstance(group, Mix):
                raise ValueError(f"{where}: a completion is measured of 'mixes' only")
            if completion and (missing := [name for name in group.members if name not in work]):
                raise ValueError(f"{where}.work: give the steps of '{missing[0]}'")
            if work and not completion:
                raise ValueError(f"{where}.work: allowed with measure {{kind: completion}} only")
        return self

    def groups(self) -> list[tuple[str, Ladder | Mix]]:
        """All ladders and mixes with their keys, such as 'ladders.0'."""
        return [
            (f"{kind}.{index}", group)
            for kind, groups in (("ladders", self.ladders), ("mixes", self.mixes))
            for index, group in enumerate(groups)
        ]


class Sampling(Strict):
    """What watches a cell's GPU, members and host, and how often (rows/s)."""

    source: Literal["auto", "gpm", "dcgm", "nvml", "off"] = "auto"
    hz: float = Field(10, ge=0.5, le=100)

    @field_validator("source", mode="before")
    @classmethod
    def _off_is_a_word(cls, source):
        return "off" if source is False else source  # as YAML reads it


Timed = Literal["build", "warm", "window", "stop"]  # phases with a time-out


def _is_a_gpu(wanted):
    if not isinstance(wanted, str | int) or isinstance(wanted, bool) or wanted == "":
        raise ValueError(f"{wanted!r} is not allowed; allowed: auto, an index, a UUID, cpu")
    return wanted


Gpu = Annotated[str | int, BeforeValidator(_is_a_gpu)]


class Config(Strict):
    """config/config.yaml and `--config` on the command line."""

    study: str = "auto"
    source: Literal["auto", "real", "synthetic"] = "auto"
    measure: bool | None = None
    budget: str | int | float | None = None
    gpu: Gpu = "auto"
    mig_mode: Literal["keep", "switch"] = "keep"
    attempts: StrictInt = Field(3, ge=1)
    rerun: Literal["none", "mismatched"] = "none"
    results: str = "results"
    data: str = "data"
    workloads: str = "config/workloads.yaml"
    studies: str = "config/studies"
    trainer: str = "models.train"
    timeout: dict[Timed, Annotated[float, Field(gt=0)]] = {}
    telemetry: Sampling = Sampling()
    trace: StrictInt = Field(0, ge=0, le=1000)
    session: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")

    @field_validator("budget", mode="before")
    @classmethod
    def _budget_is_a_time(cls, budget):
        if budget is not None:
            seconds(budget)
        return budget


def seconds(text: str) -> float:
    """'25m', '2h' or '90s' → seconds. Raises ValueError, also without a unit: 25 of what?"""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", str(text))
    if not match:
        raise ValueError("give a time such as 90s, 25m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def write_schemas(folder: Path = SCHEMAS) -> None:
    """Export the models as JSON Schema, for editors and for the workflow catalogue."""
    from workflow.collocation.schema.workloads import AnyWorkload

    folder.mkdir(parents=True, exist_ok=True)
    for name, model in {"config": Config, "workload": AnyWorkload, "study": Study}.items():
        text = json.dumps(TypeAdapter(model).json_schema(), indent=1, sort_keys=True)
        (folder / f"{name}.schema.json").write_text(text + "\n")


if __name__ == "__main__":
    write_schemas()
