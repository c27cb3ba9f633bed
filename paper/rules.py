"""What paper/claims.yaml may say, and how hosts, cells and tests make a verdict."""

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

from analysis.estimates.quantities import AT_GRACT, LOG, QUANTITIES
from analysis.estimates.table import INTERVAL, NONE, Row
from paper.reported import SOURCES
from workflow.collocation.study.names import (
    AFTER,
    BEFORE,
    COMPLETION,
    METHODS,
    PAPER_IMPLEMENTATION,
    family_of,
)
from workflow.collocation.study.regular_files import read_text

CLAIMS = Path(__file__).resolve().with_name("claims.yaml")
Method = Literal[METHODS[1:]]  # `serial` is computed, never run
Count = Annotated[StrictInt, Field(ge=1)]


class Side(StrEnum):
    """Where one host's number lies: an interval can decide a test, its middle or a point cannot."""

    SUPPORTS = "yes"
    AGAINST = "no"
    RIGHT = "rather yes"
    WRONG = "rather no"


class Verdict(StrEnum):
    """Of a cell, a test, a claim; AGREES only of a claim."""

    HOLDS = "holds"
    AGREES = "agrees at the paper's GRACT"
    CONTRADICTED = "contradicted"
    DEPENDS = "depends on the host"
    IMPRECISE = "too imprecise"
    NOT_TESTABLE = "not testable"


def over_hosts(sides: Sequence[Side]) -> Verdict:
    """Of one cell: intervals decide, and any host on the other side keeps them from it."""
    if Side.SUPPORTS in sides and Side.AGAINST in sides:
        return Verdict.DEPENDS
    if Side.SUPPORTS in sides and Side.WRONG not in sides:
        return Verdict.HOLDS
    if Side.AGAINST in sides and Side.RIGHT not in sides:
        return Verdict.CONTRADICTED
    return Verdict.IMPRECISE


def all_of(parts: Sequence[Verdict]) -> Verdict:
    """Of parts that must all hold: the first of these verdicts that one of them has."""
    worst = (Verdict.CONTRADICTED, Verdict.NOT_TESTABLE, Verdict.DEPENDS, Verdict.IMPRECISE)
    return next((verdict for verdict in worst if verdict in parts), Verdict.HOLDS)


def of_mean(e: Row) -> tuple[float, float]:
    """The interval that a number decides by: of a host's the mean of its n cells, for which
    the one of its next cell is too wide by √(n + 1); else its own, or its value where it has none.
    """
    if e.spread == NONE:
        return e.value, e.value
    if e.spread != INTERVAL or not e.host:
        return e.low, e.high
    share = (e.n + 1) ** -0.5
    if QUANTITIES[e.quantity].scale == LOG:
        return tuple(e.value * (end / e.value) ** share for end in (e.low, e.high))
    return tuple(e.value + (end - e.value) * share for end in (e.low, e.high))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bounds(_Strict):
    """A quantity and where it must lie. Of `where`: jobs alone."""

    quantity: Literal[tuple(QUANTITIES)]
    above: float | None = None
    below: float | None = None
    at_least: float | None = None

    def admits(self, e: Row) -> bool:
        """True if a number, with all of its interval or range, is on the right side of each bound;
        such a reading decides what is comparable, so it must be sure.
        """
        low, high = of_mean(e)
        return (
            (self.above is None or low > self.above)
            and (self.below is None or high < self.below)
            and (self.at_least is None or low >= self.at_least)
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
    """One quantity of some cells against one bound. Without jobs and mix: of all jobs measured, in
    any implementation; `where` picks these by a reading of the job alone.
    """

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
        named = self.mix or self.counts or (self.fits and not self.jobs)  # memory: of all sets
        if not named or (self.mix and (self.jobs or self.counts)):
            raise ValueError("give jobs with counts, or counts of all jobs, or a mix")
        if self.where and (self.jobs or self.mix):
            raise ValueError("where is of all jobs measured: name none")
        return self

    @property
    def rule(self) -> str:
        if self.fits:
            return "completes exactly where memory suffices"
        return "between {:g} and {:g}".format(*self.within) if self.within else super().rule

    def side(self, e: Row) -> Side:
        """Where the number of one host lies."""
        low, high = of_mean(e) if e.spread == INTERVAL else (e.value, e.value)
        least = -inf if self.above is None else self.above
        most = inf if self.below is None else self.below
        least, most = self.within or (least, most)
        inside, outside = least < low and high < most, high < least or low > most
        if e.spread == INTERVAL and (inside or outside):
            return Side.SUPPORTS if inside else Side.AGAINST
        return Side.RIGHT if least < e.value < most else Side.WRONG


class Claim(_Strict):
    """untestable: why no data that a study measures could contradict it, in place of tests."""

    id: str = Field(pattern=r"^C\d+[a-z]?$")
    text: str
    note: str = ""
    sources: list[Literal[tuple(SOURCES)]] = []
    needs: list[Need] = []
    tests: list[Test] = []
    untestable: str = ""

    @model_validator(mode="after")
    def _complete(self):
        if bool(self.tests) == bool(self.untestable):
            raise ValueError("give tests, or why it is untestable")
        return self

    @property
    def of_mig(self) -> bool:
        """True if a test of it needs MIG."""
        used = [
            name for t in self.tests for name in (t.quantity.removeprefix("rate_over_"), *t.methods)
        ]
        return "mig" in map(family_of, used)

    @property
    def extrapolated(self) -> bool:
        """True if a test of it is read off a line, at the paper's GRACT."""
        return any(test.quantity.endswith(AT_GRACT) for test in self.tests)


class Rules(_Strict):
    """The file: `names` only holds what its anchors point to. settled: when the last rule was
    changed.
    """

    names: dict[str, Any] = {}
    settled: AwareDatetime | None = None
    claims: list[Claim] = Field(min_length=1)


def read(path: Path) -> Rules:
    """The rules of a file. Raises OSError, or ValueError with one line."""
    try:
        return Rules.model_validate(yaml.safe_load(read_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {where}: {said}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
