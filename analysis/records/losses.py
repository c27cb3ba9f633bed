"""Was the same work done? Each member's losses against those of alone runs of its workload.

Members of equal workload, arm, input, seed, data source and GPU model train on the same batches
from the same weights. The median of their alone runs' losses, step by step, is the reference: of
runs of the same code, where there are any, since another version may draw other weights. The
first loss says whether weights and batch are the same, the early ones whether the member learns as
the alone runs do. Later ones say little: training magnifies rounding, and each process rounds in
its own way.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.records.records import is_baseline
from workflow.collocation.spec.names import parse_scenario, sides_of

AGREES, DIFFERS = "agrees", "differs"
NO_ALONE, NO_LOSS = "no alone run", "no loss recorded"
ITSELF = "the only alone run"  # which there is nothing to hold against

# How far a member may be from the reference, relative to the loss. On H200s the first losses of
# 1,369 members were within 0.18 %; those of 165 that saw fewer SMs, for which PyTorch draws other
# random numbers, up to 23 % away. Over the early steps all were within 21 % (root mean square).
FIRST = 0.002
EARLY, EARLY_STEPS = 0.25, 50


# A verdict, and how far the early losses are from the reference, relative to the loss.
Check = tuple[str, float | None]


@dataclass(frozen=True)
class Member:
    """A member's early losses by step, NaN where not finite: `name` is its (cell, attempt, member),
    `kind` what those have in common that may be held against each other, `code` the digest of the
    code that ran it, `sms` the number of SMs it saw.
    """

    name: tuple[str, int, int]
    kind: tuple
    code: str | None
    alone: bool
    sms: int | None
    losses: dict[int, float]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a − b (losses by step), relative to that of b; inf if a is not finite."""
    difference, scale = float(((a - b) ** 2).sum()), float((b**2).sum())
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


def begins_as(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the first losses are alike; not if one is not finite, or there is none."""
    return bool((abs(a - b) <= FIRST * abs(b))[:1].any())


class Reference:
    """What the alone runs of one kind have in common: the median of their losses on the steps that
    all of them recorded. Where most do not even begin alike, they set no seed, and the first loss
    says nothing; nor does it where a member saw another number of SMs.
    """

    def __init__(self, alone: Sequence[Member]):
        shared = sorted(set.intersection(*(set(member.losses) for member in alone)))
        rows = [[member.losses[step] for step in shared] for member in alone]
        losses = np.array(rows).reshape(len(alone), len(shared))
        finite = losses[np.isfinite(losses).all(axis=1)]
        median = np.median(finite, axis=0) if len(finite) else np.full(len(shared), np.nan)
        self._losses = dict(zip(shared, median, strict=True))
        seeded = sum(begins_as(row, median) for row in losses) > len(alone) / 2
        self._sms = {member.sms for member in alone} if seeded else set()

    def check(self, member: Member) -> Check:
        """Hold a member against the alone runs, of which it may be one."""
        shared = sorted(member.losses.keys() & self._losses.keys())
        if not shared:
            return NO_LOSS, None
        both = (member.losses, self._losses)
        found, expected = (np.array([losses[step] for step in shared]) for losses in both)
        apart = distance(found, expected)
        same = member.sms not in self._sms or begins_as(found, expected)
        return AGREES if same and apart <= EARLY else DIFFERS, apart


def members_of(record: dict) -> list[Member]:
    """Raises KeyError, TypeError, ValueError where the record is not as it should be."""
    spec, cell = record["spec"], record["cell"]
    sources = {d.get("dataset"): d.get("source") for d in record.get("data") or []}
    code = (record.get("provenance") or {}).get("digest")
    found = []
    for member in record.get("members") or []:
        own, loss = spec["members"][member["member"]], member.get("loss") or {}
        kind = (
            own.get("workload"),
            cell["arm"],
            json.dumps(own.get("input"), sort_keys=True),
            own.get("seed", spec.get("seed")),
            sources.get(own.get("dataset")),
            (record.get("gpu") or {}).get("name"),
        )
        name = (cell["id"], cell["attempt"], member["member"])
        alone = is_baseline(record) or _alone(record, member)
        early: dict[int, float] = {}
        for step, value in zip(loss.get("step") or [], loss.get("value") or [], strict=False):
            if step < EARLY_STEPS:  # null is JSON's spelling of NaN
                early.setdefault(step, math.nan if value is None else float(value))
        found.append(Member(name, kind, code, alone, member.get("sm_count"), early))
    return found


def _alone(record: dict, member: dict) -> bool:
    """Whether it is the plain job alone of a completed alternating cell."""
    sides = sides_of(record["cell"]["scenario"], record["cell"]["method"])
    own = [sides[name] for name in member.get("windows") or () if name in sides]
    return record["status"] == "completed" and any(
        side.method == "naive" and parse_scenario(side.scenario).n == 1 for side in own
    )


def loss_checks(members: Iterable[Member]) -> dict[tuple[str, int, int], Check]:
    """Name of a member → does its loss at step k agree with the alone runs of its kind?"""
    kinds: dict[tuple, list[Member]] = defaultdict(list)
    checks: dict[tuple, Check] = {}
    for member in members:
        if member.losses:
            kinds[member.kind].append(member)
        else:
            checks[member.name] = NO_LOSS, None
    for alike in kinds.values():
        everyone = [member for member in alike if member.alone]
        for code in {member.code for member in alike}:
            alone = [member for member in everyone if member.code == code] or everyone
            check = Reference(alone).check if alone else lambda _: (NO_ALONE, None)
            checks |= {member.name: check(member) for member in alike if member.code == code}
            if len(alone) == 1 and checks.get(alone[0].name, (None,))[0] == AGREES:
                checks[alone[0].name] = ITSELF, None
    return checks
