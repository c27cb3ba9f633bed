"""What a study may say: the models behind config.yaml and studies/*.yaml.

load.py reads the files into them. `workflow/schemas/` holds the same rules as JSON Schema for
editors, written by `python -m workflow.collocation.spec.study` and kept equal by a test.
"""

import json
import os
import re
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictInt,
    TypeAdapter,
    field_validator,
    model_validator,
)

from workflow.collocation import ROOT
from workflow.collocation.spec.errors import Strict, not_allowed
from workflow.collocation.spec.limits import Limits, Name, Positive
from workflow.collocation.spec.measure import Measure, Scenario, require_turns
from workflow.collocation.spec.methods import METHODS, MOST_MEMBERS, divides
from workflow.collocation.spec.names import ALTERNATE, ARMS, PLAIN, family_of
from workflow.collocation.spec.workloads import DATASETS, AnyWorkload

CONFIG = ROOT / "config"
SCHEMAS = ROOT / "workflow" / "schemas"

Dataset = Literal[DATASETS]
Arm = Literal[tuple(ARMS)]
Count = Annotated[StrictInt, Field(ge=1, le=MOST_MEMBERS)]
Method = Name  # one of METHODS, or a variant of the study's own
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]
VariantName = Annotated[str, Field(pattern=r"^mps_[a-z0-9_]+$")]
# A MIG instance, such as 2g; one with double memory, 1g2x; or a compute instance in a GPU instance
# that is shared, such as 3c.7g.
Slice = Annotated[str, Field(pattern=r"^([1-7]c\.)?[1-7]g$|^1g2x$")]


class Group(Strict):
    """What ladders and mixes share."""

    arms: list[Arm] | None = Field(None, min_length=1, description="instead of the study's")
    measure: Measure = Field(
        Measure(), description="keys that differ from the study's", examples=[{"kind": "departure"}]
    )
    input: Literal["resident", "files"] | None = Field(
        None, description="instead of the workload's input.mode"
    )
    replicates: Positive | None = Field(None, description="instead of the study's", examples=[1])
    tier: Positive = Field(1, description="all blocks of tier 1 come before those of tier 2")

    @abstractmethod
    def scenarios(self) -> list[Scenario]:
        """All that it collocates."""

    def uses(self) -> list[tuple[str, str, int]]:
        """Every method it names: its key below the group, the method, how many members."""
        return [
            (f"{key}.{index}", method, sum(members.values()))
            for key, members, methods in self.scenarios()
            for index, method in enumerate(methods)
        ]

    @property
    def names(self) -> list[str]:
        """The workloads that it names."""
        return list(dict.fromkeys(name for _, members, _ in self.scenarios() for name in members))

    @property
    def least(self) -> int:
        """The members of its smallest cell."""
        return min(sum(members.values()) for _, members, _ in self.scenarios())

    @model_validator(mode="after")
    def _methods_hold_them(self):
        if self.least > MOST_MEMBERS:
            raise ValueError(f"{self.least} members; at most {MOST_MEMBERS} share one GPU")
        for _, method, count in self.uses():
            if method not in METHODS:
                continue
            if count > (most := METHODS[method].most):
                fitting = [name for name, each in METHODS.items() if count <= each.most]
                raise ValueError(
                    f"'{method}' holds at most {most} member(s), not {count}; "
                    f"allowed for {count}: {', '.join(fitting)}"
                )
            if count < (least := METHODS[method].least) and isinstance(self, Ladder):
                raise ValueError(f"'{method}' needs at least {least} members, not {count}")
        return self


class Ladder(Group):
    """Copies of one workload: for each count the methods that collocate them."""

    workloads: list[Name] = Field(
        min_length=1, description="of the catalogue", examples=[["resnet26_cifar10_b32"]]
    )
    counts: dict[Count, Annotated[list[Method], Field(min_length=1)]] = Field(
        min_length=1, description="members → methods", examples=[{7: ["naive", "mps", "mig"]}]
    )
    cores: Literal["share", "all"] = Field(
        "share", description="of a job alone: its share of the cores, or all as a control"
    )

    def scenarios(self) -> list[Scenario]:
        return [
            (f"counts.{count}", {workload: count}, methods)
            for workload in self.workloads
            for count, methods in self.counts.items()
        ]

    @model_validator(mode="after")
    def _all_cores_are_for_one(self):
        if self.cores == "all" and max(self.counts) > 1:
            raise ValueError("cores 'all' is the control of one member alone; allowed: share")
        return self


