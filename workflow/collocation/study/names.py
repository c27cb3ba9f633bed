"""Builds and parses the names of implementations, methods, scenarios, cells and conditions.

A scenario is named after its jobs and its difference from the default: `2x_a+1x_b--files`. A cell
is named after its scenario, implementation, method and replicate.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

# How well a job is written, in the order of figures and tables; docs/methods.md explains each.
# The first is written like the paper's jobs. `backward` has no meaning where a graph is replayed.
_EAGER = {"precision": "tf32", "channels_last": False, "sync": False, "cuda_graph": False}
_BF16 = {**_EAGER, "precision": "bf16", "channels_last": True}
IMPLEMENTATIONS = {
    "paper_step": {**_EAGER, "sync": True},
    "eager": {**_EAGER, "backward": "caller"},
    "bf16": {**_BF16, "backward": "caller"},
    "graph": {**_BF16, "cuda_graph": True},
    "compile": {**_BF16, "cuda_graph": True, "compile": True},
}
PAPER_IMPLEMENTATION = next(iter(IMPLEMENTATIONS))

# In the order of figures and tables. `serial` is computed and never run.
METHODS = ("serial", "naive", "mps", "mps_equal", "mps_overlap", "streams")
METHODS += ("mig", "mig_7g", "mig_4g", "mig_3g", "mig_2g", "mig_1g", "mig_1g2x", "mig_shared")

SHARED = "shared"  # the input of jobs that one loader feeds
# Variants of the cell with one job that other cells of the same input are normalised by.
ALONE_VARIANTS = ("", "files", SHARED)
# Members do a fixed amount of work each, and the cell ends when the last is done.
COMPLETION = "completion"
# Several sets take turns in one cell. Each is a condition: a method, or `alone` for one job, which
# is `alone:<workload>` in a mix.
INTERLEAVED, ALONE, SEPARATOR = "interleaved", "alone", "-"
STREAMS = "streams"
WITHOUT_MPS = (ALONE, "naive", STREAMS)  # conditions whose members are no clients of MPS
# The windows of a departure: with all members, and with those that stay.
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Scenario:
    """The jobs that share the GPU: `2x_a+1x_b--files` is (("a", 2), ("b", 1)) of variant "files".

    variant: "" by default.
    """

    id: str
    parts: tuple[tuple[str, int], ...]
    variant: str

    @property
    def n(self) -> int:
        """Number of jobs."""
        return sum(count for _, count in self.parts)

    @property
    def mixed(self) -> bool:
        return len(self.parts) > 1

    @property
    def family(self) -> str:
        """Its distinct workloads, whatever the counts."""
        return "+".join(sorted(name for name, _ in self.parts))


@lru_cache(maxsize=4096)
def parse_scenario(scenario: str) -> Scenario:
    """Parse a scenario id. Raises ValueError for an invalid one."""
    body, *suffixes = scenario.split("--")
    matches = [re.fullmatch(r"(\d+)x_(.+)", part) for part in body.split("+")]
    if None in matches:
        raise ValueError(f"scenario {scenario!r}: a part is not <count>x_<workload>")
    parts = tuple((match[2], int(match[1])) for match in matches)
    return Scenario(scenario, parts, ", ".join(suffixes))


def scenario_id(parts: Mapping[str, int], *variants: str) -> str:
    """`2x_a+1x_b--files` from workload → count, in that order; empty variants are left out."""
    body = "+".join(f"{count}x_{name}" for name, count in parts.items())
    return "--".join([body, *filter(None, variants)])


def cell_id(scenario: str, implementation: str, method: str, replicate: int) -> str:
    return f"{scenario}/{implementation}/{method}/r{replicate}"


@dataclass(frozen=True)
class Condition:
    """One of the sets that take turns in an interleaved cell.

    scenario: of the set. name: as in records. is_repeat: an earlier condition is the same set.
    alone_workload: the job, where it is one job alone. count: the number of members, where it is
    not all of them.
    """

    scenario: str
    method: str
    is_repeat: bool = False
    name: str = ""
    alone_workload: str | None = None
    count: int | None = None


def list_conditions(method: str, workloads: Iterable[str]) -> list[Condition]:
    """The conditions of an interleaved cell, from its method, such as `alone-naive-mps`.

    A repeated name gets a number: `naive`, `naive_2`. `4xmps` is the first four members of `mps` in
    the same cell, or of the next larger part, such as `7xmps`. Their `scenario` is empty.
    """
    distinct_workloads = list(dict.fromkeys(workloads))
    conditions: list[Condition] = []
    occurrences = Counter()
    for word in method.split(SEPARATOR):
        count, part_method = split_count(word)
        if count:
            conditions.append(Condition("", part_method, name=word, count=count))
            continue
        for workload in distinct_workloads if word == ALONE else [None]:
            name = f"{word}:{workload}" if workload and len(distinct_workloads) > 1 else word
            occurrences[name] += 1
            if occurrences[name] > 1:
                name = f"{name}_{occurrences[name]}"
            one_method = "naive" if word == ALONE else word
            conditions.append(Condition("", one_method, name=name, alone_workload=workload))
    return conditions


def split_count(word: str) -> tuple[int | None, str]:
    """`4xmps` → (4, "mps"); `mps` → (None, "mps")."""
    match = re.fullmatch(r"([1-9]\d*)x(\w+)", word)
    return (int(match[1]), match[2]) if match else (None, word)


@lru_cache(maxsize=4096)
def conditions_of(scenario: str, method: str) -> dict[str, Condition]:
    """Condition name → condition with its scenario; empty unless the cell is interleaved.

    scenario, method: such as `2x_a--interleaved` and `alone-naive-mps`.
    """
    body, *variants = scenario.split("--")
    if INTERLEAVED not in variants:
        return {}
    other_variants = [variant for variant in variants if variant != INTERLEAVED]
    workloads = [name for name, _ in parse_scenario(scenario).parts]
    conditions: dict[str, Condition] = {}
    seen: set[tuple[str, str]] = set()
    for condition in list_conditions(method, workloads):
        jobs = body
        if condition.alone_workload:
            jobs = f"1x_{condition.alone_workload}"
        elif condition.count:
            jobs = f"{condition.count}x_{workloads[0]}"
        set_id = "--".join([jobs, *other_variants])
        is_repeat = (set_id, condition.method) in seen
        seen.add((set_id, condition.method))
        conditions[condition.name] = replace(condition, scenario=set_id, is_repeat=is_repeat)
    return conditions


def family_of(method: str) -> str:
    """The family of a method, such as naive, mps or mig: `mps_<anything>` is a variant of MPS."""
    return method.split("_")[0]


def implementation_order(implementation: str) -> tuple[int, str]:
    """Sort key: the order of IMPLEMENTATIONS, unknown ones last."""
    names = [*IMPLEMENTATIONS, implementation]
    return names.index(implementation), implementation


def method_order(method: str) -> tuple[int, str]:
    """Sort key: the order of METHODS, a study's variants last in their family."""
    if method in METHODS:
        return METHODS.index(method), ""
    family = family_of(method)
    positions = [i for i, other in enumerate(METHODS) if family_of(other) == family]
    return max(positions, default=len(METHODS)), method
