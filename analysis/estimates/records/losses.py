"""Was the same work done? Each member's losses against those of alone runs of its workload.

Members of equal workload, implementation, input, seed, data source and GPU model train on the same
batches from the same weights. The reference is the median of their alone runs' losses, step by
step. Where there are any, only alone runs of the same code count, since another version may draw
other weights. The first loss tells whether weights and batch are the same, the early ones whether
the member learns as the alone runs do. Later ones tell little: training magnifies rounding, and
each process rounds in its own way.
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
ONLY_ALONE = "the only alone run"  # there is no other to compare it with
# How far a member may be from the reference, relative to the loss. On H200s the first losses of
# 1,369 members were within 0.18 %; those of 165 that saw fewer SMs, for which PyTorch draws other
# random numbers, up to 23 % away. Over the early steps all were within 21 % (root mean square).
FIRST_TOLERANCE = 0.002
EARLY_TOLERANCE, EARLY_STEPS = 0.25, 50
# A verdict, and how far the early losses are from the reference, relative to the loss.
LossCheck = tuple[str, float | None]
# A job's median losses alone by step, and the numbers of SMs on which its first loss is fixed: with
# another number cuDNN chooses other kernels.
Reference = tuple[dict[int, float], set[int | None]]


class MemberLosses(NamedTuple):
    """A member's early losses.

    name: (cell, attempt, member). comparable: equal in members whose losses can be compared. code:
    digest of the code that ran it. alone: whether it is a job alone. sms: number of SMs it saw.
    losses: step → loss, inf where not finite.
    """

    name: tuple[str, int, int]
    comparable: tuple
    code: str | None
    alone: bool
    sms: int | None
    losses: dict[int, float]


def member_losses(record: Record) -> list[MemberLosses]:
    """Reads the early losses of each member of a record."""
    cell = record.cell
    sources = {data.get("dataset"): data.get("source") for data in record.data}
    gpu = record.gpu and record.gpu.name
    losses = []
    for member in record.members:
        job = record.jobs[member.member]
        comparable = (
            job.get("workload"),
            cell.implementation,
            json.dumps(job.get("input"), sort_keys=True),
            sources.get(job.get("dataset")),
            record.spec.get("seed"),
            gpu,
        )
        early = {}
        for step, loss in zip(member.loss.step, member.loss.value, strict=False):
            if step < EARLY_STEPS:
                early[step] = math.inf if loss is None else loss
        name, code = (cell.id, cell.attempt, member.member), record.provenance.get("digest")
        alone = record.is_baseline or _is_alone_condition(record, member)
        losses.append(MemberLosses(name, comparable, code, alone, member.sm_count, early))
    return losses


def _is_alone_condition(record: Record, member: MemberRecord) -> bool:
    """Whether a member is the job alone of a completed interleaved cell."""
    if record.status != "completed":
        return False
    conditions = conditions_of(record.cell.scenario, record.cell.method)
    for window in member.windows:
        condition = conditions.get(window)
        if condition and condition.method == "naive" and parse_scenario(condition.scenario).n == 1:
            return True
    return False


def check_losses(members: Iterable[MemberLosses]) -> dict[tuple[str, int, int], LossCheck]:
    """Checks for each member, by name, whether its losses agree with comparable alone runs."""
    groups, checks = defaultdict(list), {}
    for member in members:
        groups[member.comparable].append(member)
    for group in groups.values():
        all_alone = [member for member in group if member.alone and member.losses]
        for code in {member.code for member in group}:
            alone = [member for member in all_alone if member.code == code] or all_alone
            reference = _reference(alone) if alone else None
            for member in group:
                if member.code == code:
                    checks[member.name] = _check(member, reference)
            if len(alone) == 1 and checks.get(alone[0].name, (None,))[0] == AGREES:
                checks[alone[0].name] = ONLY_ALONE, None
    return checks


def _reference(alone: list[MemberLosses]) -> Reference:
    """The median losses on steps that all recorded, and the SM counts that fix the first loss."""
    losses = pd.DataFrame([member.losses for member in alone]).dropna(axis=1).sort_index(axis=1)
    median = losses[np.isfinite(losses).all(axis=1)].median()
    # Where most alone runs do not begin alike, they set no seed, and nothing fixes the first loss.
    alike = sum(_begins_alike(row, median.to_numpy()) for row in losses.to_numpy())
    sm_counts = {member.sms for member in alone} if alike > len(alone) / 2 else set()
    return median.to_dict(), sm_counts


def _check(member: MemberLosses, reference: Reference | None) -> LossCheck:
    """Whether a member's losses agree with those of its job alone, and how far apart they are.

    reference: None where it never ran alone.
    """
    if not member.losses:
        return NO_LOSS, None
    if reference is None:
        return NO_ALONE, None
    median, sm_counts = reference
    steps = [step for step in median if step in member.losses]
    if not steps:
        return NO_LOSS, None
    losses = np.array([member.losses[step] for step in steps])
    expected = np.array([median[step] for step in steps])
    apart = distance(losses, expected)
    begins_alike = member.sms not in sm_counts or _begins_alike(losses, expected)
    return AGREES if begins_alike and apart <= EARLY_TOLERANCE else DIFFERS, apart


def distance(losses: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the difference over that of `expected`; inf if losses are not finite."""
    difference = float(((losses - expected) ** 2).sum())
    scale = float((expected**2).sum())
    if not math.isfinite(difference) or scale == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / scale)


def _begins_alike(losses: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the first losses are alike; not if one is not finite, or there is none."""
    return bool((abs(losses - expected) <= FIRST_TOLERANCE * abs(expected))[:1].any())
