"""What a study's variant of MPS limits each member to."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt, ValidationError, field_validator, model_validator

from workflow.collocation.spec.errors import Strict

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]  # of a workload, a method
Positive = Annotated[StrictInt, Field(ge=1)]
Percent = Annotated[float, Field(gt=0, le=100, strict=True)]
Priority = Annotated[StrictInt, Field(ge=0, le=1)]
ALLOWED = {
    "sm_percent": "equal, overlap, a percentage up to 100, or a number for each workload",
    "pinned_memory_mb": "megabytes, or a number for each workload",
    "priority": "0 (normal) or 1 (below normal) for each workload",
}


class Limits(Strict):
    """MPS with limits for each member: a share of the SMs, and of the GPU's memory; priorities."""

    sm_percent: Literal["equal", "overlap"] | Percent | dict[Name, Percent] | None = Field(
        None,
        description="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, for all or by workload; "
        "equal is 100/N, overlap 200/N",
        examples=["equal", 12],
    )
    pinned_memory_mb: Positive | dict[Name, Positive] | None = Field(
        None,
        description="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, for all or by workload",
        examples=[9000],
    )
    priority: dict[Name, Priority] | None = Field(
        None,
        description="CUDA_MPS_CLIENT_PRIORITY by workload: 0 normal, 1 below normal",
        examples=[{"small": 0, "large": 1}],
    )

    @field_validator("sm_percent", "pinned_memory_mb", "priority", mode="wrap")
    @classmethod
    def _is_allowed(cls, limit, check, info):
        """One line for what would be one complaint for each type of the union."""
        try:
            return check(limit)
        except ValidationError as error:
            value, allowed = error.errors()[-1]["input"], ALLOWED[info.field_name]
        raise ValueError(f"{value!r} is not allowed; allowed: {allowed}")

    @model_validator(mode="after")
    def _limits_something(self):
        if not any(limit for _, limit in self):
            raise ValueError(f"a variant limits something; allowed: {', '.join(TAKES)}")
        return self

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

    def named(self) -> set[str]:
        """The workloads that it names."""
        return {name for _, limit in self if isinstance(limit, dict) for name in limit}


TAKES = tuple(Limits.model_fields)
