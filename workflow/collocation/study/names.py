"""Names: of implementations, methods, scenarios, cells and the conditions of interleaved ones;
built and read here.

A scenario is named by its jobs and by how it differs from the default, `2x_a+1x_b--files`; a cell
by scenario, implementation, method and replicate.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

# How well a job is written, in the order of figures and tables; docs/methods.md says each in words.
# The first is written as the paper's jobs. A graph's replay has no thread for its backward pass.
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

# Order in figures and tables; `serial` is computed and never run.
METHODS = ("serial", "naive", "mps", "mps_equal", "mps_overlap", "streams")
METHODS += ("mig", "mig_7g", "mig_4g", "mig_3g", "mig_2g", "mig_1g", "mig_1g2x", "mig_shared")

# Variants of an alone cell that other cells are normalised by, each within its own input.
SHARED = "shared"  # input of jobs that one loader feeds
ALONE_VARIANTS = ("", "files", SHARED)
# Members with fixed work, until the last is done: tries the rule of the table of the pair.
COMPLETION = "completion"
# Sets that take turns in one cell, its conditions: `alone` (of a mix `alone:<workload>`) or a
# method.
INTERLEAVED, ALONE, SEPARATOR = "interleaved", "alone", "-"
STREAMS = "streams"
WITHOUT_MPS = (ALONE, "naive", STREAMS)  # conditions whose members are no clients of MPS
# The windows of a cell that a member leaves: of all, and of those that have what it left.
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Scenario:
    """`2x_a+1x_b--files`: parts (("a", 2), ("b", 1)), variant "files" (default: "")."""

    id: str
    parts: tuple[tuple[str, int], ...]
    variant: str

    @property
    def n(self) -> int:
        """Members that share the GPU."""
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
    """Read a scenario id. Raises ValueError with the offending part."""
    body, *suffixes = scenario.split("--")
    matches = [re.fullmatch(r"(\d+)x_(.+)", part) for part in body.split("+")]
    if None in matches:
        raise ValueError(f"scenario {scenario!r}: a part is not <count>x_<workload>")
    parts = tuple((match[2], int(match[1])) for match in matches)
    return Scenario(scenario, parts, ", ".join(suffixes))


def scenario_id(parts: Mapping[str, int], *variants: str) -> str:
    """`2x_a+1x_b--files` from workload → count, in the order given; empty variants are left out."""
    body = "+".join(f"{count}x_{name}" for name, count in parts.items())
    return "--".join([body, *filter(None, variants)])


def cell_id(scenario: str, implementation: str, method: str, replicate: int) -> str:
    return f"{scenario}/{implementation}/{method}/r{replicate}"


@dataclass(frozen=True)
class Condition:
    """A set that takes turns with others in one cell, and the scenario that it is.

    name: as records have it. job: of one that is alone. again: another side is the same set.
    jobs: how many of the set's one workload, where it is not all of them.
    """

    scenario: str
    method: str
    again: bool = False
    name: str = ""
    job: str | None = None
    jobs: int | None = None


def list_conditions(method: str, workloads: Iterable[str]) -> list[Condition]:
    """The conditions of a cell with these workloads, by its method's name, `alone-naive-mps`.

    A name that comes again gets a number: `naive`, `naive_2`. `4xmps` is the first four of the
    members that `mps` in the same cell has, or the next larger of its kind, such as `7xmps`.
    """
    jobs, found, times = list(dict.fromkeys(workloads)), [], Counter()
    for word in method.split(SEPARATOR):
        count, word = split_count(word)
        if count:
            name = f"{count}x{word}"
            found.append(Condition("", word, name=name, jobs=count))
            continue
        for job in jobs if word == ALONE else [None]:
            name = f"{word}:{job}" if job and jobs[1:] else word
            times[name] += 1
            numbered = name if times[name] == 1 else f"{name}_{times[name]}"
            found.append(Condition("", "naive" if word == ALONE else word, name=numbered, job=job))
    return found


def split_count(word: str) -> tuple[int | None, str]:
    """`4xmps` → (4, "mps"); `mps` → (None, "mps")."""
    match = re.fullmatch(r"([1-9]\d*)x(\w+)", word)
    return (int(match[1]), match[2]) if match else (None, word)


@lru_cache(maxsize=4096)
def conditions_of(scenario: str, method: str) -> dict[str, Condition]:
    """Name → condition, with its scenario, of a cell `2x_a--interleaved` by `alone-naive-mps`, or
    {}.
    """
    body, *variants = scenario.split("--")
    if INTERLEAVED not in variants:
        return {}
    others = [variant for variant in variants if variant != INTERLEAVED]
    found: dict[str, Condition] = {}
    for condition in list_conditions(method, [name for name, _ in parse_scenario(scenario).parts]):
        set_of = f"1x_{condition.job}" if condition.job else body
        if condition.jobs:
            set_of = f"{condition.jobs}x_{parse_scenario(scenario).parts[0][0]}"
        its = "--".join([set_of, *others])
        again = any((its, condition.method) == (one.scenario, one.method) for one in found.values())
        found[condition.name] = replace(condition, scenario=its, again=again)
    return found


def family_of(method: str) -> str:
    """naive, mps or mig: `mps_<anything>` is a variant of MPS."""
    return method.split("_")[0]


def implementation_order(implementation: str) -> tuple[int, str]:
    """Sort key: the order of IMPLEMENTATIONS."""
    known = [*IMPLEMENTATIONS, implementation]
    return known.index(implementation), implementation


def method_order(method: str) -> tuple[int, str]:
    """Sort key: the order of METHODS, a study's own variants last in their family."""
    if method in METHODS:
        return METHODS.index(method), ""
    own = [place for place, known in enumerate(METHODS) if family_of(known) == family_of(method)]
    return max(own, default=len(METHODS)), method
