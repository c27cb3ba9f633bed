"""All that decides what a cell measures: typed from the grid to run.json, flat JSON in files.

Two specs are the same if their digests are. A digest leaves out what is as by default, so that a
field that is added with a default measures nothing again; the default has to be what was done
before there was the field. Where the same spec comes to mean something else, VERSION counts on.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache, cached_property

from pydantic import BaseModel

from workflow.collocation.schema.study import Measure, Sizes
from workflow.collocation.schema.workloads import Workload, model_of

VERSION = 1  # of what a spec means: another one measures all cells again
FIRST = 1  # of specs that name none
FIRST_KIND = "vision"  # of members that name none
ANY = "*"  # any member's number
BESIDE = {"description", "input", "window_s"}  # of a workload: told by others, or otherwise


class MeasureSpec(Measure):
    """How the cell is measured. departs: the member that leaves, of a departure."""

    departs: int | None = None

    def to_json(self) -> dict:
        """Only the keys that matter for this kind."""
        return self.resolved() | ({} if self.departs is None else {"departs": self.departs})


@dataclass(frozen=True)
class ArmSpec:
    """How the members' step is written."""

    precision: str
    channels_last: bool
    sync: bool
    cuda_graph: bool


@dataclass(frozen=True)
class MemberSpec:
    """One job of the set. `job` is what it trains: its workload, with the keys of its kind, as this
    cell runs it.

    cores_of: the machine's cores divided by this; None: all of them. source: digest of the code of
    a model of the user's own. sm_percent, pinned_memory_mb, priority, slice: what its method gives
    it. work: steps, of a completion.
    """

    workload: str
    job: Workload
    cores_of: int | None
    source: str | None = None
    sm_percent: float | None = None
    pinned_memory_mb: int | None = None
    priority: int | None = None
    slice: str | None = None
    work: int | None = None

    @classmethod
    def of(cls, name: str, workload: Workload, mode: str | None = None, **own) -> "MemberSpec":
        """Of a workload of the catalogue; `mode` is another input than its own."""
        return cls(name, workload.in_cell(mode), **own)

    def to_json(self) -> dict:
        own = {name: getattr(self, name) for name in _by_default(MemberSpec)}
        return {
            "workload": self.workload,
            **self.job.model_dump(exclude=BESIDE),
            "input": self.job.input.resolved(),
            "cores_of": self.cores_of,
            **{k: value for k, value in own.items() if value != _by_default(MemberSpec)[k]},
        }

    @classmethod
    def from_json(cls, flat: dict) -> "MemberSpec":
        own = {field.name for field in fields(cls)} - {"job"}
        given = {key: value for key, value in flat.items() if key in own}
        return cls(job=_known(model_of(flat.get("kind", FIRST_KIND)), flat), **given)


def _known(model: type[BaseModel], flat: dict) -> BaseModel:
    """The model with what it knows of the keys."""
    kept = {}
    for name in model.model_fields.keys() & flat.keys():
        inner, value = model.model_fields[name].annotation, flat[name]
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        kept[name] = _known(inner, value) if nested else value
    return model.model_validate(kept)


@dataclass(frozen=True)
class CellSpec:
    """What a cell measures. `datasets`: sizes to generate, by name, where the study says them."""

    members: tuple[MemberSpec, ...]
    arm: ArmSpec
    method: str
    measure: MeasureSpec
    seed: int
    datasets: dict[str, Sizes]
    version: int = VERSION

    def to_json(self) -> dict:
        """As it stands in run.json."""
        return {
            "version": self.version,
            "members": [member.to_json() for member in self.members],
            "arm": asdict(self.arm),
            "method": self.method,
            "measure": self.measure.to_json(),
            "seed": self.seed,
            "datasets": {name: sizes.model_dump() for name, sizes in self.datasets.items()},
        }

    @classmethod
    def from_json(cls, flat: dict) -> "CellSpec":
        """Raises ValueError where it is none, or says more than is known."""
        try:
            sizes = {name: Sizes.model_validate(each) for name, each in flat["datasets"].items()}
            typed = {
                "members": tuple(map(MemberSpec.from_json, flat["members"])),
                "arm": ArmSpec(**flat["arm"]),
                "measure": MeasureSpec.model_validate(flat["measure"]),
                "datasets": sizes,
            }
            spec = cls(**flat | typed)
        except (KeyError, TypeError) as error:
            raise ValueError(f"is no cell's spec: {error}") from None
        if lost := changes(flat, spec.to_json()):
            raise ValueError(f"not understood: {', '.join(lost)}")
        return spec

    @cached_property
    def digest(self) -> str:
        return digest(self.to_json())

    def shares(self) -> list[int | str]:
        """What `cores.plan_cores` takes: into how many shares cores are divided, or "all"."""
        return [member.cores_of or "all" for member in self.members]

    def with_measure(self, **changes) -> "CellSpec":
        """The same but for how it is measured."""
        return replace(self, measure=self.measure.model_copy(update=changes))


