"""What a study may say: the models behind config.yaml and studies/*.yaml.

load.py reads the files into them; config/README.md says what each key means.
"""

import os
import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from workflow.collocation import ROOT
from workflow.collocation.study.errors import Name, Positive, Strict, not_allowed
from workflow.collocation.study.methods import (
    MAX_MEMBERS,
    METHOD_BOUNDS,
    MethodBounds,
    MpsLimits,
    is_mig,
)
from workflow.collocation.study.names import (
    ALONE,
    COMPLETION,
    IMPLEMENTATIONS,
    INTERLEAVED,
    STREAMS,
    WITHOUT_MPS,
    family_of,
    split_count,
)
from workflow.collocation.study.workloads import DATASETS

CONFIG = ROOT / "config"
MEASURE_KINDS = ("window", "departure", COMPLETION, INTERLEAVED)

Implementation = Literal[tuple(IMPLEMENTATIONS)]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_MEMBERS)]
MAX_JOBS = 20_000  # in all cells of a study, which are planned at once
Replicates = Annotated[StrictInt, Field(ge=1, le=999)]
# Of METHODS, or variants of the study's own; of interleaved sets `4xmps`: only so many members.
MethodWord = Annotated[str, Field(pattern=r"^([1-9]\d*x)?[a-z][a-z0-9_]*$")]
Methods = Annotated[list[MethodWord], Field(min_length=1)]
VariantName = Annotated[str, Field(pattern=r"^mps_[a-z0-9_]+$")]
# A MIG instance, such as 2g; one with double memory, 1g2x; or a compute instance in a GPU instance
# that is shared, such as 3c.7g.
Slice = Annotated[str, Field(pattern=r"^([1-7]c\.)?[1-7]g$|^1g2x$")]
ScenarioEntry = tuple[str, dict[str, int], list[str]]  # its key, workload → how many, methods


class Measure(Strict):
    """How a cell is measured."""

    kind: Literal[MEASURE_KINDS] = "window"  # what of the jobs is measured
    window_s: float = Field(10, gt=0)  # seconds in which all members train, at least
    min_steps: StrictInt = Field(30, ge=3)  # steps of each member in it, at least
    warmup_s: float = Field(3.0, ge=0)  # seconds from the first step to the barrier
    settle_s: float = Field(1.0, ge=0)  # seconds from the barrier to the window
    slices: StrictInt = Field(60, ge=2)  # of kind interleaved: slices of each condition
    slice_s: float = Field(0.5, gt=0)  # seconds of a slice, from resume to hold
    drop_s: float = Field(0.1, ge=0)  # of them, at its beginning, that do not count
    autotune: Literal["sequential", "concurrent"] = "sequential"  # members choose cuDNN's kernels


# Kind → the keys that matter for it, of those that do not matter for all.
_WINDOW = {"settle_s", "window_s", "min_steps"}
_MATTER = {
    "window": _WINDOW,
    "departure": _WINDOW,
    COMPLETION: {"settle_s"},
    INTERLEAVED: {"slices", "slice_s", "drop_s"},
}
KEYS_OF_OTHER_KINDS = {
    kind: set().union(*_MATTER.values()) - keys for kind, keys in _MATTER.items()
}


class Group(Strict):
    """What ladders and mixes share."""

    # instead of the study's
    implementations: list[Implementation] | None = Field(None, min_length=1)
    measure: Measure = Measure()  # keys that differ from the study's
    input: Literal["resident", "files", "shared"] | None = None  # else the workload's mode
    replicates: Replicates | None = None  # instead of the study's
    tier: Positive = 1  # all replicates of tier 1 come before those of tier 2

    @abstractmethod
    def scenarios(self) -> Iterator[ScenarioEntry]:
        """All that it collocates."""

    @abstractmethod
    def lacks(self, kind: str) -> Iterator[str]:
        """Why that cannot be measured of it: the key below it, and a sentence."""

    @property
    def names(self) -> list[str]:
        """The workloads that it names."""
        return list(dict.fromkeys(name for _, members, _ in self.scenarios() for name in members))


