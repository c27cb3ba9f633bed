"""Expands a study into its cells, in the order in which they run. Pure functions."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from workflow.collocation.study.cell import CellSpec, ImplementationSpec, MeasureSpec, MemberSpec
from workflow.collocation.study.definition import Ladder, Mix, Study
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.methods import METHOD_BOUNDS, is_mig
from workflow.collocation.study.names import (
    ALONE_VARIANTS,
    IMPLEMENTATIONS,
    INTERLEAVED,
    SEPARATOR,
    STREAMS,
    WITHOUT_MPS,
    Condition,
    cell_id,
    family_of,
    list_conditions,
    scenario_id,
)
from workflow.collocation.study.workloads import Workload

MERGED_OFFSET = 1000  # replicate 2 of a folder that was merged in is 1002, or 2002, …


@dataclass(frozen=True)
class Cell:
    """One Snakemake job: a scenario under a method, in one implementation, in one replicate."""

    scenario: str
    implementation: str
    method: str
    replicate: int
    spec: CellSpec

    @property
    def id(self) -> str:
        return cell_id(self.scenario, self.implementation, self.method, self.replicate)

    @cached_property
    def digest(self) -> str:
        return self.spec.digest

    @property
    def n(self) -> int:
        """Number of members."""
        return len(self.spec.members)

    @property
    def needs(self) -> set[str]:
        """Ids of the baselines, the alone cells of this replicate that it is normalised by.

        An interleaved cell needs none: it measures its jobs alone itself.
        """
        if self.spec.measure.kind == INTERLEAVED:
            return set()
        baselines = set()
        for member in self.spec.members:
            scenario = scenario_id({member.workload: 1}, _input_variant(member))
            baselines.add(cell_id(scenario, self.implementation, "naive", self.replicate))
        return baselines


@dataclass(frozen=True)
class _Draft:
    """A cell before its spec is built. workloads: of its members. method: as in the cell's id."""

    group: Ladder | Mix
    implementation: str
    replicate: int
    workloads: list[str]
    method: str
    is_baseline: bool = False


def expand(
    study: Study,
    workloads: dict[str, Workload],
    sources: dict[str, str] | None = None,
    out_of_memory: Collection[str] = (),
) -> list[Cell]:
    """Every cell of a study, including all baselines, in the order in which they run.

    Replicates come one after the other, each with its own baselines, tier by tier. In a replicate
    the cells of one workload follow each other, with mixes at their first workload, so that changes
    over minutes affect ratios less. The order is otherwise random. It depends on the seed and the
    names alone, so a new cell does not move any other.

    workloads: the catalogue. sources: workload → digest of the user's own code. out_of_memory: ids
    of interleaved cells that ran out of memory; each of their sets gets a cell of its own as well.
    Raises ConfigError if two entries plan the same cell with different settings.
    """
    cells: dict[str, Cell] = {}
    drafts = sorted(_drafts(study), key=lambda draft: draft.is_baseline)
    for draft in drafts:
        cell = _build_cell(study, workloads, sources or {}, draft)
        if cell.id in out_of_memory and cell.spec.measure.kind == INTERLEAVED:
            drafts += _separate_sets(draft)  # the loop reaches these as well
        first = cells.setdefault(cell.id, cell)
        if not draft.is_baseline and first.digest != cell.digest:
            raise ConfigError(f"{cell.id}: two entries of the study plan it with other settings")

    def position(cell: Cell) -> tuple:
        first_workload = f"{cell.spec.members[0].workload}/r{cell.replicate}"
        return cell.replicate, _hash(study.seed, first_workload), _hash(study.seed, cell.id)

    return sorted(cells.values(), key=position)


def merged_cells(cells: Iterable[Cell], tried_ids: Iterable[str]) -> list[Cell]:
    """The cells of replicates that were merged in from other machines, planned like this study's.

    tried_ids: ids of all cells with an attempt.
    """
    planned = {cell.id: cell for cell in cells}
    merged = []
    for tried_id in tried_ids:
        kind, _, replicate = tried_id.rpartition("/r")
        number = int(replicate)
        original = planned.get(f"{kind}/r{number % MERGED_OFFSET}")
        if original and number > MERGED_OFFSET and tried_id not in planned:
            merged.append(replace(original, replicate=number))
    return merged


def _drafts(study: Study) -> Iterator[_Draft]:
    """A draft of every cell, and of the baselines that it needs, which may repeat."""
    tier_replicates: dict[int, int] = {}  # the most that a group of the tier has
    for _, group in study.groups():
        replicates = group.replicates or study.replicates
        tier_replicates[group.tier] = max(tier_replicates.get(group.tier, 0), replicates)
    for _, group in study.groups():
        first = 1 + sum(count for tier, count in tier_replicates.items() if tier < group.tier)
        replicates = range(first, first + (group.replicates or study.replicates))
        implementations = group.implementations or study.implementations
        interleaved = study.measure_of(group).kind == INTERLEAVED
        for implementation, replicate in itertools.product(implementations, replicates):
            for _, members, methods in group.scenarios():
                workloads = list(Counter(members).elements())
                for method in [SEPARATOR.join(methods)] if interleaved else methods:
                    yield _Draft(group, implementation, replicate, workloads, method)
                for workload in () if interleaved else members:
                    yield _Draft(group, implementation, replicate, [workload], "naive", True)


