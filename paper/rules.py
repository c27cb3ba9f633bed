"""The rules of paper/claims.yaml: which quantity of which jobs must lie within which bounds."""

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
MeasuredMethod = Literal[METHODS[1:]]  # `serial` is computed, never run
Count = Annotated[StrictInt, Field(ge=1)]


class Side(StrEnum):
    """On which side of a bound the number of one host lies.

    An interval can decide, on either side; a point, or the middle of an interval, only leans.
    """

    SUPPORTS = "yes"
    CONTRADICTS = "no"
    LEANS_FOR = "rather yes"
    LEANS_AGAINST = "rather no"


def interval_of_mean(estimate: Row) -> tuple[float, float]:
    """The 95 % interval by which a number decides; its value twice where it has none.

    The interval of a host's number is that of its next cell. The mean of its n cells is known
    better, by a factor of √(n + 1).
    """
    value, low, high = estimate.value, estimate.low, estimate.high
    if estimate.spread == NONE:
        return value, value
    if estimate.spread != INTERVAL or not estimate.host:
        return low, high
    share = (estimate.n + 1) ** -0.5
    if QUANTITIES[estimate.quantity].scale == LOG:
        return value * (low / value) ** share, value * (high / value) ** share
    return value + (low - value) * share, value + (high - value) * share


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Bounds(_Strict):
    """A quantity and the bounds within which it must lie."""

    quantity: Literal[tuple(QUANTITIES)]
    above: float | None = None
    below: float | None = None
    at_least: float | None = None

    def admits(self, estimate: Row) -> bool:
        """True if a number lies within the bounds with all of its interval or range."""
        low, high = interval_of_mean(estimate)
        return (
            (self.above is None or low > self.above)
            and (self.below is None or high < self.below)
            and (self.at_least is None or low >= self.at_least)
        )

    @property
    def rule(self) -> str:
        """The bounds in words: `above 0.9`."""
        bounds = (("above", self.above), ("below", self.below), ("at least", self.at_least))
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


class _BoundsOfJobs(Bounds):
    """Bounds, and what needs and tests say alike of the jobs that are held against them."""

    mix: dict[str, Count] = {}
    job: str = ""
    implementation: str = PAPER_IMPLEMENTATION
    variant: Literal["", "departure", COMPLETION, "files"] = ""
    window: Literal["", BEFORE, AFTER, COMPLETION] = ""


class Need(_BoundsOfJobs):
    """A reading, of a job alone or of a mix, without which our jobs are not like the paper's."""

    method: MeasuredMethod = "naive"

    @model_validator(mode="after")
    def _complete(self):
        if not (self.mix or self.job) or not self.rule:
            raise ValueError("give job or mix, and above, below or at_least")
        return self


class ClaimTest(_BoundsOfJobs):
    """One quantity of some sets of jobs against one bound.

    Without jobs and mix it is of every job measured, in every implementation; `where` picks those
    of them whose reading alone lies within its bounds.
    """

    methods: list[MeasuredMethod] = Field(min_length=1)
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
        every_set = self.fits and not self.jobs
        if not (self.mix or self.counts or every_set) or (self.mix and (self.jobs or self.counts)):
            raise ValueError("give jobs with counts, or counts of all jobs, or a mix")
        if self.where and self.names_jobs:
            raise ValueError("where is of all jobs measured: name none")
        return self

    @property
    def names_jobs(self) -> bool:
        """True if it is of certain jobs, not of all that were measured."""
        return bool(self.jobs or self.mix)

    @property
    def rule(self) -> str:
        """The bound in words: `between 0.952 and 1.05`."""
        if self.fits:
            return "completes exactly where memory suffices"
        return "between {:g} and {:g}".format(*self.within) if self.within else super().rule

    def side(self, estimate: Row) -> Side:
        """On which side of the bound the number of one host lies."""
        least = -inf if self.above is None else self.above
        most = inf if self.below is None else self.below
        if self.within:
            least, most = self.within
        if estimate.spread == INTERVAL:
            low, high = interval_of_mean(estimate)
            if least < low and high < most:
                return Side.SUPPORTS
            if high < least or low > most:
                return Side.CONTRADICTS
        return Side.LEANS_FOR if least < estimate.value < most else Side.LEANS_AGAINST


class Claim(_Strict):
    """A sentence of the paper, and the tests by which it holds.

    sources: of the paper's values; the first that has one stands beside ours. untestable: in place
    of tests, why no measurement could contradict the claim. settled: when its rule was changed, if
    later than the file's date.
    """

    id: str = Field(pattern=r"^C\d+[a-z]?$")
    text: str
    note: str = ""
    sources: list[Literal[tuple(SOURCES)]] = []
    needs: list[Need] = []
    tests: list[ClaimTest] = []
    untestable: str = ""
    settled: AwareDatetime | None = None

    @model_validator(mode="after")
    def _complete(self):
        if bool(self.tests) == bool(self.untestable):
            raise ValueError("give tests, or why it is untestable")
        return self

    @property
    def of_mig(self) -> bool:
        """True if one of its tests needs MIG."""
        methods = []
        for test in self.tests:
            methods += [test.quantity.removeprefix("rate_over_"), *test.methods]
        return any(family_of(method) == "mig" for method in methods)

    @property
    def on_a_line(self) -> bool:
        """True if one of its tests is read off a line, at the paper's GRACT."""
        return any(test.quantity.endswith(AT_GRACT) for test in self.tests)

    def without_lines(self) -> "Claim":
        """The same claim, tested at our hosts' own GRACT in place of on lines."""
        tests = [
            test.model_copy(update={"quantity": test.quantity.removesuffix(AT_GRACT)})
            for test in self.tests
        ]
        return self.model_copy(update={"tests": tests})


class ClaimRules(_Strict):
    """The content of claims.yaml.

    names: what its anchors point to, for no other use. settled: when the rules were changed last,
    save of claims that have a date of their own.
    """

    names: dict[str, Any] = {}
    settled: AwareDatetime | None = None
    claims: list[Claim] = Field(min_length=1)


def read_rules(path: Path = CLAIMS) -> ClaimRules:
    """Read a file of claims. Raises OSError, or ValueError with one line."""
    try:
        return ClaimRules.model_validate(yaml.safe_load(read_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {key}: {message}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