class Ladder(Group):
    """Copies of one workload: for each count the methods that collocate them."""

    workloads: list[Name] = Field(min_length=1)  # of the catalogue
    counts: dict[Count, Methods] = Field(min_length=1)  # members → methods
    cores: Literal["share", "all"] = "share"  # of a job alone; all: a control

    def scenarios(self) -> Iterator[ScenarioEntry]:
        for workload in self.workloads:
            for count, methods in self.counts.items():
                yield f"counts.{count}", {workload: count}, methods

    def lacks(self, kind: str) -> Iterator[str]:
        if kind == COMPLETION:
            yield ": a completion is measured of 'mixes' only"


class Mix(Group):
    """Different workloads on one GPU."""

    members: dict[Name, Count] = Field(min_length=1)  # workload → how many
    methods: Methods  # that collocate them
    slices: dict[Name, Slice] = {}  # workload → MIG instance of each
    leaving_workload: Name | None = None  # of a departure: who leaves; else the last
    work: dict[Name, Positive] = {}  # of a completion: steps of each

    def scenarios(self) -> Iterator[ScenarioEntry]:
        yield "methods", self.members, self.methods

    def lacks(self, kind: str) -> Iterator[str]:
        for name in (*self.slices, *self.work, self.leaving_workload):
            if name and name not in self.members:
                yield f": '{name}' is not among its members: {', '.join(self.members)}"
        if any(map(is_mig, self.methods)) and (of := self.members.keys() - self.slices.keys()):
            yield f": MIG needs a slice for {', '.join(sorted(of))} under 'slices'"
        for key, needed in (("leaving_workload", "departure"), ("work", COMPLETION)):
            if getattr(self, key) and kind != needed:
                yield f".{key}: allowed with measure {{kind: {needed}}} only"
        if kind == COMPLETION and (of := self.members.keys() - self.work.keys()):
            yield f".work: give the steps of '{min(of)}'"


class Sizes(Strict):
    """How many samples to generate of a dataset."""

    train: StrictInt = Field(ge=8)  # to train on
    validation: StrictInt | None = Field(None, ge=8)  # of studies that were measured: not used


class Study(Strict):
    """A named grid of cells: scenario x method x implementation x replicate."""

    description: str  # shown in the first lines
    cpu: bool = False  # may be measured on a CPU where there is no GPU
    seed: StrictInt = Field(42, ge=0)  # of data, weights and order
    replicates: Replicates = 3  # passes over all cells, each with baselines of its own
    # how well a job is written
    implementations: list[Implementation] = Field(["paper_step"], min_length=1)
    measure: Measure = Measure()  # how cells are measured
    datasets: dict[Literal[DATASETS], Sizes] = {}  # of generated data
    variants: dict[VariantName, MpsLimits] = {}  # MPS with limits, by a name
    # As many as a GPU has MIG slices.
    cores_for: Count = 7  # a member's cores are the machine's divided by this
    cores_for_workload: dict[Name, Count] = {}  # the same, of one workload
    ladders: list[Ladder] = []  # copies of one workload
    mixes: list[Mix] = []  # different workloads on one GPU

    def groups(self) -> list[tuple[str, Ladder | Mix]]:
        """All ladders and mixes with their keys, such as 'ladders.0'."""
        ladders = [(f"ladders.{index}", group) for index, group in enumerate(self.ladders)]
        return ladders + [(f"mixes.{index}", group) for index, group in enumerate(self.mixes)]

    def measure_of(self, group: Group) -> Measure:
        """How a group's cells are measured."""
        return self.measure.model_copy(update=group.measure.model_dump(exclude_unset=True))

    @model_validator(mode="after")
    def _hangs_together(self):
        if not self.groups():
            raise ValueError("a study needs at least one entry under 'ladders' or 'mixes'")
        for name in self.variants.keys() & METHOD_BOUNDS.keys():
            raise ValueError(f"variants.{name}: is a method already; give it another name")
        jobs = 0
        for where, group in self.groups():
            each = len(group.implementations or self.implementations)
            each *= group.replicates or self.replicates
            for _, members, methods in group.scenarios():
                if (jobs := jobs + sum(members.values()) * len(methods) * each) > MAX_JOBS:
                    raise ValueError(f"{where}: its cells bring the study over {MAX_JOBS:,} jobs")
            measure = self.measure_of(group)
            for said in (*self._methods_lack(group, measure), *group.lacks(measure.kind)):
                raise ValueError(where + said)
        return self

    def _methods_lack(self, group: Group, measure: Measure) -> Iterator[str]:
        known, turns = [*METHOD_BOUNDS, *self.variants], measure.kind == INTERLEAVED
        if turns:  # those whose members may be on one card in turns
            known = [n for n in (ALONE, *known) if n in WITHOUT_MPS or family_of(n) == "mps"]
            if measure.drop_s >= measure.slice_s:
                said = f"{measure.drop_s:g} s of slices of {measure.slice_s:g} s leave nothing"
                yield f".measure.drop_s: {said}"
        for key, members, methods in group.scenarios():
            key, count = f".{key}", sum(members.values())
            for index, word in enumerate(methods):
                part, method = split_count(word) if turns else (None, word)
                its = METHOD_BOUNDS.get(method, MethodBounds())
                if method not in known:
                    yield not_allowed(f"{key}.{index}", method, known)
                parts = ("naive", "mps", STREAMS)
                odd = len(members) > 1 or methods.count(word) > 1 or method not in parts
                if part and (odd or part > count):
                    yield f"{key}.{index}: '{word}' is no part of {count} copies of one workload"
                if not its.least <= count <= its.most:
                    yield f"{key}: '{method}' takes {its.least} to {its.most} members, not {count}"
            if measure.kind == "departure" and count < 2:
                yield f"{key}: a departure needs at least 2 members"
            if turns and len(methods) < 2:
                yield f"{key}: 'interleaved' needs at least 2 conditions"
            clients = count * sum(split_count(method)[1] not in WITHOUT_MPS for method in methods)
            if turns and clients > MAX_MEMBERS:
                yield f"{key}: {clients} members are clients of one MPS daemon; at most 48 can be"


