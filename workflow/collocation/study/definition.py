"""The models of config.yaml and studies/*.yaml; config/README.md explains their keys."""

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
MAX_JOBS = 20_000  # in all cells of a study
Replicates = Annotated[StrictInt, Field(ge=1, le=999)]
# A method or a variant of the study; in interleaved cells also its first members: `4xmps`.
MethodWord = Annotated[str, Field(pattern=r"^([1-9]\d*x)?[a-z][a-z0-9_]*$")]
Methods = Annotated[list[MethodWord], Field(min_length=1)]
VariantName = Annotated[str, Field(pattern=r"^mps_[a-z0-9_]+$")]
# A MIG instance, such as 2g; one with double memory, 1g2x; or a compute instance in a shared GPU
# instance, such as 3c.7g.
Slice = Annotated[str, Field(pattern=r"^([1-7]c\.)?[1-7]g$|^1g2x$")]
ScenarioEntry = tuple[str, dict[str, int], list[str]]  # key, workload → count, methods


class Measure(Strict):
    """How a cell is measured."""

    kind: Literal[MEASURE_KINDS] = "window"  # of measurement
    window_s: float = Field(10, gt=0)  # minimum seconds in which all members train
    min_steps: StrictInt = Field(30, ge=3)  # minimum of steps of each member in the window
    warmup_s: float = Field(3.0, ge=0)  # seconds from the first step to the barrier
    settle_s: float = Field(1.0, ge=0)  # seconds from the barrier to the window
    slices: StrictInt = Field(60, ge=2)  # kind interleaved: slices of each condition
    slice_s: float = Field(0.5, gt=0)  # seconds of a slice, from resume to hold
    drop_s: float = Field(0.1, ge=0)  # seconds at a slice's beginning that do not count
    autotune: Literal["sequential", "concurrent"] = "sequential"  # how members choose kernels


# Kind → the keys that matter for it alone; all other keys matter for every kind.
_WINDOW = {"settle_s", "window_s", "min_steps"}
_SPECIFIC_KEYS = {
    "window": _WINDOW,
    "departure": _WINDOW,
    COMPLETION: {"settle_s"},
    INTERLEAVED: {"slices", "slice_s", "drop_s"},
}
KEYS_OF_OTHER_KINDS = {
    kind: set().union(*_SPECIFIC_KEYS.values()) - keys for kind, keys in _SPECIFIC_KEYS.items()
}


class Group(Strict):
    """An entry under ladders or mixes: what both have."""

    # instead of the study's
    implementations: list[Implementation] | None = Field(None, min_length=1)
    measure: Measure = Measure()  # keys that differ from the study's
    input: Literal["resident", "files", "shared"] | None = None  # instead of the workload's mode
    replicates: Replicates | None = None  # instead of the study's
    tier: Positive = 1  # all replicates of tier 1 come before those of tier 2

    @abstractmethod
    def scenarios(self) -> Iterator[ScenarioEntry]:
        """The sets of jobs that it collocates."""

    @abstractmethod
    def mistakes(self, kind: str) -> Iterator[str]:
        """Why it cannot be measured in this way, each as `.key: sentence`."""

    @property
    def workload_names(self) -> list[str]:
        """The distinct workloads of all its scenarios."""
        names: dict[str, None] = {}
        for _, members, _ in self.scenarios():
            names |= dict.fromkeys(members)
        return list(names)


class Ladder(Group):
    """Copies of one workload: for each count the methods that collocate them."""

    workloads: list[Name] = Field(min_length=1)  # of the catalogue
    counts: dict[Count, Methods] = Field(min_length=1)  # members → methods
    cores: Literal["share", "all"] = "share"  # of a job alone; all is a control experiment

    def scenarios(self) -> Iterator[ScenarioEntry]:
        for workload in self.workloads:
            for count, methods in self.counts.items():
                yield f"counts.{count}", {workload: count}, methods

    def mistakes(self, kind: str) -> Iterator[str]:
        if kind == COMPLETION:
            yield ": a completion is measured of 'mixes' only"


