"""What a study may say of how its cells are measured."""

from typing import Literal

from pydantic import Field, StrictInt

from workflow.collocation.spec.errors import Strict
from workflow.collocation.spec.methods import MOST_MEMBERS
from workflow.collocation.spec.names import PLAIN

KINDS = ("window", "departure", "completion", "alternate")
Scenario = tuple[str, dict[str, int], list[str]]  # its key, workload → how many, methods


class Measure(Strict):
    """How a cell is measured."""

    kind: Literal[KINDS] = Field("window", description="what of the jobs is measured")
    window_s: float = Field(10, gt=0, description="seconds in which all members train, at least")
    min_steps: StrictInt = Field(30, ge=3, description="steps of each member in it, at least")
    warmup_s: float = Field(3.0, ge=0, description="seconds from the first step to the barrier")
    settle_s: float = Field(1.0, ge=0, description="seconds from the barrier to the window")
    slices: StrictInt = Field(60, ge=2, description="of kind alternate: slices of each side")
    slice_s: float = Field(0.5, gt=0, description="seconds of a slice, from resume to hold")
    drop_s: float = Field(0.1, ge=0, description="of them, at its beginning, that do not count")
    # Records from before the key, such as those of results/h200, are of members that chose as they
    # came, beside each other's warm-up. They count as if in turn, or all would be measured again.
    tune: Literal["turn", "together"] = Field(
        "turn",
        description="cuDNN chooses kernels for one member after the other, or for all at once",
    )


# Kind → the keys that matter for it, of those that do not matter for all.
_WINDOW = {"settle_s", "window_s", "min_steps"}
_MATTER = {
    "window": _WINDOW,
    "departure": _WINDOW,
    "completion": {"settle_s"},
    "alternate": {"slices", "slice_s", "drop_s"},
}
BESIDE = {kind: set().union(*_MATTER.values()) - keys for kind, keys in _MATTER.items()}


def require_turns(where: str, study: Measure, group: Measure, scenarios: list[Scenario]) -> None:
    """Raise ValueError unless the methods of each scenario can take turns in one cell. The group is
    the study's ladder or mix at `where`, and of kind alternate.
    """
    times = study.model_dump() | group.model_dump(exclude_unset=True)
    if times["drop_s"] >= times["slice_s"]:
        raise ValueError(
            f"{where}.measure.drop_s: {times['drop_s']:g} s of slices of {times['slice_s']:g} s "
            "leave nothing; allowed: less than slice_s"
        )
    for key, members, methods in scenarios:
        if len(methods) < 2:
            raise ValueError(f"{where}.{key}: 'alternate' needs at least 2 sides")
        clients = sum(members.values()) * sum(method not in PLAIN for method in methods)
        if clients > MOST_MEMBERS:
            raise ValueError(
                f"{where}.{key}: {clients} members are clients of one MPS daemon; "
                f"allowed: {MOST_MEMBERS}"
            )
