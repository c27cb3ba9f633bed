"""The grid: a study → its cells, in the order in which they run. Pure functions."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from workflow.collocation.spec.cell import ArmSpec, CellSpec, MeasureSpec, MemberSpec
from workflow.collocation.spec.errors import ConfigError
from workflow.collocation.spec.methods import divides
from workflow.collocation.spec.names import ALTERNATE, ARMS, JOIN, cell_id, scenario_id, sides
from workflow.collocation.spec.study import Ladder, Mix, Study
from workflow.collocation.spec.workloads import Workload

ELSEWHERE = 1000  # block 2 of another folder that was merged in (`make merge`) is 1002, or 2002, …


@dataclass(frozen=True)
class Cell:
    """One Snakemake job: a scenario under a method, in one arm, in one block."""

    scenario: str
    arm: str
    method: str
    replicate: int
    spec: CellSpec

    @property
    def id(self) -> str:
        return cell_id(self.scenario, self.arm, self.method, self.replicate)

    @cached_property
    def digest(self) -> str:
        return self.spec.digest

    @property
    def n(self) -> int:
        return len(self.spec.members)

    @property
    def needs(self) -> set[str]:
        """Ids of the alone cells of the same block that this cell is normalised by."""
        if self.spec.measure.kind == ALTERNATE:  # its jobs alone, if it has some, are in it
            return set()
        return {
            cell_id(
                baseline_scenario(member.workload, member.job.input.mode == "files"),
                *(self.arm, "naive", self.replicate),
            )
            for member in self.spec.members
        }


def baseline_scenario(workload: str, files: bool) -> str:
    return scenario_id({workload: 1}, "files" if files else "")


def expand(
    study: Study,
    workloads: dict[str, Workload],
    sources: dict[str, str] | None = None,
    full: Collection[str] = (),
) -> list[Cell]:
    """Every cell of the grid, baselines of all workloads included, in the order in which they run.

    sources: digests of the code of workloads whose model is the user's own. full: alternating cells
    that ran out of memory; their sets get cells of their own as well. Tier by tier, blocks
    (replicates) come one after the other, and are counted through all tiers, so that each has
    baselines of its own. Within a block workloads come one after the other, a mix with its first:
    what changes over minutes, such as the load of a shared host, then weighs less on ratios. The
    order of workloads and that of their cells is random, but a function of the seed and of their
    names alone, so that a cell that is added moves no other.
    """
    cells: dict[str, Cell] = {}
    drafts = sorted(_drafts(study), key=lambda draft: draft.get("baseline", False))
    for draft in drafts:
        cell = _cell(study, workloads, sources or {}, **draft)
        if cell.id in full and cell.spec.measure.kind == ALTERNATE:
            drafts += _one_by_one(draft)  # which the loop comes to
        known = cells.setdefault(cell.id, cell)
        if known is not cell and not draft.get("baseline") and known.digest != cell.digest:
            raise ConfigError(
                f"{cell.id}: two entries of the study plan this cell with different settings; "
                "allowed: one"
            )

    def place(cell: Cell) -> tuple:
        first = f"{cell.spec.members[0].workload}/r{cell.replicate}"
        return cell.replicate, _shuffle(study.seed, first), _shuffle(study.seed, cell.id)

    return sorted(cells.values(), key=place)


def elsewhere(cells: Iterable[Cell], attempts: Iterable[str]) -> list[Cell]:
    """The cells of blocks that were merged in, among cell ids that were tried; as planned here."""
    planned = {cell.id: cell for cell in cells}
    found = []
    for name in attempts:
        kind, _, number = name.rpartition("/r")
        block = int(number) if number.isdecimal() else 0
        here = planned.get(f"{kind}/r{block % ELSEWHERE}")
        if here and block > ELSEWHERE and name not in planned:
            found.append(replace(here, replicate=block))
    return found


def _drafts(study: Study) -> Iterable[dict]:
    """Arguments of `_cell`; those of baselines too, for each cell that needs them."""
    longest: dict[int, int] = {}  # tier → its blocks
    for _, group in study.groups():
        blocks = group.replicates or study.replicates
        longest[group.tier] = max(longest.get(group.tier, 0), blocks)
    for _, group in study.groups():
        before = sum(blocks for tier, blocks in longest.items() if tier < group.tier)
        blocks = range(before + 1, before + 1 + (group.replicates or study.replicates))
        for arm, replicate in itertools.product(group.arms or study.arms, blocks):
            common = {"group": group, "arm": arm, "replicate": replicate}
            for _, members, methods in group.scenarios():
                names = list(Counter(members).elements())
                if study.kind(group) == ALTERNATE:
                    yield {**common, "names": names, "method": JOIN.join(methods)}
                    continue
                for method in methods:
                    yield {**common, "names": names, "method": method}
                for name in dict.fromkeys(names):
                    yield {**common, "names": [name], "method": "naive", "baseline": True}


def _one_by_one(draft: dict) -> Iterable[dict]:
    """Arguments for the sets of an alternating cell, each in a cell of its own."""
    names = draft["names"]
    alone = [([name], "naive") for name in dict.fromkeys(names)]
    sets = [(names, side.method) for side in sides(draft["method"], names) if not side.job]
    for those, method in (*sets, *alone):
        yield {**draft, "names": those, "method": method, "baseline": True}


def _cell(study, workloads, sources, group, arm, replicate, names, method, baseline=False) -> Cell:
    mix = isinstance(group, Mix) and not baseline
    all_cores = isinstance(group, Ladder) and group.cores == "all" and not baseline
    measure = _measure(study, group, names, baseline)

    def member(name: str, method: str, count: int, side: int | None = None) -> MemberSpec:
        job = workloads[name]
        if group.input:
            source = job.input.model_copy(update={"mode": group.input})
            job = job.model_copy(update={"input": source})
        return MemberSpec(
            workload=name,
            job=job,
            cores_of=None if all_cores else study.cores_of(name),
            source=sources.get(name),
            work=group.work.get(name) if mix else None,
            slice=group.slices[name] if mix and divides(method) else None,
            side=side,
            **study.limits(method, name, count),
        )

    if measure.kind == ALTERNATE:
        members = tuple(
            member(name, side.method, len(names), number)
            for number, side in enumerate(sides(method, names))
            for name in ([side.job] if side.job else names)
        )
    else:
        members = tuple(member(name, method, len(names)) for name in names)
    trained = {member.job.dataset for member in members}
    spec = CellSpec(
        members=members,
        arm=ArmSpec(**ARMS[arm]),
        method=method,
        measure=measure,
        seed=study.seed,
        datasets={name: sizes for name, sizes in study.datasets.items() if name in trained},
    )
    if spec.arm.cuda_graph and spec.contexts == 1:
        spec = spec.with_measure(visit=True)  # plain processes visit each other
    scenario = scenario_id(
        Counter(names),
        "" if measure.kind == "window" else measure.kind,
        "files" if members[0].job.input.mode == "files" else "",
        "allcores" if all_cores else "",
    )
    return Cell(scenario, arm, method, replicate, spec)


def _measure(study, group, names, baseline) -> MeasureSpec:
    """How a cell of the group is measured; a baseline as the study has it, for a window."""
    settings = study.measure.model_dump()
    if baseline:
        settings |= {"kind": "window"}
    else:
        settings |= group.measure.model_dump(exclude_unset=True)
    departs = None
    if settings["kind"] == "departure":
        leaves = isinstance(group, Mix) and group.departs
        departs = names.index(leaves) if leaves else len(names) - 1
    return MeasureSpec(**settings, departs=departs)


def _shuffle(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()
