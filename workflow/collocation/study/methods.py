"""What a study may ask of each method. How a method works: workflow/collocation/sharing."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StrictInt, ValidationError, field_validator

from workflow.collocation.study.errors import Name, Positive, Strict
from workflow.collocation.study.names import METHODS as ORDER
from workflow.collocation.study.names import STREAMS, family_of

MAX_MEMBERS = 48  # the most clients one MPS server takes (MPS guide)
MAX_STREAMS = 32  # that torch makes of one process, before two get the same
Percent = Annotated[float, Field(gt=0, le=100, strict=True)]
Priority = Annotated[StrictInt, Field(ge=0, le=1)]


class MpsLimits(Strict):
    """MPS with limits for each member: a share of the SMs, and of the GPU's memory; priorities."""

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
    def _is_allowed(cls, limit, check, info):
        """One line for what would be one complaint for each type of the union."""
        try:
            return check(limit)
        except ValidationError:
            allowed = cls.model_fields[info.field_name].description
        raise ValueError(f"{limit!r} is not allowed; allowed: {allowed}")

    def of(self, workload: str, members: int) -> dict:
        """What a member of that workload is limited to among so many."""
        shares = {"equal": 100 / members, "overlap": min(200 / members, 100)}
        found = {}
        for name, limit in self:
            if isinstance(limit, dict):
                limit = limit.get(workload)
            elif isinstance(limit, str):
                limit = round(shares[limit], 2)
            if limit is not None:
                found[name] = limit
        return found


@dataclass(frozen=True)
class MethodBounds:
    """What one method takes: `limits` of each member, and from `least` to `most` members."""

    limits: MpsLimits | None = None
    least: int = 1
    most: int = MAX_MEMBERS


_LIMITED = {
    "mps_equal": MethodBounds(MpsLimits(sm_percent="equal")),
    "mps_overlap": MethodBounds(MpsLimits(sm_percent="overlap")),
    STREAMS: MethodBounds(most=MAX_STREAMS),
    "mig": MethodBounds(most=7),
    "mig_shared": MethodBounds(most=7),
    "mig_1g2x": MethodBounds(most=4),  # a GPU has memory for 4 that have the double of it
    **{f"mig_{part}": MethodBounds(most=1) for part in ("7g", "4g", "3g", "2g", "1g")},
}
# By name, in the order in which people are told of them. A method of somebody's own is added by
# sharing.base.register.
METHOD_BOUNDS: dict[str, MethodBounds] = {
    name: _LIMITED.get(name, MethodBounds()) for name in ORDER[1:]
}


def is_mig(method: str) -> bool:
    """Whether it has the card in parts, of which members of a mix name theirs."""
    return family_of(method) == "mig"
