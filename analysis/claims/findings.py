"""What judging a claim yields: findings, and the claim's verdict over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis import flags
from analysis.claims.rules import Claim
from analysis.claims.verdicts import Verdict
from analysis.quantities import Measurements
from analysis.statistics import Estimate
from analysis.views import View


@dataclass(frozen=True)
class Evidence:
    """What claims are held against: our cells, the paper's by source, and its jobs' work (s)."""

    measured: Measurements
    paper: Mapping[str, Measurements]
    work: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Reported:
    """What a source says of the same, and what our rule says of that.

    `value` is a number as ours is, or None where the source tells only how the cell ended.
    """

    source: str
    value: float | None
    status: str
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """One number, its interval, and what a rule says of it; `views` are the cells it is of."""

    where: str
    what: str
    unit: str
    rule: str
    verdict: Verdict
    why: str
    estimate: Estimate | None = None
    ended: str = ""  # how its cells ended, where that is looked at
    reported: tuple[Reported, ...] = ()
    views: tuple[View, ...] = ()

    @property
    def flags(self) -> str:
        """Those of its cells, as in one cell of the flags column."""
        return flags.union(view.flags for view in self.views)


@dataclass(frozen=True)
class Result:
    """A claim's verdict. `deciding` is the finding that it rests on; `notes` say which values its
    rule leaves out, and which cells are suspect (they count).
    """

    claim: Claim
    verdict: Verdict
    why: str
    findings: tuple[Finding, ...]
    deciding: Finding
    notes: tuple[str, ...] = ()