class Mix(Group):
    """Different workloads on one GPU."""

    members: dict[Name, Count] = Field(
        min_length=1, description="workload → how many", examples=[{"large": 1, "small": 2}]
    )
    methods: list[Method] = Field(
        min_length=1, description="that collocate them", examples=[["naive", "mps"]]
    )
    slices: dict[Name, Slice] = Field(
        {}, description="workload → MIG instance of each", examples=[{"large": "2g", "small": "1g"}]
    )
    departs: Name | None = Field(
        None, description="of a departure: whose jobs leave; else the last", examples=["large"]
    )
    work: dict[Name, Positive] = Field(
        {}, description="of a completion: steps of each", examples=[{"large": 300, "small": 900}]
    )

    def scenarios(self) -> list[Scenario]:
        return [("methods", self.members, self.methods)]

    @model_validator(mode="after")
    def _names_are_members(self):
        for name in [*self.slices, *([self.departs] if self.departs else []), *self.work]:
            if name not in self.members:
                raise ValueError(f"'{name}' is not among its members: {', '.join(self.members)}")
        if any(map(divides, self.methods)):
            missing = [name for name in self.members if name not in self.slices]
            if missing:
                raise ValueError(f"MIG needs a slice for {', '.join(missing)} under 'slices'")
        return self


class Sizes(Strict):
    """How many samples to generate (or, for criteo, to read) of a dataset."""

    train: StrictInt = Field(ge=8, description="to train on", examples=[50000])
    validation: StrictInt = Field(ge=8, description="to validate with", examples=[10000])


class Impossible(Strict):
    """A row of the authors' schedule that cannot exist, and why."""

    row: str = Field(description="as the schedule has it", examples=["12: 8 x 1g"])
    reason: str = Field(description="why there is no such cell", examples=["a card has 7"])


class Study(Strict):
    """A named grid of cells: scenario x method x arm x replicate."""

    description: str = Field(description="shown in the first lines", examples=["batch sizes"])
    cpu: bool = Field(False, description="may be measured on a CPU where there is no GPU")
    seed: StrictInt = Field(42, ge=0, description="of data, weights and order")
    replicates: Positive = Field(3, description="blocks, each with all cells and their baselines")
    arms: list[Arm] = Field(["paper_step"], min_length=1, description="how well a job is written")
    measure: Measure = Field(Measure(), description="how cells are measured")
    datasets: dict[Dataset, Sizes] = Field(
        {}, description="of generated data", examples=[{"digits": {"train": 64, "validation": 16}}]
    )
    variants: dict[VariantName, Limits] = Field(
        {}, description="MPS with limits, by a name", examples=[{"mps_1g": {"sm_percent": 12}}]
    )
    cores_for: Count = Field(  # as many as a GPU has MIG slices
        7, description="a member's cores are the machine's divided by this, in every cell"
    )
    cores_for_workload: dict[Name, Count] = Field(
        {}, description="the same for members of one workload", examples=[{"dlrm_criteo_b2048": 2}]
    )
    ladders: list[Ladder] = Field([], description="copies of one workload")
    mixes: list[Mix] = Field([], description="different workloads on one GPU")
    impossible: list[Impossible] = Field(
        [], description="rows of the authors' schedule that cannot exist"
    )

    def groups(self) -> list[tuple[str, Ladder | Mix]]:
        """All ladders and mixes with their keys, such as 'ladders.0'."""
        ladders = [(f"ladders.{index}", group) for index, group in enumerate(self.ladders)]
        return ladders + [(f"mixes.{index}", group) for index, group in enumerate(self.mixes)]

    def kind(self, group: Ladder | Mix) -> str:
        """What is measured of a group's cells."""
        return (group.measure if "kind" in group.measure.model_fields_set else self.measure).kind

    def limits(self, method: str, workload: str, members: int) -> dict:
        """What a method limits a member to, such as sm_percent."""
        found = self.variants.get(method) or METHODS[method].limits
        return found.of(workload, members) if found else {}

    def cores_of(self, workload: str) -> int:
        """By how many the machine's cores are divided for a member of that workload."""
        return self.cores_for_workload.get(workload, self.cores_for)

    @model_validator(mode="after")
    def _has_groups_whose_methods_exist(self):
        if not self.groups():
            raise ValueError("a study needs at least one entry under 'ladders' or 'mixes'")
        if taken := [name for name in self.variants if name in METHODS]:
            raise ValueError(f"variants.{taken[0]}: is a method already; give it another name")
        for where, group in self.groups():
            known = (*METHODS, *self.variants)
            if self.kind(group) == ALTERNATE:  # those whose members may be on one card in turns
                known = (*PLAIN, *(name for name in known if family_of(name) == "mps"))
            for key, method, _ in group.uses():
                if method not in known:
                    raise ValueError(not_allowed(f"{where}.{key}", method, known))
                # A variant that names workloads names all of a group that uses it.
                named = self.variants[method].named() if method in self.variants else ()
                if named and (missing := [name for name in group.names if name not in named]):
                    raise ValueError(
                        f"variants.{method}: says nothing of '{missing[0]}', used in {where}"
                    )
        return self

    @model_validator(mode="after")
    def _groups_have_what_their_kind_needs(self):
        for where, group in self.groups():
            kind, mix = self.kind(group), isinstance(group, Mix)
            if kind == ALTERNATE:
                require_turns(where, self.measure, group.measure, group.scenarios())
            if kind == "departure" and group.least < 2:
                raise ValueError(f"{where}: a departure needs at least 2 members; allowed: 2 to 48")
            if kind == "completion" and not mix:
                raise ValueError(f"{where}: a completion is measured of 'mixes' only")
            if not mix:
                continue
            for key, given, needed in (
                ("departs", group.departs, "departure"),
                ("work", group.work, "completion"),
            ):
                if given and kind != needed:
                    raise ValueError(f"{where}.{key}: allowed with measure {{kind: {needed}}} only")
            missing = [name for name in group.members if name not in group.work]
            if kind == "completion" and missing:
                raise ValueError(f"{where}.work: give the steps of '{missing[0]}'")
        return self