class Sampling(Strict):
    """What watches a cell's GPU, members and host."""

    # of the GPU's counters; auto: the best that the card has
    source: Annotated[  # YAML reads off as false
        Literal["auto", "gpm", "dcgm", "nvml", "off"],
        BeforeValidator(lambda given: "off" if given is False else given),
    ] = "auto"
    hz: float = Field(10, ge=0.5, le=100)  # rows/s


TimedPhase = Literal["build", "warm", "window", "stop"]  # phases with a time-out
GpuChoice = StrictStr | StrictInt


def check_duration(time: object) -> object:
    """A time as `seconds` reads it. Raises ValueError for any other."""
    if not re.fullmatch(r"\d+(\.\d+)?\s*[smh]", str(time)):  # 25 of what?
        raise ValueError(f"give a time such as 90s, 3m or 2h, not {time}")
    return time


Duration = Annotated[str, BeforeValidator(check_duration)]
# Snakemake would read braces in another way than we do, and Arrow a colon.
Folder = Annotated[str, Field(pattern="^[^{}:]+$"), AfterValidator(os.path.expanduser)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]


def parse_seconds(time: Duration) -> float:
    """'25m', '2h' or '90s' → seconds."""
    return float(time[:-1]) * {"s": 1, "m": 60, "h": 3600}[time[-1]]


class Config(Strict):
    """config/config.yaml, and what a command line says otherwise."""

    study: str = "auto"  # a name; auto: paper on a CUDA machine, smoke elsewhere
    source: Literal["auto", "real", "synthetic"] = "auto"  # of data
    measure: bool | None = None  # false: no cell; true: also of a shipped study
    budget: Duration | None = None  # cells that do not fit are left: 90s, 25m or 2h
    wait: Duration = "10m"  # for others to leave the GPU, before the run gives up
    gpu: GpuChoice = "auto"  # auto: the visible ones; an index, UUIDs with commas; cpu
    attempts: Positive = 3  # how often a cell that failed is tried in all
    rerun: Literal["none", "mismatched"] = "none"  # what other code measured
    results: Folder = "results"  # folder of what was measured, study by study
    data: Folder = "data"  # folder of datasets
    workloads: str = "config/workloads.yaml"  # the catalogue
    studies: str = "config/studies"  # folder of studies
    trainer: str = "models.train"  # Python module that members run
    timeout: dict[TimedPhase, PositiveFloat] = {}  # phase of a cell → seconds
    telemetry: Sampling = Sampling()  # what watches a cell
    session: Label | None = None  # of a visit to a host: in its runs' records