def digest(flat: dict) -> str:
    """SHA-256 (16 hex digits) over a spec, as it stands in run.json, without what is as by default.

    Of a record's spec too, whatever it holds: a setting that is not known here counts.
    """
    settings = sorted((json.dumps(path), value) for path, value in _settings(flat))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def changes(before: dict, now: dict) -> list[str]:
    """What differs between two specs as in run.json: 'batch_size 32 → 64'; with the workload where
    it does not differ alike for all members.
    """
    old, new = dict(_settings(before)), dict(_settings(now))
    kinds, newer = _kinds(before), _kinds(now)
    names = dict(enumerate(member["workload"] for member in now["members"]))
    found: dict[str, dict[str | None, None]] = {}  # what differs → whose it is
    for path in dict.fromkeys((*new, *old)):
        was = old.get(path, _default(path, kinds))
        will = new.get(path, _default(path, newer))
        if was != will:
            whose = names.get(path[1]) if path[0] == "members" and len(path) > 1 else None
            said = f"{_name(path)} {_shown(was)} → {_shown(will)}"
            found.setdefault(said, {})[whose] = None
    lines = []
    for said, whose in found.items():
        alike = None in whose or whose.keys() == set(names.values())
        lines += [said] if alike else [f"{name} {said}" for name in whose]
    return lines


def _settings(flat: dict) -> Iterator[tuple[tuple, object]]:
    """(path, value) of all that is not as by default."""
    kinds = _kinds(flat)
    return ((path, value) for path, value in _leaves(flat) if value != _default(path, kinds))


def _leaves(value, path: tuple = ()) -> Iterator[tuple[tuple, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif path == ("members",) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:  # a number is the same as 20 and as 20.0
        whole = isinstance(value, float) and value.is_integer()
        yield path, int(value) if whole else value


def _kinds(flat: dict) -> dict[int, str]:
    """Member → its kind of job."""
    members = enumerate(flat.get("members") or ())
    return {i: str(each.get("kind", FIRST_KIND)) for i, each in members if isinstance(each, dict)}


def _default(path: tuple, kinds: dict[int, str]):
    if path[0] == "members" and len(path) > 1:
        found = defaults(kinds.get(path[1], FIRST_KIND))
        return found.get(("members", ANY, *path[2:]), MISSING)
    return defaults().get(path, MISSING)


def _by_default(cls) -> dict:
    """The fields of a dataclass that need not be given."""
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


@cache
def defaults(kind: str = FIRST_KIND) -> dict[tuple, object]:
    """Path → the value that a spec which does not name it means, of members of that kind."""
    try:
        model = model_of(kind)
    except KeyError:  # not known here: its name makes the difference
        return defaults()
    found = {("version",): FIRST}
    job = {n: f.get_default() for n, f in model.model_fields.items() if not f.is_required()}
    made = model.model_construct(**job)
    job = made.model_dump(include=job.keys() - BESIDE) | model.formerly
    member = job | {"input": made.input.model_dump(), **_by_default(MemberSpec)}
    measure = MeasureSpec().model_dump()
    found |= {("members", ANY, *path): value for path, value in _leaves(member)}
    found |= {("measure", *path): value for path, value in _leaves(measure)}
    return found | {("arm", name): value for name, value in _by_default(ArmSpec).items()}


def _name(path: tuple) -> str:
    """members, 0, optimizer, base_lr → optimizer.base_lr; measure, window_s → window_s."""
    outer = {"members": 2, "measure": 1, "arm": 1}.get(path[0], 0)
    return ".".join(map(str, path[outer:] or path))


def _shown(value) -> str:
    return "none" if value is MISSING or value is None else json.dumps(value).strip('"')