class Sampling(Strict):
    """What watches a cell's GPU, members and host."""

    source: Literal["auto", "gpm", "dcgm", "nvml", "off"] = Field(
        "auto", description="of the GPU's counters; auto: the best that the card has"
    )
    hz: float = Field(10, ge=0.5, le=100, description="rows/s")

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


def seconds(text: str) -> float:
    """'25m', '2h' or '90s' → seconds. Raises ValueError, also without a unit: 25 of what?"""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", str(text))
    if not match:
        raise ValueError("give a time such as 90s, 25m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _is_a_time(given):
    seconds(given)
    return given


Time = Annotated[str, BeforeValidator(_is_a_time)]


# Snakemake would read braces in another way than we do, and Arrow a colon.
Folder = Annotated[str, Field(pattern="^[^{}:]+$"), AfterValidator(os.path.expanduser)]


class Config(Strict):
    """config/config.yaml and `--config` on the command line."""

    study: str = Field("auto", description="a name; auto: paper on a CUDA machine, smoke elsewhere")
    source: Literal["auto", "real", "synthetic"] = Field(
        "auto", description="of data; auto: real where there are any, else generated"
    )
    measure: bool | None = Field(
        None, description="false: plan no cell; else not of a study that ships", examples=[False]
    )
    budget: Time | None = Field(
        None, description="cells that do not fit are left for the next run", examples=["25m"]
    )
    wait: Time = Field("10m", description="for others to leave the GPU, before the run gives up")
    gpu: Gpu = Field(
        "auto", description="auto: the visible ones; an index, a UUID, several with commas; cpu"
    )
    mig_mode: Literal["keep", "switch"] = Field(
        "keep", description="switch: may change the card's MIG mode and layout, and puts them back"
    )
    attempts: Positive = Field(3, description="how often a cell that failed is tried in all")
    rerun: Literal["none", "mismatched"] = Field(
        "none", description="mismatched: measure again what other code or versions measured"
    )
    results: Folder = Field("results", description="folder of what was measured, study by study")
    data: Folder = Field("data", description="folder of datasets")
    workloads: str = Field("config/workloads.yaml", description="the catalogue")
    studies: str = Field("config/studies", description="folder of studies")
    modules: list[ModuleName] = Field(
        [],
        description="whose code workloads may name, beside files at the top of the repository",
        examples=[["my_package"]],
    )
    trainer: str = Field("models.train", description="Python module that members run")
    timeout: dict[Timed, Annotated[float, Field(gt=0)]] = Field(
        {}, description="phase of a cell → seconds", examples=[{"build": 900, "window": 900}]
    )
    telemetry: Sampling = Field(Sampling(), description="what watches a cell")
    session: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$",
        description="a visit to a host: records of its runs hold this name",
        examples=["tuesday"],
    )


def write_schemas(folder: Path = SCHEMAS) -> None:
    """Export the models as JSON Schema, for editors and for the workflow catalogue."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in {"config": Config, "workload": AnyWorkload, "study": Study}.items():
        text = json.dumps(TypeAdapter(model).json_schema(), indent=1, sort_keys=True)
        (folder / f"{name}.schema.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
