"""What a way to share a GPU is: a `Method`, which sets it up, and a `Sharing`, which is set up.

A new method is one module with both, and `register`; the package's `__init__` imports it. Nothing
elsewhere may ask what a method's name begins with.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.spec import methods
from workflow.collocation.spec.cell import CellSpec
from workflow.collocation.spec.names import JOIN, family_of


class Sharing(ABC):
    """A method that was entered: what members start with, and the evidence that it is in force."""

    @abstractmethod
    def environment(self, member: int) -> dict[str, str]:
        """What the member finds in its environment, before its first CUDA call."""

    @abstractmethod
    def witness(self, reports: dict[int, Report]) -> dict:
        """Evidence that the method is in force for these members, by what they report. Asked at
        the barrier, before the window, and again after it.

        Has `verified`: True, or None where nobody could tell. Raises NotInForce, with the sentence
        that the cell fails with, or GpuBusy.
        """

    def release(self, pid: int) -> None:  # noqa: B027
        """Before a member is killed: have the method drop it, so that no neighbour is harmed.

        Never raises, and takes a few seconds at most.
        """

    def own_pids(self) -> set[int]:
        """PIDs under which NVML may list members and their servers, as far as witnessed."""
        return set()

    def instances(self) -> dict[str, int | None]:
        """The GPU instances in use under MIG, as telemetry calls them ("gi:1"), and their SMs."""
        return {}

    def entity(self, member: int) -> str:
        """Where the member runs, as telemetry calls it: "gpu", or a GPU instance."""
        return "gpu"


@dataclass(frozen=True)
class Method(ABC):
    """A way to share a GPU. name: as studies, run.json and folders have it."""

    name: str

    family: ClassVar[str]  # what it is a kind of: <family>, <family>_<variant>
    experimental: ClassVar[str | None] = None  # why its results are not to be trusted yet

    def refusal(self, spec: CellSpec, device: Device | None) -> str | None:
        """Why it cannot run this cell on this card, or None. Reads only."""
        return None

    def processes(self, spec: CellSpec) -> int:
        """How many processes of a cell CUDA sees on the card at once."""
        return 1

    @abstractmethod
    def enter(
        self, spec: CellSpec, device: Device | None, log: Path
    ) -> AbstractContextManager[Sharing]:
        """Set it up for a cell that it does not refuse, and on every way out take it down; `log` is
        the folder for what its own programs print. Raises NotInForce or Unsupported.
        """


FAMILIES: dict[str, type[Method]] = {}


def register(method: type[Method], bounds: methods.Bounds | None = None) -> None:
    """Make a method known; bounds: of one that spec.methods does not name, what a study may ask."""
    FAMILIES[method.family] = method
    if bounds:
        methods.METHODS[method.family] = bounds


def named(name: str) -> Method:
    """The method of that name: a family's first, one of its variants, or one whose conditions are
    interleaved. Raises KeyError.
    """
    family = "interleaved" if JOIN in name else family_of(name)
    return (FAMILIES.get(name) or FAMILIES[family])(name)
