"""What a way to share a GPU is: a `Method`, one class each.

A new method is one module with its class, and `register`; the package's `__init__` imports it.
Nothing elsewhere may ask what a method's name begins with.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study import methods
from workflow.collocation.study.cell import CellSpec
from workflow.collocation.study.names import SEPARATOR, family_of


class Method(ABC):
    """How the members of one cell share its GPU: what stands against it, what members start with,
    and the evidence that it is in force. device: None on a CPU.
    """

    family: ClassVar[str]  # what it is a kind of: <family>, <family>_<variant>
    experimental: ClassVar[str | None] = None  # why its results are not to be trusted yet

    def __init__(self, spec: CellSpec, device: Device | None):
        self.spec, self.device, self.name = spec, device, spec.method
        self.names: set[int] = set()  # PIDs as NVML may list members and servers, once witnessed

    # -- before -----------------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """Why it cannot run this cell on this card, or None. Reads only."""
        return None

    def processes(self) -> int:
        """How many processes of the cell CUDA sees on the card at once."""
        return 1

    def entered(self, log: Path) -> AbstractContextManager:
        """Set it up for a cell that it does not refuse, and on every way out take it down; `log` is
        the folder for what its own programs print. Raises NotInForce or Unsupported.
        """
        return nullcontext()

    # -- once it is entered -----------------------------------------------------------------------

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
        return self.names

    def instances(self) -> dict[str, int | None]:
        """The GPU instances in use under MIG, as telemetry calls them ("gi:1"), and their SMs."""
        return {}

    def entity(self, member: int) -> str:
        """Where the member runs, as telemetry calls it: "gpu", or a GPU instance."""
        return "gpu"


FAMILIES: dict[str, type[Method]] = {}


def register(method: type[Method], bounds: methods.MethodBounds | None = None) -> None:
    """Make a method known; bounds: of one that spec.methods does not name, what a study may ask."""
    FAMILIES[method.family] = method
    if bounds:
        methods.METHOD_BOUNDS[method.family] = bounds


def named(name: str) -> type[Method]:
    """The method of that name: a family's first, one of its variants, or one whose conditions are
    interleaved. Raises KeyError.
    """
    return FAMILIES.get(name) or FAMILIES["interleaved" if SEPARATOR in name else family_of(name)]
