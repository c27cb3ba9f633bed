"""Was the same work done? Each member's losses against those of alone runs of its workload.

Members of equal workload, arm, input, seed and data source train on the same batches from the same
weights. What their alone runs have in common is the reference: the median of their losses, step by
step. How far they lie from it is what chance does, and says how far any other member may.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.records.records import is_baseline

AGREES, DIFFERS = "agrees", "differs"
NEEDS_TWO, NO_LOSS = "needs two alone runs", "no loss recorded"

# A member may be further from the reference than the furthest alone run by this factor.
FACTOR = 3.0
# What few alone runs may not show: cuDNN picks its algorithms anew in each process, and training
# magnifies their rounding (seen on an H200: 1.3 % over 100 steps). Relative to the loss.
FLOOR = 0.02
# An alone run further from the others' median is no reference for anything. Relative to the loss.
CEILING = 0.1


@dataclass(frozen=True)
class Curve:
    """Losses by step: int64 [k], ascending and each once; float64 [k], NaN where not finite."""

    steps: np.ndarray
    losses: np.ndarray

    @staticmethod
    def of(steps: Sequence[int], losses: Sequence[float | None]) -> Curve:
        """From two lists of run.json, in which null is JSON's spelling of NaN."""
        shorter = min(len(steps), len(losses))
        found, first = np.unique(np.array(steps[:shorter], dtype=np.int64), return_index=True)
        return Curve(found, np.array(losses[:shorter], dtype=np.float64)[first])


@dataclass(frozen=True)
class Check:
    """A verdict, and what it rests on. distance and tolerance are relative to the loss; runs: how
    many alone runs are behind the tolerance.
    """

    verdict: str
    distance: float | None = None
    tolerance: float | None = None
    runs: int = 0


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a − b (losses by step), relative to that of b; inf if a is not finite."""
    difference, scale = float(((a - b) ** 2).sum()), float((b**2).sum())
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


class Reference:
    """What the alone runs of one kind have in common; `alone` holds the check of each of them.

    It is the median of their losses on the steps that all of them recorded. One that is beyond
    CEILING of it differs itself; the furthest of the others says how far a member may be: FACTOR
    times as far, within FLOOR … CEILING. Of two alone runs each is half their distance away.
    """

    def __init__(self, curves: Sequence[Curve]):
        shared = curves[0].steps
        for curve in curves[1:]:
            shared = np.intersect1d(shared, curve.steps, assume_unique=True)
        losses = np.array([c.losses[np.searchsorted(c.steps, shared)] for c in curves])
        finite = losses[np.isfinite(losses).all(axis=1)]
        median = np.median(finite, axis=0) if len(finite) else np.full(len(shared), np.nan)
        self._curve = Curve(shared, median)
        apart = [distance(row, median) for row in losses]
        kept = [found for found in apart if found <= CEILING]
        self.tolerance = min(max(FACTOR * max(kept, default=0.0), FLOOR), CEILING)
        self.runs = len(kept)
        self.alone = [self._of_alone(found, len(curves)) for found in apart]

    def _of_alone(self, found: float, runs: int) -> Check:
        if not len(self._curve.steps):
            return Check(NO_LOSS)
        if runs < 2:
            return Check(NEEDS_TWO)
        return Check(AGREES if found <= CEILING else DIFFERS, found, CEILING, self.runs)

    def check(self, curve: Curve) -> Check:
        """Hold a member that shared the GPU, or ran under a method, against the alone runs."""
        if not self.runs:
            return Check(NEEDS_TWO)
        shared, own, at = np.intersect1d(
            curve.steps, self._curve.steps, assume_unique=True, return_indices=True
        )
        if not len(shared):
            return Check(NO_LOSS)
        found = distance(curve.losses[own], self._curve.losses[at])
        # One alone run does not tell how far two of them may be apart.
        beyond = DIFFERS if self.runs > 1 else NEEDS_TWO
        verdict = AGREES if found <= self.tolerance else beyond
        return Check(verdict, found, self.tolerance, self.runs)


@dataclass(frozen=True)
class Member:
    """A member's losses: `name` is its (cell, attempt, member), `kind` what those have in common
    that may be held against each other.
    """

    name: tuple[str, int, int]
    kind: tuple
    alone: bool
    curve: Curve


def members_of(record: dict) -> list[Member]:
    """Raises KeyError, TypeError, ValueError where the record is not as it should be."""
    spec, cell = record["spec"], record["cell"]
    sources = {d.get("dataset"): d.get("source") for d in record.get("data") or []}
    found = []
    for member in record.get("members") or []:
        own, loss = spec["members"][member["member"]], member.get("loss") or {}
        kind = (
            own.get("workload"),
            cell["arm"],
            json.dumps(own.get("input"), sort_keys=True),
            own.get("seed", spec.get("seed")),
            sources.get(own.get("dataset")),
        )
        name = (cell["id"], cell["attempt"], member["member"])
        curve = Curve.of(loss.get("step") or [], loss.get("value") or [])
        found.append(Member(name, kind, is_baseline(record), curve))
    return found


def loss_checks(members: Iterable[Member]) -> dict[tuple[str, int, int], Check]:
    """Name of a member → does its loss at step k agree with the alone runs of its kind?"""
    kinds: dict[tuple, list[Member]] = defaultdict(list)
    checks: dict[tuple, Check] = {}
    for member in members:
        if len(member.curve.steps):
            kinds[member.kind].append(member)
        else:
            checks[member.name] = Check(NO_LOSS)
    for alike in kinds.values():
        alone = [member for member in alike if member.alone]
        if not alone:
            checks |= {member.name: Check(NEEDS_TWO) for member in alike}
            continue
        reference = Reference([member.curve for member in alone])
        checks |= {member.name: reference.check(member.curve) for member in alike}
        checks |= {m.name: check for m, check in zip(alone, reference.alone, strict=True)}
    return checks
