"""The specification of a cell: everything that decides what it measures, and its digest.

Two specifications are the same if their digests are. Values at their default do not enter a digest,
so a new field with a default measures no cell again. VERSION is raised when the meaning of an
unchanged specification changes.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Literal

from pydantic import BaseModel

from workflow.collocation.study.definition import KEYS_OF_OTHER_KINDS, Measure, Sizes
from workflow.collocation.study.errors import Strict
from workflow.collocation.study.names import INTERLEAVED, list_conditions
from workflow.collocation.study.workloads import (
    AnyWorkload,
    OwnInput,
    without_secrets,
    workload_model,
)

VERSION = 1  # of the meaning of a specification; another one measures all cells again
FIRST_VERSION = 1  # the default, which digests leave out
MISSING = object()

JsonPath = tuple[str | int, ...]  # of a value in nested JSON, such as ("members", 0, "batch_size")


class MeasureSpec(Measure):
    """How the cell is measured.

    leaving_member: index of the member that leaves in a departure; others of the same workload
    leave too if any other members stay. second_context: a process opens a CUDA context before the
    window and ends, see gpu/second_context.py.
    """

    leaving_member: int | None = None
    second_context: bool | None = None

    def to_json(self) -> dict:
        """Only the keys that matter for this kind."""
        return self.model_dump(exclude=KEYS_OF_OTHER_KINDS[self.kind], exclude_none=True)


class ImplementationSpec(Strict):
    """How the members' training step is written.

    backward: the thread that launches the backward pass. compile: whether torch.compile is used.
    cudnn_benchmark: cuDNN tries its kernels and keeps the fastest.
    """

    precision: str
    channels_last: bool
    sync: bool
    cuda_graph: bool
    backward: Literal["autograd", "caller"] = "autograd"
    compile: bool = False
    cudnn_benchmark: Literal[True] = True


class MemberSpec(Strict):
    """One job of the set.

    job: the workload as this cell runs it. cores_of: the member gets the machine's cores divided by
    this; None: all cores. source: digest of the user's own code. sm_percent, pinned_memory_mb,
    priority, slice: what the method gives the member. work: its steps in a completion. condition:
    index of its condition in an interleaved cell.
    """

    workload: str
    job: AnyWorkload
    cores_of: int | None
    source: str | None = None
    sm_percent: float | None = None
    pinned_memory_mb: int | None = None
    priority: int | None = None
    slice: str | None = None
    work: int | None = None
    condition: int | None = None

    def to_json(self) -> dict:
        return self.model_dump(exclude={"job"}, exclude_defaults=True) | self.job.to_json()


class CellSpec(Strict):
    """What a cell measures. datasets: sizes to generate, by name, where the study gives them."""

    members: tuple[MemberSpec, ...]
    implementation: ImplementationSpec
    method: str
    measure: MeasureSpec
    seed: int
    datasets: dict[str, Sizes]
    version: int = VERSION

    def to_json(self) -> dict:
        """The specification as run.json holds it."""
        return {
            "members": [member.to_json() for member in self.members],
            "measure": self.measure.to_json(),
            "datasets": {
                name: sizes.model_dump(exclude_none=True) for name, sizes in self.datasets.items()
            },
            **self.model_dump(exclude={"members", "measure", "datasets"}),
        }

    @property
    def digest(self) -> str:
        return spec_digest(self.to_json())

    @property
    def methods(self) -> list[str]:
        """The method of each member."""
        if self.measure.kind != INTERLEAVED:
            return [self.method] * len(self.members)
        conditions = list_conditions(self.method, [member.workload for member in self.members])
        return [conditions[member.condition].method for member in self.members]

    def shares(self) -> list[list[int | str]]:
        """By condition and member: how many shares the machine's cores have, of which the member
        gets one; or "all" cores. `cores.plan_conditions` makes CPU numbers of it.
        """
        conditions = groupby(self.members, key=lambda member: member.condition)
        return [[member.cores_of or "all" for member in members] for _, members in conditions]


def spec_digest(spec: dict) -> str:
    """SHA-256 (16 hex digits) of a specification in JSON, without values at their default.

    It also works for older records: a key that is unknown here enters the digest.
    """
    defaults = _defaults_of(spec)
    settings = []
    for path, value in _leaves(spec):
        if value != defaults.get(path, MISSING):
            settings.append((json.dumps(path), value))
    return hashlib.sha256(json.dumps(sorted(settings), sort_keys=True).encode()).hexdigest()[:16]


def changed_settings(before: dict, after: dict) -> list[str]:
    """The differences between two specifications in JSON, such as 'batch_size 32 → 64'."""
    paths = dict.fromkeys(path for spec in (after, before) for path, _ in _leaves(spec))
    old_values = _defaults_of(before) | dict(_leaves(before))
    new_values = _defaults_of(after) | dict(_leaves(after))
    changes = []
    for path in paths:
        old, new = old_values.get(path, MISSING), new_values.get(path, MISSING)
        if old != new:
            changes.append(f"{_setting_name(path)} {_value_text(old)} → {_value_text(new)}")
    return list(dict.fromkeys(changes))


def _leaves(value, path: JsonPath = ()) -> Iterator[tuple[JsonPath, object]]:
    """The path and value of each leaf in JSON: members are entered, other lists are not."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif path == ("members",) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(without_secrets(item), (*path, index))  # older records hold them
    else:
        is_whole = isinstance(value, float) and value.is_integer()
        yield path, int(value) if is_whole else value  # 20 and 20.0 are the same


def _defaults_of(spec: dict) -> dict[JsonPath, object]:
    """JsonPath → the value of a setting that the specification does not name."""
    implementation, measure = _model_defaults(ImplementationSpec), _model_defaults(MeasureSpec)
    settings = {"version": FIRST_VERSION, "implementation": implementation, "measure": measure}
    defaults = dict(_leaves(settings))
    for index, member in enumerate(spec.get("members") or ()):
        for path, value in member_defaults(str(member.get("kind"))):
            defaults["members", index, *path] = value
    return defaults


@cache
def member_defaults(kind: str) -> list[tuple[JsonPath, object]]:
    """The path and value of each default of a member, by its kind of job."""
    member = {"input": OwnInput().model_dump()}
    member |= _model_defaults(workload_model(kind)) | _model_defaults(MemberSpec)
    member.pop("description", None)
    return [*_leaves(member)]


def _model_defaults(model: type[BaseModel]) -> dict:
    """The default of each field that is not required."""
    fields = model.model_fields.items()
    defaults = {name: field.get_default() for name, field in fields if not field.is_required()}
    return model.model_construct(**defaults).model_dump(include=defaults.keys())


def _setting_name(path: JsonPath) -> str:
    """members, 0, optimizer, base_lr → optimizer.base_lr; measure, window_s → window_s."""
    outer = {"members": 2, "measure": 1, "implementation": 1}.get(path[0], 0)
    return ".".join(map(str, path[outer:] or path))


def _value_text(value) -> str:
    return "none" if value is MISSING or value is None else json.dumps(value).strip('"')
