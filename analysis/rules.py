"""What config/claims.yaml may say, and how hosts, cells and tests make a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    model_validator,
)

from analysis.estimates import INTERVAL, Row
from analysis.quantities import QUANTITIES
from analysis.reported import SOURCES
from workflow.collocation.spec.names import AFTER, BEFORE, COMPLETION, METHODS, PAPER_IMPLEMENTATION

Method = Literal[METHODS[1:]]  # `serial` is computed, never run
Count = Annotated[StrictInt, Field(ge=1)]


class Side(StrEnum):
    """Where one host's number lies: an interval can decide a test, a single point cannot."""

    SUPPORTS = "supports"
    AGAINST = "speaks against"
    RIGHT = "one replicate, on the claim's side"
    WRONG = "one replicate, on the other side"
    LEANS = "interval includes the bound, its middle on the claim's side"
    LEANS_AWAY = "interval includes the bound, its middle on the other side"


class Verdict(StrEnum):
    """Of a cell, a test, a claim."""

    HOLDS = "holds"
    DEPENDS = "depends on the host"
    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not comparable"
    NOT_TESTABLE = "not testable"
    IMPRECISE = "too imprecise"


def over_hosts(sides: Sequence[Side]) -> Verdict:
    """Of one cell: intervals decide, and any host on the other side keeps them from it."""
    if Side.SUPPORTS in sides and Side.AGAINST in sides:
        return Verdict.DEPENDS
    if Side.SUPPORTS in sides and not {Side.WRONG, Side.LEANS_AWAY} & set(sides):
        return Verdict.HOLDS
    if Side.AGAINST in sides and not {Side.RIGHT, Side.LEANS} & set(sides):
        return Verdict.CONTRADICTED
    return Verdict.IMPRECISE


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Of parts that must all hold: the first of these verdicts that one of them has."""
    worst = (Verdict.CONTRADICTED, Verdict.NOT_TESTABLE, Verdict.NOT_COMPARABLE)
    worst += (Verdict.DEPENDS, Verdict.IMPRECISE)
    return next((verdict for verdict in worst if verdict in parts), Verdict.HOLDS)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bounds(_Strict):
    """A quantity and where it must lie. Of `where`: jobs alone."""

    quantity: Literal[tuple(QUANTITIES)]
    above: float | None = None
    below: float | None = None
    at_least: float | None = None

    def admits(self, value: float) -> bool:
        """True if a value lies on the right side of each bound."""
        return (
            (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.at_least is None or value >= self.at_least)
        )

    @property
    def rule(self) -> str:
        """The bounds in words."""
        given = (("above", self.above), ("below", self.below), ("at least", self.at_least))
        return " and ".join(f"{word} {bound:g}" for word, bound in given if bound is not None)


class _Place(Bounds):
    """What needs and tests share."""

    mix: dict[str, Count] = {}
    job: str = ""
    implementation: str = PAPER_IMPLEMENTATION
    variant: Literal["", "departure", COMPLETION, "files"] = ""
    window: Literal["", BEFORE, AFTER, COMPLETION] = ""


class Need(_Place):
    """A reading without which our cells are not comparable: of a job alone, or of a mix."""

    method: Method = "naive"

    @model_validator(mode="after")
    def _complete(self):
        if not (self.mix or self.job) or not self.rule:
            raise ValueError("give job or mix, and above, below or at_least")
        return self


class Test(_Place):
    """One quantity of some cells against one bound."""

    __test__ = False  # no test of pytest's
    methods: list[Method] = Field(min_length=1)
    jobs: list[str] = []
    counts: list[Count] = []
    where: Bounds | None = None
    within: tuple[float, float] | None = None
    fits: Literal[True] | None = None

    @model_validator(mode="after")
    def _complete(self):
        bounds = (self.above, self.below, self.within, self.fits)
        if sum(bound is not None for bound in bounds) != 1 or self.at_least is not None:
            raise ValueError("give one of above, below, within, fits")
        sets = bool(self.jobs) + bool(self.mix)  # memory may be tested of all sets
        if bool(self.jobs) != bool(self.counts) or sets not in (1, 1 - bool(self.fits)):
            raise ValueError("give jobs with counts, or a mix")
        return self

    @property
    def rule(self) -> str:
        if self.fits:
            return "completes exactly where memory suffices"
        return "between {:g} and {:g}".format(*self.within) if self.within else super().rule

    def side(self, e: Row) -> Side:
        """Where the number of one host lies."""
        low, high = (e.low, e.high) if e.spread == INTERVAL else (e.value, e.value)
        least = -inf if self.above is None else self.above
        most = inf if self.below is None else self.below
        least, most = self.within or (least, most)
        inside, outside = least < low and high < most, high < least or low > most
        middle = least < e.value < most
        if e.spread != INTERVAL:
            return Side.RIGHT if middle else Side.WRONG
        if inside or outside:
            return Side.SUPPORTS if inside else Side.AGAINST
        return Side.LEANS if middle else Side.LEANS_AWAY


class Changed(_Strict):
    """That a rule was changed after data had been seen: the old rule's verdict, and why."""

    before: str
    why: str


class Claim(_Strict):
    id: str = Field(pattern=r"^C\d+[a-z]?$")
    text: str
    note: str = ""
    sources: list[Literal[tuple(SOURCES)]] = []
    changed: Changed | None = None
    needs: list[Need] = []
    tests: list[Test] = Field(min_length=1)


class Rules(_Strict):
    """The file: `names` only holds what its anchors point to. settled: when the last rule was
    changed; without it every changed rule is post hoc.
    """

    names: dict[str, Any] = {}
    settled: AwareDatetime | None = None
    claims: list[Claim] = Field(min_length=1)


def read(path: Path) -> Rules:
    """The rules of a file. Raises OSError, or ValueError with one line."""
    try:
        return Rules.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}: {said}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