def _separate_sets(draft: _Draft) -> Iterator[_Draft]:
    """Drafts of an interleaved cell's sets, each in a cell of its own."""
    for condition in list_conditions(draft.method, draft.workloads):
        if not condition.alone_workload:
            workloads = draft.workloads[: condition.count]
            yield replace(draft, workloads=workloads, method=condition.method, is_baseline=True)
    for workload in dict.fromkeys(draft.workloads):
        yield replace(draft, workloads=[workload], method="naive", is_baseline=True)


def _build_cell(
    study: Study, workloads: dict[str, Workload], sources: dict[str, str], draft: _Draft
) -> Cell:
    group = draft.group
    is_mix = isinstance(group, Mix) and not draft.is_baseline
    all_cores = isinstance(group, Ladder) and group.cores == "all" and not draft.is_baseline
    if draft.is_baseline:
        measure = study.measure.model_dump() | {"kind": "window"}
    else:
        measure = study.measure_of(group).model_dump()
    kind = measure["kind"]
    if kind == INTERLEAVED:
        conditions = list_conditions(draft.method, draft.workloads)
    else:
        conditions = [Condition("", draft.method)]

    def build_member(workload: str, number: int) -> MemberSpec:
        method = conditions[number].method
        job = workloads[workload]
        if group.input:
            job_input = job.input.model_copy(update={"mode": group.input})
            job = job.model_copy(update={"input": job_input})
        limits = study.variants.get(method) or METHOD_BOUNDS[method].limits
        return MemberSpec(
            workload=workload,
            job=job,
            cores_of=None if all_cores else study.cores_for_workload.get(workload, study.cores_for),
            source=sources.get(workload),
            work=group.work.get(workload) if is_mix else None,
            slice=group.slices[workload] if is_mix and is_mig(method) else None,
            condition=number if kind == INTERLEAVED else None,
            **(limits.of_member(workload, len(draft.workloads)) if limits else {}),
        )

    members = tuple(
        build_member(workload, number)
        for number, set_workloads in _sets_to_load(conditions, draft.workloads)
        for workload in set_workloads
    )
    if kind == "departure":
        measure["leaving_member"] = len(members) - 1
        if is_mix and group.leaving_workload:
            measure["leaving_member"] = draft.workloads.index(group.leaving_workload)
    if IMPLEMENTATIONS[draft.implementation]["cuda_graph"] and _has_one_context(
        conditions, members
    ):
        measure["second_context"] = True
    used_datasets = {member.job.dataset for member in members}
    spec = CellSpec(
        members=members,
        implementation=ImplementationSpec(**IMPLEMENTATIONS[draft.implementation]),
        method=draft.method,
        measure=MeasureSpec(**measure),
        seed=study.seed,
        datasets={name: sizes for name, sizes in study.datasets.items() if name in used_datasets},
    )
    scenario = scenario_id(
        Counter(draft.workloads),
        "" if kind == "window" else kind,
        _input_variant(members[0]),
        "allcores" if all_cores else "",
    )
    return Cell(scenario, draft.implementation, draft.method, draft.replicate, spec)


def _sets_to_load(
    conditions: list[Condition], workloads: list[str]
) -> Iterator[tuple[int, list[str]]]:
    """The conditions that load members of their own, by number, with these members' workloads.

    Larger sets come first: a part such as `4xmps` uses the members of a larger set of its method.
    """
    sizes = [condition.count or len(workloads) + 1 for condition in conditions]
    loaded_methods: set[str] = set()
    for number in sorted(range(len(conditions)), key=lambda number: -sizes[number]):
        condition = conditions[number]
        if condition.alone_workload:
            yield number, [condition.alone_workload]
        elif not condition.count or condition.method not in loaded_methods:
            loaded_methods.add(condition.method)
            yield number, workloads[: condition.count]


def _has_one_context(conditions: list[Condition], members: tuple[MemberSpec, ...]) -> bool:
    """Whether the card holds one CUDA context: of one process, or of the MPS server."""
    families = {family_of(condition.method) for condition in conditions}
    return len(members) == 1 or families == {STREAMS} or not families & {*WITHOUT_MPS}


def _input_variant(member: MemberSpec) -> str:
    """The variant in the scenario's name that the member's input makes."""
    mode = member.job.input.mode
    return mode if mode in ALONE_VARIANTS else ""


def _hash(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
