"""The grid: a study → its cells, in the order in which they run. Pure functions."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable
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
        return len(self.spec.members)

    @property
    def needs(self) -> set[str]:
        """Ids of the alone cells of the same replicate that this cell is normalised by."""
        if self.spec.measure.kind == INTERLEAVED:  # its jobs alone, if it has some, are in it
            return set()
        alone = {
            scenario_id({member.workload: 1}, _read_by(member)) for member in self.spec.members
        }
        return {cell_id(each, self.implementation, "naive", self.replicate) for each in alone}


def expand(
    study: Study,
    workloads: dict[str, Workload],
    sources: dict[str, str] | None = None,
    full: Collection[str] = (),
) -> list[Cell]:
    """Every cell of the grid, baselines of all workloads included, in the order in which they run.

    sources: digests of the code of workloads whose model is the user's own. full: interleaved cells
    that ran out of memory; their sets get cells of their own as well. Tier by tier, replicates
    (replicates) come one after the other, each with baselines of its own. Within a replicate
    workloads do, a mix with its first: what changes over minutes then weighs less on ratios. Their
    order is random, but by the seed and their names alone, so that a cell that is added moves no
    other.
    """
    cells: dict[str, Cell] = {}
    drafts = sorted(_drafts(study), key=lambda draft: draft.get("baseline", False))
    for draft in drafts:
        cell = _cell(study, workloads, sources or {}, **draft)
        if cell.id in full and cell.spec.measure.kind == INTERLEAVED:
            drafts += _one_by_one(draft)  # which the loop comes to
        known = cells.setdefault(cell.id, cell)
        if not draft.get("baseline") and known.digest != cell.digest:
            raise ConfigError(f"{cell.id}: two entries of the study plan it with other settings")

    def place(cell: Cell) -> tuple:
        first = f"{cell.spec.members[0].workload}/r{cell.replicate}"
        return cell.replicate, _shuffle(study.seed, first), _shuffle(study.seed, cell.id)

    return sorted(cells.values(), key=place)


def merged_cells(cells: Iterable[Cell], attempts: Iterable[str]) -> list[Cell]:
    """Cells of replicates that were merged in, among ids that were tried; as planned here."""
    planned = {cell.id: cell for cell in cells}
    found = []
    for name in attempts:
        kind, _, number = name.rpartition("/r")
        here = planned.get(f"{kind}/r{int(number) % MERGED_OFFSET}")
        if here and int(number) > MERGED_OFFSET and name not in planned:
            found.append(replace(here, replicate=int(number)))
    return found


def _drafts(study: Study) -> Iterable[dict]:
    """Arguments of `_cell`; those of baselines too, for each cell that needs them."""
    longest: dict[int, int] = {}  # tier → its replicates
    for _, group in study.groups():
        replicates = group.replicates or study.replicates
        longest[group.tier] = max(longest.get(group.tier, 0), replicates)
    for _, group in study.groups():
        before = 1 + sum(replicates for tier, replicates in longest.items() if tier < group.tier)
        replicates = range(before, before + (group.replicates or study.replicates))
        turns = study.measure_of(group).kind == INTERLEAVED
        for implementation, replicate in itertools.product(
            group.implementations or study.implementations, replicates
        ):
            for _, members, methods in group.scenarios():
                common = {"group": group, "implementation": implementation, "replicate": replicate}
                names = list(Counter(members).elements())
                for method in [SEPARATOR.join(methods)] if turns else methods:
                    yield {**common, "names": names, "method": method}
                for name in () if turns else members:
                    yield {**common, "names": [name], "method": "naive", "baseline": True}


def _one_by_one(draft: dict) -> Iterable[dict]:
    """Arguments for the sets of an interleaved cell, each in a cell of its own."""
    names = draft["names"]
    alone = [([name], "naive") for name in dict.fromkeys(names)]
    sets = [
        (names[: condition.jobs], condition.method)
        for condition in list_conditions(draft["method"], names)
        if not condition.job
    ]
    for those, method in (*sets, *alone):
        yield {**draft, "names": those, "method": method, "baseline": True}


def _cell(
    study, workloads, sources, group, implementation, replicate, names, method, baseline=False
) -> Cell:
    mix = isinstance(group, Mix) and not baseline
    all_cores = isinstance(group, Ladder) and group.cores == "all" and not baseline
    measure = study.measure.model_dump() | {"kind": "window"}  # of a baseline
    if not baseline:
        measure = study.measure_of(group).model_dump()
    kind = measure["kind"]
    turns = list_conditions(method, names) if kind == INTERLEAVED else [Condition("", method)]

    def member(name: str, condition: Condition, number: int) -> MemberSpec:
        job, limits = (
            workloads[name],
            study.variants.get(condition.method) or METHOD_BOUNDS[condition.method].limits,
        )
        if group.input:
            source = job.input.model_copy(update={"mode": group.input})
            job = job.model_copy(update={"input": source})
        return MemberSpec(
            workload=name,
            job=job,
            cores_of=None if all_cores else study.cores_for_workload.get(name, study.cores_for),
            source=sources.get(name),
            work=group.work.get(name) if mix else None,
            slice=group.slices[name] if mix and is_mig(condition.method) else None,
            condition=number if kind == INTERLEAVED else None,
            **(limits.of(name, len(names)) if limits else {}),
        )

    loaded: set[str] = set()  # methods of which members are loaded: of smaller sets, the first ones
    members = []
    for number, condition in sorted(
        enumerate(turns), key=lambda turn: -(turn[1].jobs or len(names) + 1)
    ):
        if condition.jobs and condition.method in loaded:
            continue
        those = [condition.job] if condition.job else names[: condition.jobs]
        members += [member(name, condition, number) for name in those]
        loaded |= {condition.method} if not condition.job else set()
    members = tuple(members)
    if kind == "departure":
        leaves = group.leaving_workload if mix else None
        measure["leaving_member"] = names.index(leaves) if leaves else len(names) - 1
    # The only context on the card: of one process, or of the server of all clients. Separate ones
    # are second contexts to each other.
    families = {family_of(condition.method) for condition in turns}
    alone = len(members) == 1 or families == {STREAMS} or not families & {*WITHOUT_MPS}
    if IMPLEMENTATIONS[implementation]["cuda_graph"] and alone:
        measure["second_context"] = True
    trained = {member.job.dataset for member in members}
    spec = CellSpec(
        members=members,
        implementation=ImplementationSpec(**IMPLEMENTATIONS[implementation]),
        method=method,
        measure=MeasureSpec(**measure),
        seed=study.seed,
        datasets={name: sizes for name, sizes in study.datasets.items() if name in trained},
    )
    scenario = scenario_id(
        Counter(names),
        "" if kind == "window" else kind,
        _read_by(members[0]),
        "allcores" if all_cores else "",
    )
    return Cell(scenario, implementation, method, replicate, spec)


def _read_by(member: MemberSpec) -> str:
    """The variant that its input is."""
    mode = member.job.input.mode
    return mode if mode in ALONE_VARIANTS else ""


def _shuffle(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
