"""What each verdict and each figure still costs: cells to measure, and minutes on one GPU.

config/claims.yaml says which sets each claim compares. The tests hold them, and the figures' below,
against the cells that the analysis has its numbers from.
"""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from analysis.rules import Need, Test, read
from workflow.collocation import ROOT
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.names import ARMS, sides

CLAIMS = ROOT / "config" / "claims.yaml"
PAPER = next(iter(ARMS))
WAYS = ("naive", "mps", "mig")
ROW = "{:9.1f}  {:5}  {}"


class Set(NamedTuple):
    """What a number is of. jobs: workload → count, as items."""

    jobs: frozenset[tuple[str, int]]
    variant: str
    arm: str
    method: str

    @property
    def alike(self) -> bool:
        return len(self.jobs) == 1 and not self.variant and self.method != "naive_again"


# Each figure draws all sets of a kind.
FIGURES = {
    "all sets of one job": (lambda each: each.alike, ["where_to_share"]),
    "all sets of one job by naive, mps and mig": (
        lambda each: each.alike and each.method in WAYS,
        ["rate_against_n"],
    ),
    "the paper's sets of one job by naive, mps and mig": (
        lambda each: each.alike and each.method in WAYS and each.arm == PAPER,
        ["gain_against_slowdown", "epoch_time", "gaps_and_overlap", "activity"]
        + ["reported_against_measured", "memory", "repeatability", "mps_against_host"],
    ),
    "all mixes and departures": (
        lambda each: len(each.jobs) > 1 and each.variant in ("", "departure"),
        ["mixes_and_departures"],
    ),
}


def _cells(rule: Need | Test, by_set: Mapping[Set, set[str]]) -> list[set[str]]:
    """Of each set that it names, the cells; a rule that names none takes what there is."""
    if isinstance(rule, Need):
        jobs, methods, mixes = [], [rule.method], [rule.mix or {rule.job: 1}]
    else:
        jobs, methods = rule.jobs, [*rule.methods]
        mixes = [{job: count} for job in jobs for count in rule.counts] or [rule.mix]
    if not any(mixes):
        return [set().union(*(cells for each, cells in by_set.items() if each.method in methods))]
    over = rule.quantity.rpartition("_over_")[2]  # rate_over_naive, stp_over_3
    if over in WAYS:
        methods.append(over)
    if over.isdecimal():
        mixes += [{job: int(over)} for job in jobs]
    found = [
        Set(frozenset(mix.items()), rule.variant, rule.arm, method)
        for mix in mixes
        for method in methods
    ]
    if rule.quantity == "parts_over_capacity" or jobs and rule.where:
        found += [Set(frozenset({(job, 1)}), "", rule.arm, "naive") for job in jobs]
    return [by_set.get(each, set()) for each in found]


def provided(cells: Iterable[Cell]) -> dict[Set, set[str]]:
    """Set → ids of the cells that measure it."""
    found = defaultdict(set)
    for cell in cells:
        variants = cell.scenario.split("--")[1:]
        names = [member.workload for member in cell.spec.members]
        turns = [(cell.method, names)]
        if cell.spec.measure.kind == "alternate":
            variants.remove("alternate")
            turns = [
                (side.method, [m.workload for m in cell.spec.members if m.side == number])
                for number, side in enumerate(sides(cell.method, names))
            ]
        for method, jobs in turns:
            of = Set(frozenset(Counter(jobs).items()), ", ".join(variants), cell.arm, method)
            found[of].add(cell.id)
    return found


def of_claims(by_set: Mapping[Set, set[str]]) -> dict[str, list[set[str]]]:
    """Claim → of each set that it needs, the cells; empty where the study does not measure it."""
    return {
        claim.id: [cells for rule in (*claim.needs, *claim.tests) for cells in _cells(rule, by_set)]
        for claim in read(CLAIMS).claims
    }


def of_figures(by_set: Mapping[Set, set[str]]) -> dict[str, set[str]]:
    """Kind of sets → the cells of the figures that draw all of them."""
    return {
        kind: set().union(*(cells for each, cells in by_set.items() if drawn(each)))
        for kind, (drawn, _) in FIGURES.items()
    }


def lines(cells: list[Cell], seconds: Mapping[str, float], impossible: set[str]) -> list[str]:
    """A table, cheapest first, or nothing if nothing is to run.

    seconds: of each cell that is still to run. impossible: ids of cells that will have no numbers.
    """
    by_set, needs = provided(cells), {cell.id: cell.needs for cell in cells}

    def to_run(needed: set[str]) -> frozenset[str]:
        return frozenset(needed.union(*(needs[cell] for cell in needed)) & seconds.keys())

    rows: dict[frozenset[str], list[str]] = defaultdict(list)
    rest: dict[str, list[str]] = defaultdict(list)
    for claim, needed in of_claims(by_set).items():
        run = to_run(set().union(*needed))
        if not all(needed):
            rest["with sets that are not in this study"].append(claim)
        elif any(its <= impossible for its in needed):
            rest["with sets that will have no numbers here"].append(claim)
        elif not run:
            rest["nothing more to measure"].append(claim)
        else:
            rows[run].append(claim)
    for kind, needed in of_figures(by_set).items():
        if run := to_run(needed):
            rows[run].append(f"{', '.join(FIGURES[kind][1])} ({kind})")
    if not rows:
        return []
    told = [
        "",
        "minutes of one GPU, and cells, that each claim and figure still needs:",
    ]
    cost = {run: sum(map(seconds.get, run)) / 60 for run in rows}
    for run in sorted(rows, key=cost.get):
        row = ROW.format(cost[run], len(run), ", ".join(rows[run]))
        told += textwrap.wrap(row, 100, subsequent_indent=" " * 18, drop_whitespace=True)
    for why, claims in rest.items():
        told += textwrap.wrap(f"  {why}: {', '.join(claims)}", 100, subsequent_indent="    ")
    told.append("  claims by these names: config/claims.yaml")
    return told