class Mix(Group):
    """Different workloads on one GPU."""

    members: dict[Name, Count] = Field(min_length=1)  # workload → how many
    methods: Methods  # that collocate them
    slices: dict[Name, Slice] = {}  # workload → MIG instance of each
    leaving_workload: Name | None = None  # kind departure: which leaves; by default the last
    work: dict[Name, Positive] = {}  # kind completion: steps of each workload

    def scenarios(self) -> Iterator[ScenarioEntry]:
        yield "methods", self.members, self.methods

    def mistakes(self, kind: str) -> Iterator[str]:
        for name in (*self.slices, *self.work, self.leaving_workload):
            if name and name not in self.members:
                yield f": '{name}' is not among its members: {', '.join(self.members)}"
        without_slice = sorted(self.members.keys() - self.slices.keys())
        if without_slice and any(map(is_mig, self.methods)):
            yield f": MIG needs a slice for {', '.join(without_slice)} under 'slices'"
        for key, needed in (("leaving_workload", "departure"), ("work", COMPLETION)):
            if getattr(self, key) and kind != needed:
                yield f".{key}: allowed with measure {{kind: {needed}}} only"
        without_work = self.members.keys() - self.work.keys()
        if kind == COMPLETION and without_work:
            yield f".work: give the steps of '{min(without_work)}'"


class Sizes(Strict):
    """Numbers of samples to generate of a dataset."""

    train: StrictInt = Field(ge=8)  # for training
    # It is not used any more, but the digests of shipped cells depend on it.
    validation: StrictInt | None = Field(None, ge=8)


class Study(Strict):
    """A named grid of cells: scenario x method x implementation x replicate."""

    description: str  # shown in the first lines
    paper: bool = False  # beside the values and the claims of the paper
    cpu: bool = False  # may be measured on a CPU if there is no GPU
    seed: StrictInt = Field(42, ge=0)  # of data, weights and order
    replicates: Replicates = 3  # passes over all cells, each with its own baselines
    # how the jobs are written
    implementations: list[Implementation] = Field(["paper_step"], min_length=1)
    measure: Measure = Measure()  # how cells are measured
    datasets: dict[Literal[DATASETS], Sizes] = {}  # sizes of generated data
    variants: dict[VariantName, MpsLimits] = {}  # methods of the study: MPS with limits
    # The default is the number of MIG slices of a GPU.
    cores_for: Count = 7  # each member gets the machine's cores divided by this
    cores_for_workload: dict[Name, Count] = {}  # the same for one workload
    ladders: list[Ladder] = []  # copies of one workload
    mixes: list[Mix] = []  # different workloads on one GPU

    def groups(self) -> list[tuple[str, Ladder | Mix]]:
        """The key of each ladder and mix, such as 'ladders.0', and the entry."""
        ladders = [(f"ladders.{index}", group) for index, group in enumerate(self.ladders)]
        return ladders + [(f"mixes.{index}", group) for index, group in enumerate(self.mixes)]

    def measure_of(self, group: Group) -> Measure:
        """How a group's cells are measured."""
        return self.measure.model_copy(update=group.measure.model_dump(exclude_unset=True))

    @model_validator(mode="after")
    def _check_groups(self):
        if not self.groups():
            raise ValueError("a study needs at least one entry under 'ladders' or 'mixes'")
        for name in self.variants.keys() & METHOD_BOUNDS.keys():
            raise ValueError(f"variants.{name}: is a method already; give it another name")
        jobs = 0
        for key, group in self.groups():
            cells_per_method = len(group.implementations or self.implementations)
            cells_per_method *= group.replicates or self.replicates
            for _, members, methods in group.scenarios():
                jobs += sum(members.values()) * len(methods) * cells_per_method
                if jobs > MAX_JOBS:
                    raise ValueError(f"{key}: its cells bring the study over {MAX_JOBS:,} jobs")
            measure = self.measure_of(group)
            for mistake in self._method_mistakes(group, measure):
                raise ValueError(key + mistake)
            for mistake in group.mistakes(measure.kind):
                raise ValueError(key + mistake)
        return self

    def _method_mistakes(self, group: Group, measure: Measure) -> Iterator[str]:
        """Why its methods cannot collocate the group's scenarios, each as `.key: sentence`."""
        interleaved = measure.kind == INTERLEAVED
        allowed = [*METHOD_BOUNDS, *self.variants]
        if interleaved:  # methods that can take turns on one card
            allowed = [ALONE, *allowed]
            allowed = [name for name in allowed if name in WITHOUT_MPS or family_of(name) == "mps"]
            if measure.drop_s >= measure.slice_s:
                times = f"{measure.drop_s:g} s of slices of {measure.slice_s:g} s"
                yield f".measure.drop_s: {times} leave nothing"
        for scenario_key, members, methods in group.scenarios():
            key = f".{scenario_key}"
            member_count = sum(members.values())
            mps_clients = 0
            for index, word in enumerate(methods):
                part_count, method = split_count(word) if interleaved else (None, word)
                if method not in allowed:
                    yield not_allowed(f"{key}.{index}", method, allowed)
                if part_count:
                    is_part = method in ("naive", "mps", STREAMS) and part_count <= member_count
                    if len(members) > 1 or methods.count(word) > 1 or not is_part:
                        copies = f"{member_count} copies of one workload"
                        yield f"{key}.{index}: '{word}' is no part of {copies}"
                bounds = METHOD_BOUNDS.get(method, MethodBounds())
                if not bounds.min_members <= member_count <= bounds.max_members:
                    limits = f"{bounds.min_members} to {bounds.max_members} members"
                    yield f"{key}: '{method}' takes {limits}, not {member_count}"
                if method not in WITHOUT_MPS:
                    mps_clients += member_count
            if measure.kind == "departure" and member_count < 2:
                yield f"{key}: a departure needs at least 2 members"
            if interleaved and len(methods) < 2:
                yield f"{key}: 'interleaved' needs at least 2 conditions"
            if interleaved and mps_clients > MAX_MEMBERS:
                clients = f"{mps_clients} members are clients of one MPS daemon"
                yield f"{key}: {clients}; at most 48 can be"


