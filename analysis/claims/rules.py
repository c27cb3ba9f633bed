"""What config/claims.yaml may say: a claim is one or more tests, all of which must hold.

A test is a rule, the cells it is applied to, and its bounds. Everything a person can get wrong is
refused as one line that names file, claim, key and what is allowed (`ClaimError`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from analysis import quantities
from analysis.names import METHODS
from analysis.reported import SOURCES
from analysis.views import DEPARTURE, Key

Method = Literal[METHODS[1:]]  # serial is computed, never run
Source = Literal[tuple(SOURCES)]
Quantity = Literal[quantities.NAMES]
Count = Annotated[StrictInt, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0)]
Margin = Annotated[float, Field(gt=0, le=1)]


class ClaimError(Exception):
    """A mistake in the file of claims, as one line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Where(_Strict):
    """Which workloads a test is about: those whose `of`, alone, is below or at least a value."""

    of: Literal["gract", "smact", "memory"]
    below: Ratio | None = None
    at_least: Ratio | None = None

    @model_validator(mode="after")
    def _one_bound(self):
        if (self.below is None) == (self.at_least is None):
            raise ValueError("give one of below, at_least")
        return self

    @property
    def words(self) -> str:
        return f"below {self.below:g}" if self.below is not None else f"{self.at_least:g} or more"

    def admits(self, value: float) -> bool:
        return value < self.below if self.below is not None else value >= self.at_least


class _Cells(_Strict):
    """Sets of jobs: `counts` copies of each of `workloads`, or one `mix` (workload → count)."""

    workloads: list[str] = []
    counts: list[Count] = []
    mix: dict[str, Count] = {}
    methods: list[Method] = Field(min_length=1)
    variant: Literal["", "departure"] = ""

    @model_validator(mode="after")
    def _one_kind_of_set(self):
        if bool(self.workloads) == bool(self.mix) or bool(self.workloads) != bool(self.counts):
            raise ValueError("give workloads with counts, or a mix")
        return self

    def sets(self) -> list[dict[str, int]]:
        """The sets of jobs, workload → count."""
        if self.mix:
            return [self.mix]
        return [{name: count} for name in self.workloads for count in self.counts]

    def cells(self) -> list[Key]:
        """Every set under every method."""
        return [Key.of(s, method, self.variant) for s in self.sets() for method in self.methods]


class _Number(_Cells):
    """Cells and the number of them that is looked at: `of`, or `of` over that of method `over`."""

    of: Quantity
    over: Method | None = None
    member: str | None = None  # slowdown: of this workload's jobs only
    work: Source | None = None  # time: each job's work is what it takes alone by this source
    where: Where | None = None

    @model_validator(mode="after")
    def _number_is_complete(self):
        if (self.of == "time") != (self.work is not None):
            raise ValueError("work goes with of: time, and only with it")
        if self.member is not None and self.of != "slowdown":
            raise ValueError("member goes with of: slowdown")
        if self.of == "reclaimed" and self.variant != DEPARTURE:
            raise ValueError("of: reclaimed needs variant: departure")
        if self.where is not None and not self.workloads:
            raise ValueError("where goes with workloads")
        return self


class Greater(_Number):
    """Holds above `bound`, contradicted below `neutral`."""

    rule: Literal["greater"]
    bound: Ratio
    neutral: Ratio = 1.0

    @model_validator(mode="after")
    def _bound_is_beyond_neutral(self):
        if self.bound < self.neutral:
            raise ValueError(f"bound {self.bound} must not be below neutral {self.neutral}")
        return self


class Less(_Number):
    """Holds below `bound`, contradicted above `neutral`."""

    rule: Literal["less"]
    bound: Ratio
    neutral: Ratio = 1.0

    @model_validator(mode="after")
    def _bound_is_beyond_neutral(self):
        if self.bound > self.neutral:
            raise ValueError(f"bound {self.bound} must not be above neutral {self.neutral}")
        return self


class Equal(_Number):
    """Holds where two one-sided tests say 1 within a factor 1 + `margin`."""

    rule: Literal["equal"]
    margin: Margin


class Order(_Cells):
    """Gains fall in the order of `methods`, each over the next by more than `margin`."""

    rule: Literal["order"]
    margin: Margin

    @field_validator("methods")
    @classmethod
    def _two_or_more(cls, methods):
        if len(methods) < 2:
            raise ValueError("an order needs two methods or more")
        return methods


class Saturates(_Cells):
    """From the first to the second count the gain grows by less than `share` of in proportion."""

    rule: Literal["saturates"]
    share: Margin
    contradicted_share: Margin

    @model_validator(mode="after")
    def _two_counts(self):
        if len(self.counts) != 2 or self.counts[0] >= self.counts[1]:
            raise ValueError("give two counts, the lower one first")
        if self.share > self.contradicted_share:
            raise ValueError("share must not be above contradicted_share")
        return self

    def growth(self, share: float) -> float:
        """Gain at the second count over that at the first, at this share of proportional growth."""
        few, many = self.counts
        return 1 + share * (many / few - 1)


class Additive(_Cells):
    """The set's GPU memory is the sum of its jobs' alone, within a factor 1 + `margin`."""

    rule: Literal["additive"]
    margin: Margin


