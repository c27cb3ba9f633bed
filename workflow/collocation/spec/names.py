"""What a scenario's id says: who shares the GPU, and how the cell departs from the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

# Order in figures and tables; the first is written as the paper's jobs.
ARMS = ("paper_step", "paper_default", "eager", "bf16", "bf16_autograd", "graph", "compile")
PAPER_ARM = ARMS[0]
# What choosing kernels changes, and what autograd's thread costs: ways that only a control needs.
CONTROL_ARMS = ("paper_default", "bf16_autograd")
# naive under another name: held against naive, and drawn nowhere.
TWIN = "naive_again"

# Order in figures and tables.
METHODS = ("serial", "naive", TWIN, "mps", "mps_equal", "mps_overlap")
METHODS += ("mig", "mig_7g", "mig_4g", "mig_3g", "mig_2g", "mig_1g")
METHODS += ("mig_1g2x", "mig_shared", "mig_mps")

# Variants of an alone cell that other cells are normalised by, each within its own input.
ALONE_VARIANTS = ("", "files")

# A cell beside which the machine's other GPUs rested.
OTHERS_IDLE = "othersidle"
# What a session begins with: holds sessions against each other, and is no part of the grid.
ANCHOR = "anchor"
# Members with fixed work, until the last is done: tries the rule of the table of the pair.
COMPLETION = "completion"
# Sets that take turns in one cell, its sides: `alone` (of a mix `alone:<workload>`) or a method.
ALTERNATE, ALONE = "alternate", "alone"
# The windows of a cell that a member leaves: of all, and of those that have what it left.
BEFORE, AFTER = "before", "after"

# What a formula begins with in a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", *"＝＋－＠")  # in wide letters, too

_PART = re.compile(r"(\d+)x_(.+)")


@dataclass(frozen=True)
class Scenario:
    """`2x_a+1x_b--files`: parts (("a", 2), ("b", 1)), variant "files" ("" is the default)."""

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
    parts = []
    for part in body.split("+"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"scenario {scenario!r}: {part!r} is not <count>x_<workload>")
        parts.append((match[2], int(match[1])))
    return Scenario(scenario, tuple(parts), ", ".join(suffixes))


def scenario_id(parts: Mapping[str, int], variant: str = "") -> str:
    """`2x_a+1x_b--files` from workload → count, in the order given."""
    body = "+".join(f"{count}x_{name}" for name, count in parts.items())
    return f"{body}--{variant}" if variant else body


@dataclass(frozen=True)
class Side:
    """The set that a side of an alternating cell is; again: another side is the same set."""

    scenario: str
    method: str
    again: bool = False


@lru_cache(maxsize=4096)
def sides_of(scenario: str, method: str) -> dict[str, Side]:
    """Sides of `2x_a--alternate` by `alone-naive-mps`: name → set; {} of any other cell.

    A name that comes again gets a number: `naive`, `naive_2`.
    """
    body, *variants = scenario.split("--")
    if ALTERNATE not in variants:
        return {}
    end = "".join(f"--{variant}" for variant in variants if variant != ALTERNATE)
    parts = [name for name, _ in parse_scenario(scenario).parts]
    wanted: list[tuple[str, str, str]] = []
    for name in method.split("-"):
        if name == ALONE:
            names = [f"{ALONE}:{part}" for part in parts] if len(parts) > 1 else [ALONE]
            jobs = (f"1x_{part}{end}" for part in parts)
            wanted += [(own, job, "naive") for own, job in zip(names, jobs, strict=True)]
        else:
            wanted.append((name, body + end, name))
    sides: dict[str, Side] = {}
    for at, (name, *of) in enumerate(wanted):
        before = [earlier for earlier, *_ in wanted[:at]]
        number = f"_{before.count(name) + 1}" if name in before else ""
        again = any(of == other for _, *other in wanted[:at])
        sides[name + number] = Side(*of, again)
    return sides


def family_of(method: str) -> str:
    """naive, mps or mig: `mps_<anything>` is a variant of MPS."""
    return method.split("_")[0]


def arm_order(arm: str) -> tuple[int, str]:
    """Sort key: the order of ARMS."""
    return ARMS.index(arm) if arm in ARMS else len(ARMS), arm


def method_order(method: str) -> tuple[int, str]:
    """Sort key: the order of METHODS, a study's own variants last in their family."""
    if method in METHODS:
        return METHODS.index(method), ""
    own = [place for place, known in enumerate(METHODS) if family_of(known) == family_of(method)]
    return (own[-1] if own else len(METHODS)), method


def no_formula(text: str) -> str:
    """The text of a cell of a CSV, so that no spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in FORMULA else text