class Sampling(Strict):
    """How a cell's GPU, members and host are watched."""

    # of the GPU's counters; auto: the best that the card has
    source: Annotated[  # YAML reads off as false
        Literal["auto", "gpm", "dcgm", "nvml", "off"],
        BeforeValidator(lambda source: "off" if source is False else source),
    ] = "auto"
    hz: float = Field(10, ge=0.5, le=100)  # readings per second


TimedPhase = Literal["build", "warm", "window", "stop"]  # phases with a time-out
GpuChoice = StrictStr | StrictInt


def check_duration(time: object) -> object:
    """Return a duration such as 90s, 3m or 2h unchanged. Raises ValueError for anything else."""
    if not re.fullmatch(r"\d+(\.\d+)?\s*[smh]", str(time)):
        raise ValueError(f"give a time such as 90s, 3m or 2h, not {time}")
    return time


Duration = Annotated[str, BeforeValidator(check_duration)]
# Braces mean something to Snakemake, and a colon does to Arrow.
Folder = Annotated[str, Field(pattern="^[^{}:]+$"), AfterValidator(os.path.expanduser)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$")]


def parse_seconds(time: Duration) -> float:
    """'25m', '2h' or '90s' → seconds."""
    return float(time[:-1]) * {"s": 1, "m": 60, "h": 3600}[time[-1]]


class Config(Strict):
    """config/config.yaml, with the values of a command line over it."""

    study: str = "auto"  # a name; auto: paper on a CUDA machine, smoke elsewhere
    source: Literal["auto", "real", "synthetic"] = "auto"  # of data
    measure: bool | None = None  # false: no cells; true: also cells of a shipped study
    budget: Duration | None = None  # time for this run, such as 90s, 25m or 2h
    wait: Duration = "10m"  # how long to wait until others leave the GPU
    gpu: GpuChoice = "auto"  # auto: the visible ones; an index, UUIDs with commas; cpu
    attempts: Positive = 3  # how often a failing cell is tried in all
    rerun: Literal["none", "mismatched"] = "none"  # cells that other code measured
    results: Folder = "results"  # folder with a folder for each study
    data: Folder = "data"  # folder of datasets
    workloads: str = "config/workloads.yaml"  # the catalogue
    studies: str = "config/studies"  # folder of studies
    trainer: str = "models.train"  # Python module that members run
    timeout: dict[TimedPhase, PositiveFloat] = {}  # phase of a cell → seconds
    telemetry: Sampling = Sampling()
    session: Label | None = None  # a label that this run's records get