class Status(_Strict):
    """Sets end out of memory where their jobs' memory alone exceeds the card's, else complete.

    Without workloads every set of the study is looked at. With `part` each job must fit in this
    share of the card (a MIG instance has its own memory). Sets within `tolerance` of the
    capacity do not count.
    """

    rule: Literal["status"]
    workloads: list[str] = []
    counts: list[Count] = []
    methods: list[Method] = Field(min_length=1)
    tolerance: Margin
    part: Margin | None = None

    def cells(self) -> list[Key]:
        """Every set under every method; none where all of the study's are meant."""
        sets = [{name: count} for name in self.workloads for count in self.counts]
        return [Key.of(each, method) for each in sets for method in self.methods]

    @model_validator(mode="after")
    def _workloads_with_counts(self):
        if bool(self.workloads) != bool(self.counts):
            raise ValueError("give workloads with counts, or neither")
        return self


Test = Annotated[
    Greater | Less | Equal | Order | Saturates | Additive | Status, Field(discriminator="rule")
]


class Need(_Strict):
    """What makes our cells comparable to the paper's: a number of a cell, within limits."""

    of: Quantity
    workload: str | None = None  # alone
    mix: dict[str, Count] = {}
    method: Method = "naive"
    variant: Literal["", "departure"] = ""
    above: Ratio | None = None
    below: Ratio | None = None

    @model_validator(mode="after")
    def _is_complete(self):
        if (self.workload is None) != bool(self.mix):
            raise ValueError("give a workload (alone) or a mix")
        if self.above is None and self.below is None:
            raise ValueError("give above, below or both")
        if self.of == "time":
            raise ValueError("of: time is not allowed in needs")
        return self

    @property
    def words(self) -> str:
        limits = (("above", self.above), ("below", self.below))
        return " and ".join(f"{side} {limit:g}" for side, limit in limits if limit is not None)

    def key(self) -> Key:
        return Key.of(self.mix or {self.workload: 1}, self.method, self.variant)

    def admits(self, value: float) -> bool:
        return (self.above or 0.0) < value < (self.below or float("inf"))


class Claim(_Strict):
    """One claim of the paper. All tests must hold; without its needs it is not comparable."""

    id: str = Field(pattern=r"^C[0-9]+[a-z]?$")
    text: str = Field(min_length=1)
    sources: list[Source] = Field(min_length=1)
    arm: Literal["faithful"] = "faithful"
    tests: list[Test] = Field(min_length=1)
    needs: list[Need] = []
    note: str = ""


class Claims(_Strict):
    """The whole file."""

    claims: list[Claim] = Field(min_length=1)

    @field_validator("claims")
    @classmethod
    def _each_once(cls, claims):
        names = [claim.id for claim in claims]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"an id stands there twice: {', '.join(twice)}")
        return claims


def load(path: Path) -> list[Claim]:
    """The claims of a file, in its order. Raises ClaimError.

    `templates` at the top of the file is for YAML anchors only.
    """
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ClaimError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ClaimError(f"{path}:{line} not valid YAML: {error.problem}") from None
    if isinstance(content, dict):
        content.pop("templates", None)
    try:
        return Claims.model_validate(content).claims
    except ValidationError as error:
        raise ClaimError(f"{path}: {_line(error, content)}") from None


_RULES = {
    "greater": Greater,
    "less": Less,
    "equal": Equal,
    "order": Order,
    "saturates": Saturates,
    "additive": Additive,
    "status": Status,
}


def _line(error: ValidationError, content: object) -> str:
    """The first mistake as `C4a: tests.0.margin: what is wrong`, and how many more there are."""
    # A misspelt key is told before the key that is missing for it.
    errors = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    first = errors[0]
    place = first["loc"]
    parts = [str(part) for part in place]
    if place[2:3] == ("tests",) and len(place) > 4:
        del parts[4]  # pydantic puts the rule's name between a test and its key
    if place[:1] == ("claims",) and len(place) > 1:
        entry = content["claims"][place[1]]
        named = entry.get("id") if isinstance(entry, dict) else None
        parts[:2] = [str(named)] if named else [f"claims.{place[1]}"]
    where = [parts[0], ".".join(parts[1:])] if parts else []
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ": ".join([*filter(None, where), _explain(first)]) + more


def _explain(error: dict) -> str:
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key; allowed: {', '.join(_owner(error['loc'][:-1]).model_fields)}"
        case "missing":
            return "is missing"
        case "literal_error":
            return f"{error['input']!r} is not allowed; allowed: {error['ctx']['expected']}"
        case "union_tag_invalid":
            return f"rule: {error['ctx']['tag']!r} is not allowed; allowed: {', '.join(_RULES)}"
        case "union_tag_not_found":
            return f"rule: is missing; allowed: {', '.join(_RULES)}"
        case "value_error":
            return str(error["ctx"]["error"])
    message = error["msg"]
    return f"{message[0].lower()}{message[1:]}, got {error['input']!r}"


def _owner(place: tuple) -> type[BaseModel]:
    """Whose keys stand at a place of the file."""
    if place[-1:] == ("where",):
        return Where
    if place[2:3] == ("tests",):
        return _RULES[place[4]]
    return Need if place[2:3] == ("needs",) else Claim if place else Claims
