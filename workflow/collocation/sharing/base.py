"""What a way to share a GPU is: one class a family, one registered instance a method.

A new one is one module: a `Method`, the `Sharing` that it enters, and `register`. The package's
`__init__` imports it. Nothing elsewhere may ask what a method's name begins with.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.spec.limits import Limits

JOIN = "-"  # between the methods of sides, in the name of a cell's that has some
MOST_MEMBERS = 48  # the most clients one MPS server takes (MPS guide)


class Sharing(ABC):
    """A method that was entered: what members start with, and the evidence that it is in force."""

    @abstractmethod
    def environment(self, member: int) -> dict[str, str]:
        """What the member finds in its environment, before its first CUDA call."""

    @abstractmethod
    def witness(self, reports: dict[int, Report]) -> dict:
        """Evidence that the method is in force for these members, by what they report. Asked at
        the barrier, before the window, and again after it.

        Has `verified`: True, or null where nobody could tell. Raises NotInForce, with the sentence
        that the cell fails with, or GpuBusy.
        """

    def release(self, pid: int) -> None:  # noqa: B027
        """Before a member is killed: have the method drop it, so that no neighbour is harmed.

        Never raises, and takes a few seconds at most. Here: a plain process takes nobody with it.
        """

    def own_pids(self) -> set[int]:
        """PIDs under which NVML may list the members, and servers of theirs, as far as witnessed.

        To be asked, as the next, where there is a GPU.
        """
        return set()

    def instances(self) -> dict[str, int | None]:
        """The GPU instances in use under MIG, as telemetry calls them ("gi:1"), and their SMs."""
        return {}

    def entity(self, member: int) -> str:
        """Where the member runs, as telemetry calls it: "gpu", or a GPU instance."""
        return "gpu"


@dataclass(frozen=True)
class Method(ABC):
    """A way to share a GPU.

    name: as studies, run.json and folders have it. limits: what it limits each member to.
    least, most: members, of copies of one workload and of all.
    """

    name: str
    limits: Limits | None = None
    least: int = 1
    most: int = MOST_MEMBERS

    family: ClassVar[str]  # what it is a kind of
    takes: ClassVar[tuple[str, ...]] = ()  # the limits that a study's variants of it may set
    # Whether it has the card in parts (MIG mode on), of which members of a mix name theirs.
    parts: ClassVar[bool] = False
    experimental: ClassVar[str | None] = None  # why its results are not to be trusted yet

    def refusal(self, spec: dict, device: Device | None, switch: bool = False) -> str | None:
        """Why it cannot run this cell on this card, or None. Reads only.

        switch: the card's MIG mode and layout may be changed for a cell.
        """
        return None

    def processes(self, spec: dict) -> int:
        """How many processes of a cell CUDA sees on the card at once. Here: one that serves all,
        or one in each part.
        """
        return 1

    @abstractmethod
    def enter(
        self, spec: dict, device: Device | None, log: Path, switch: bool = False
    ) -> AbstractContextManager[Sharing]:
        """Set it up for a cell that it does not refuse, and on every way out take it down; `log` is
        the folder for what its own programs print. Raises NotInForce or Unsupported.
        """


METHODS: dict[str, Method] = {}  # by name, in the order in which people are told of them


def register(*methods: Method) -> None:
    METHODS.update((method.name, method) for method in methods)


def named(name: str) -> Method:
    """The method of that name. Any other is a study's variant, <family>_<name>: the family's
    first method, whose limits are in each cell's spec; or it names those of a cell's sides.
    """
    if JOIN in name:
        from workflow.collocation.sharing.conditions import Sides

        return Sides(name)
    if name not in METHODS:
        found = METHODS[name.split("_")[0]]
        if found.takes:
            return replace(found, name=name)
    return METHODS[name]
