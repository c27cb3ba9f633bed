"""Specifications of members for tests, built without torch."""

import os
import time
from dataclasses import fields, replace
from pathlib import Path

from workflow.collocation.member.spec import (
    Implementation,
    InputSpec,
    MemberSpec,
    OptimizerSpec,
    ScriptSpec,
    TrainingSpec,
)

SGD = OptimizerSpec(
    lr=0.02, momentum=0.9, nesterov=True, weight_decay=2e-5, schedule="cosine", schedule_epochs=300
)


def changed(spec: MemberSpec, **changes) -> MemberSpec:
    """The spec with these fields changed, of whichever part they are."""
    for part in ("implementation", "job"):
        names = {field.name for field in fields(getattr(spec, part))} & changes.keys()
        inner = {name: changes.pop(name) for name in names}
        spec = replace(spec, **{part: replace(getattr(spec, part), **inner)})
    return replace(spec, **changes)


def member_spec(folder: Path, /, **changes) -> MemberSpec:
    """A small classifier that trains on the CPU, with these fields changed."""
    job = TrainingSpec(
        model="test_resnet",
        model_args={},
        dataset="fake",
        dataset_folder=str(folder),
        input=InputSpec(mode="resident", samples=10_000),
        input_size=32,
        classes=10,
        optimizer=SGD,
        label_smoothing=0.1,
    )
    return changed(plain_spec(folder, kind="vision", job=job, sync=True), **changes)


def script_spec(folder: Path, command: list[str], **changes) -> MemberSpec:
    job = ScriptSpec(command=command, working_folder=str(folder), steps="auto", step_timeout_s=30)
    return plain_spec(folder, kind="command", job=job, **changes)


def plain_spec(folder: Path, kind: str, job, **changes) -> MemberSpec:
    spec = MemberSpec(
        index=0,
        workload="tiny",
        kind=kind,
        job=job,
        batch_size=16,
        seed=42,
        device="cpu",
        cores=sorted(os.sched_getaffinity(0)),
        threads=1,
        folder=str(folder),
        implementation=Implementation(),
        environment={},
        warmup_steps=4,
        warmup_s=0.0,
        loss_interval_steps=2,
        forked_s=time.monotonic(),
    )
    return changed(spec, **changes)
