"""What a study may say of how its cells are measured."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from workflow.collocation.errors import Strict

KINDS = ("window", "epochs", "departure", "completion")
Positive = Annotated[StrictInt, Field(ge=1)]


class Measure(Strict):
    """How a cell is measured."""

    kind: Literal[KINDS] = Field("window", description="what of the jobs is measured")
    window_s: float = Field(10, gt=0, description="seconds in which all members train, at least")
    min_steps: StrictInt = Field(30, ge=3, description="steps of each member in it, at least")
    warmup_s: float = Field(3.0, ge=0, description="seconds from the first step to the barrier")
    settle_s: float = Field(1.0, ge=0, description="seconds from the barrier to the window")
    epochs: Positive = Field(5, description="of kind epochs: how many")
    other_gpus: Literal["any", "idle"] = Field(
        "any", description="idle: the machine's other GPUs rest meanwhile, as a control"
    )
    # Records from before the key, such as those of results/h200, are of members that chose as they
    # came, beside each other's warm-up. They count as if in turn, or all would be measured again.
    tune: Literal["turn", "together"] = Field(
        "turn",
        description="cuDNN chooses kernels for one member after the other, or for all at once",
    )
