"""The number of members and the limits that each method takes.

workflow/collocation/sharing implements the methods.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StrictInt, ValidationError, field_validator

from workflow.collocation.study.errors import Name, Positive, Strict
from workflow.collocation.study.names import METHODS, STREAMS, family_of

MAX_MEMBERS = 48  # the most clients one MPS server takes (MPS guide)
MAX_STREAMS = 32  # torch gives two jobs of one process the same stream beyond this
Percent = Annotated[float, Field(gt=0, le=100, strict=True)]
Priority = Annotated[StrictInt, Field(ge=0, le=1)]


class MpsLimits(Strict):
    """Limits of each member under MPS: share of the SMs, memory, and priority."""

    sm_percent: Literal["equal", "overlap"] | Percent | dict[Name, Percent] | None = Field(
        None,
        description="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: equal (100/N), overlap (200/N), a "
        "percentage up to 100, or one for each workload",
    )
    pinned_memory_mb: Positive | dict[Name, Positive] | None = Field(
        None, description="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: megabytes, for all or each workload"
    )
    priority: dict[Name, Priority] | None = Field(
        None, description="CUDA_MPS_CLIENT_PRIORITY of each workload: 0 (normal) or 1 (below it)"
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _check_limit(cls, limit, check, info):
        """Replaces pydantic's messages, one for each type of the union, by one line."""
        try:
            return check(limit)
        except ValidationError:
            allowed = cls.model_fields[info.field_name].description
        raise ValueError(f"{limit!r} is not allowed; allowed: {allowed}")

    def of_member(self, workload: str, members: int) -> dict:
        """The limits of one member of a workload among `members` in all, by field; unset ones are
        left out.
        """
        shares = {"equal": 100 / members, "overlap": min(200 / members, 100)}
        limits = {}
        for name, limit in self:
            if isinstance(limit, dict):
                limit = limit.get(workload)
            elif isinstance(limit, str):
                limit = round(shares[limit], 2)
            if limit is not None:
                limits[name] = limit
        return limits


@dataclass(frozen=True)
class MethodBounds:
    """How many members a method takes, and the limits that it sets for each."""

    limits: MpsLimits | None = None
    min_members: int = 1
    max_members: int = MAX_MEMBERS


_BOUNDED = {
    "mps_equal": MethodBounds(MpsLimits(sm_percent="equal")),
    "mps_overlap": MethodBounds(MpsLimits(sm_percent="overlap")),
    STREAMS: MethodBounds(max_members=MAX_STREAMS),
    "mig": MethodBounds(max_members=7),
    "mig_shared": MethodBounds(max_members=7),
    "mig_1g2x": MethodBounds(max_members=4),  # a GPU has memory for 4 instances of double size
    **{f"mig_{part}": MethodBounds(max_members=1) for part in ("7g", "4g", "3g", "2g", "1g")},
}
# In the order of messages.
METHOD_BOUNDS: dict[str, MethodBounds] = {
    name: _BOUNDED.get(name, MethodBounds()) for name in METHODS[1:]
}


def is_mig(method: str) -> bool:
    """Whether the method divides the card into MIG instances."""
    return family_of(method) == "mig"
