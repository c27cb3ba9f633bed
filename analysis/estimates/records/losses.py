"""Was the same work done? Each member's losses against those of alone runs of its workload.

Members of equal workload, implementation, input, seed, data source and GPU model train on the same
batches from the same weights. The median of their alone runs' losses, step by step, is the
reference: of runs of the same code, where there are any, since another version may draw other
weights. The first loss says whether weights and batch are the same, the early ones whether the
member learns as the alone runs do. Later ones say little: training magnifies rounding, and each
process rounds in its own way.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from workflow.collocation.record.run_json import MemberRecord, Record
from workflow.collocation.study.names import conditions_of, parse_scenario

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


class Losses(NamedTuple):
    """A member's early losses by step, inf where not finite: `name` is its (cell, attempt, member),
    `kind` what those have in common that may be held against each other, `code` the digest of the
    code that ran it, `sms` the number of SMs it saw.
    """

    name: tuple[str, int, int]
    kind: tuple
    code: str | None
    alone: bool
    sms: int | None
    losses: dict[int, float]


def members_of(record: Record) -> list[Losses]:
    spec, cell = record.spec, record.cell
    sources = {d.get("dataset"): d.get("source") for d in record.data}
    gpu = record.gpu and record.gpu.name
    found = []
    for member in record.members:
        own = record.jobs[member.member]
        fed = json.dumps(own.get("input"), sort_keys=True), sources.get(own.get("dataset"))
        kind = (own.get("workload"), cell.implementation, *fed, spec.get("seed"), gpu)
        name, code = (cell.id, cell.attempt, member.member), record.provenance.get("digest")
        pairs = zip(member.loss.step, member.loss.value, strict=False)
        early = {step: math.inf if v is None else v for step, v in pairs if step < EARLY_STEPS}
        alone = record.is_baseline or _alone(record, member)
        found.append(Losses(name, kind, code, alone, member.sm_count, early))
    return found


def _alone(record: Record, member: MemberRecord) -> bool:
    """Whether it is the job alone of a completed interleaved cell."""
    conditions = conditions_of(record.cell.scenario, record.cell.method)
    own = [conditions[name] for name in member.windows if name in conditions]
    return record.status == "completed" and any(
        condition.method == "naive" and parse_scenario(condition.scenario).n == 1
        for condition in own
    )


def loss_checks(members: Iterable[Losses]) -> dict[tuple[str, int, int], Check]:
    """Name of a member → does its loss at step k agree with the alone runs of its kind?"""
    kinds, checks = defaultdict(list), {}
    for member in members:
        kinds[member.kind].append(member)
    for alike in kinds.values():
        everyone = [member for member in alike if member.alone and member.losses]
        for code in {member.code for member in alike}:
            alone = [member for member in everyone if member.code == code] or everyone
            reference = _reference(alone) if alone else None
            for member in (member for member in alike if member.code == code):
                checks[member.name] = _check(member, reference)
            if len(alone) == 1 and checks.get(alone[0].name, (None,))[0] == AGREES:
                checks[alone[0].name] = ITSELF, None
    return checks


def _reference(alone: list[Losses]) -> tuple[pd.Series, set[int | None]]:
    """What the alone runs of one kind have in common: the median of their losses on the steps that
    all of them recorded, and the numbers of SMs with which a member begins alike. Where most alone
    runs do not even begin alike, they set no seed, and the first loss says nothing.
    """
    losses = pd.DataFrame([member.losses for member in alone]).dropna(axis=1).sort_index(axis=1)
    middle = losses[np.isfinite(losses).all(axis=1)].median()
    seeded = sum(_begins_as(row, middle) for _, row in losses.iterrows()) > len(alone) / 2
    return middle, {member.sms for member in alone} if seeded else set()


def _check(member: Losses, reference: tuple[pd.Series, set[int | None]] | None) -> Check:
    if not member.losses:
        return NO_LOSS, None
    if reference is None:
        return NO_ALONE, None
    middle, sms = reference
    expected = middle[middle.index.isin(member.losses)]
    if expected.empty:
        return NO_LOSS, None
    found = expected.index.map(member.losses).to_series(expected.index)
    apart = distance(found, expected)
    same = member.sms not in sms or _begins_as(found, expected)
    return AGREES if same and apart <= EARLY else DIFFERS, apart


def distance(a: pd.Series, b: pd.Series) -> float:
    """Root mean square of a − b (losses by step), relative to that of b; inf if a is not finite."""
    difference, scale = float(((a - b) ** 2).sum(skipna=False)), float((b**2).sum(skipna=False))
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


def _begins_as(a: pd.Series, b: pd.Series) -> bool:
    """Whether the first losses are alike; not if one is not finite, or there is none."""
    return bool((abs(a - b) <= FIRST * abs(b))[:1].any())
