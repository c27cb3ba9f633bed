"""What a study may ask of each method. How a method works: workflow/collocation/sharing."""

from dataclasses import dataclass

from workflow.collocation.spec.limits import Limits
from workflow.collocation.spec.names import METHODS as ORDER
from workflow.collocation.spec.names import family_of

MOST_MEMBERS = 48  # the most clients one MPS server takes (MPS guide)


@dataclass(frozen=True)
class Bounds:
    """What one method takes: `limits` are those of each member; `least` (copies of one workload)
    and `most` count members.
    """

    limits: Limits | None = None
    least: int = 1
    most: int = MOST_MEMBERS


_LIMITED = {
    "mps_equal": Bounds(Limits(sm_percent="equal")),
    "mps_overlap": Bounds(Limits(sm_percent="overlap")),
    "mig": Bounds(most=7),
    "mig_shared": Bounds(most=7),
    "mig_1g2x": Bounds(most=4),  # a GPU has memory for 4 that have the double of it
    **{f"mig_{part}": Bounds(most=1) for part in ("7g", "4g", "3g", "2g", "1g")},
}
# By name, in the order in which people are told of them. A method of somebody's own is added by
# sharing.base.register.
METHODS: dict[str, Bounds] = {name: _LIMITED.get(name, Bounds()) for name in ORDER[1:]}


def divides(method: str) -> bool:
    """Whether it has the card in parts, of which members of a mix name theirs."""
    return family_of(method) == "mig"
