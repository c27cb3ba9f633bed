"""All that decides what a cell measures: typed from the grid to run.json, flat JSON in there.

Two specs are the same if their digests are, which leave out what is as by default: a field that is
added measures nothing again if its default is what was done before. Where the same spec comes to
mean something else, VERSION counts on.
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

VERSION = 1  # of what a spec means: another one measures all cells again
FIRST_VERSION = 1  # which digests leave out
MISSING = object()


class MeasureSpec(Measure):
    """How the cell is measured. leaving_member: of a departure, the member that leaves, and with it
    those of the same workload if others stay. second_context: once all are warm another process
    opens CUDA, and ends (gpu.second_context says why).
    """

    leaving_member: int | None = None
    second_context: bool | None = None

    def to_json(self) -> dict:
        """Only the keys that matter for this kind."""
        return self.model_dump(exclude=KEYS_OF_OTHER_KINDS[self.kind], exclude_none=True)


class ImplementationSpec(Strict):
    """How the members' step is written. backward: on whose thread that pass is launched.
    compile: by torch.compile. cudnn_benchmark: cuDNN tries kernels out, and keeps the fastest.
    """

    precision: str
    channels_last: bool
    sync: bool
    cuda_graph: bool
    backward: Literal["autograd", "caller"] = "autograd"
    compile: bool = False
    cudnn_benchmark: Literal[True] = True


class MemberSpec(Strict):
    """One job of the set. job: its workload, as this cell runs it. cores_of: the machine's cores
    divided by this; None: all of them. source: digest of the code of the user's own. sm_percent,
    pinned_memory_mb, priority, slice: what its method gives it. work: steps, of a completion.
    condition: which of those that interleaved cell it belongs to.
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
    """What a cell measures. `datasets`: sizes to generate, by name, where the study says them."""

    members: tuple[MemberSpec, ...]
    implementation: ImplementationSpec
    method: str
    measure: MeasureSpec
    seed: int
    datasets: dict[str, Sizes]
    version: int = VERSION

    def to_json(self) -> dict:
        """As it stands in run.json."""
        members = [member.to_json() for member in self.members]
        flat = self.model_dump(exclude={"members", "measure", "datasets"})
        sizes = {n: of.model_dump(exclude_none=True) for n, of in self.datasets.items()}
        return {"members": members, "measure": self.measure.to_json(), "datasets": sizes, **flat}

    @property
    def digest(self) -> str:
        return spec_digest(self.to_json())

    @property
    def methods(self) -> list[str]:
        """The method of each member."""
        if self.measure.kind != INTERLEAVED:
            return [self.method] * len(self.members)
        found = list_conditions(self.method, [member.workload for member in self.members])
        return [found[member.condition].method for member in self.members]

    def shares(self) -> list[list[int | str]]:
        """What `cores.plan_conditions` takes: into how many shares cores are divided, or "all", for
        each member; a list for each condition.
        """
        conditions = groupby(self.members, key=lambda member: member.condition)
        return [[member.cores_of or "all" for member in condition] for _, condition in conditions]


def spec_digest(flat: dict) -> str:
    """SHA-256 (16 hex digits) over a spec, as it stands in run.json, without what is as by default.

    Of a record's spec too, whatever it holds: a setting that is not known here counts.
    """
    default = _defaults(flat)
    given = ((p, value) for p, value in _leaves(flat) if value != default.get(p, MISSING))
    settings = sorted((json.dumps(path), value) for path, value in given)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def changed_settings(before: dict, now: dict) -> list[str]:
    """What differs between two specs as in run.json: 'batch_size 32 → 64'."""
    given = dict.fromkeys(path for flat in (now, before) for path, _ in _leaves(flat))
    old, new = (_defaults(flat) | dict(_leaves(flat)) for flat in (before, now))
    found = ((_name(path), old.get(path, MISSING), new.get(path, MISSING)) for path in given)
    said = (f"{name} {_shown(was)} → {_shown(will)}" for name, was, will in found if was != will)
    return list(dict.fromkeys(said))


def _leaves(value, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif path == ("members",) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(without_secrets(item), (*path, index))  # older records hold them
    else:  # a number is the same as 20 and as 20.0
        whole = isinstance(value, float) and value.is_integer()
        yield path, int(value) if whole else value


def _defaults(flat: dict) -> dict[tuple, object]:
    """Path → the value that a spec which does not name it means."""
    parts = {"implementation": ImplementationSpec, "measure": MeasureSpec}
    given = {name: _default(model) for name, model in parts.items()}
    paths = dict(_leaves({"version": FIRST_VERSION, **given}))
    for index, member in enumerate(flat.get("members") or ()):
        of_kind = member_defaults(str(member.get("kind")))
        paths |= {("members", index, *path): value for path, value in of_kind}
    return paths


@cache
def member_defaults(kind: str) -> list[tuple[tuple, object]]:
    """The same of a member with that kind of job."""
    model = workload_model(kind)
    member = {"input": OwnInput().model_dump()} | _default(model) | _default(MemberSpec)
    return [*_leaves({key: value for key, value in member.items() if key != "description"})]


def _default(model: type[BaseModel]) -> dict:
    """What need not be given of a model, and its value."""
    given = {n: f.get_default() for n, f in model.model_fields.items() if not f.is_required()}
    return model.model_construct(**given).model_dump(include=given.keys())


def _name(path: tuple) -> str:
    """members, 0, optimizer, base_lr → optimizer.base_lr; measure, window_s → window_s."""
    outer = {"members": 2, "measure": 1, "implementation": 1}.get(path[0], 0)
    return ".".join(map(str, path[outer:] or path))


def _shown(value) -> str:
    return "none" if value is MISSING or value is None else json.dumps(value).strip('"')
