"""The interface of a method: one class says how the jobs of a cell share a GPU.

The hooks, in the order in which a cell calls them: `sweep` and `recover` undo what a killed run
left, `refuse` says why the method cannot run, `enter` sets it up, `evidence` proves that it is in
force, `leave` tears it down.
"""

# ruff: noqa: B027 (a hook does nothing unless a method overrides it)

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study.cell import CellSpec


class Method(ABC):
    """How the members (the jobs' processes) of one cell share its GPU; device: None on a CPU."""

    family: ClassVar[str]  # the method's name, and the first word of its variants' names
    one_process: ClassVar[bool] = False  # all members are threads of one process
    experimental: ClassVar[str | None] = None  # why its results are not to be trusted yet

    def __init__(self, spec: CellSpec, device: Device | None):
        self.spec, self.device, self.name = spec, device, spec.method
        self.pids: set[int] = set()  # of members and servers, known once evidence was taken

    @cached_property
    def cuda_name(self) -> str:
        """The card's name for members; asked for once, and not for each of them."""
        return self.device.cuda_name()

    @classmethod
    def sweep(cls) -> None:
        """End the processes that killed runs of this user left. Raises GpuBusy if they live on."""

    @classmethod
    def recover(cls, device: Device) -> None:
        """Put a card back that a killed run of this user left changed.

        Raises GpuBusy if others compute on it, NotInForce if it does not succeed.
        """

    def refuse(self) -> str | None:
        """Why this method cannot run this cell on this card, or None. Changes nothing.

        May raise Unsupported instead, or NotInForce where the card does not answer.
        """
        return None

    @classmethod
    def keeps_others_out(cls, device: Device) -> str | None:
        """Why no other method can use the card as it is, or None. Changes nothing."""
        return None

    def process_count(self) -> int:
        """How many processes of the cell CUDA sees on the card at once."""
        return 1

    def enter(self, log_folder: Path) -> None:
        """Set the method up for a cell that it does not refuse. Raises NotInForce or Unsupported.

        `log_folder` takes what the method's own programs print.
        """

    def leave(self) -> None:
        """Tear down what `enter` set up, also where it failed half way.

        Raises NotInForce where something stays.
        """

    @abstractmethod
    def environment(self, member: int) -> dict[str, str]:
        """Variables that the member's process has before its first CUDA call."""

    @abstractmethod
    def evidence(self, reports: dict[int, Report]) -> dict:
        """Prove that the method is in force for the members of these reports.

        Called before the window and again after it. The dict's `verified` is True, or None where
        nobody could tell. Raises NotInForce, with the sentence that the cell fails with, or
        GpuBusy.
        """

    def release(self, pid: int) -> None:
        """Drop a member that is about to be killed, so that its death harms no other member.

        Never raises, and takes a few seconds at most.
        """

    def nvml_pids(self) -> set[int]:
        """PIDs under which NVML may list members and servers, as far as evidence showed them."""
        return self.pids

    def instances(self) -> dict[str, int | None]:
        """SMs of each GPU instance in use under MIG, by the name that telemetry has for it."""
        return {}

    def entity_of(self, member: int) -> str:
        """Where the member runs, as telemetry names it: "gpu", or a GPU instance ("gi:1")."""
        return "gpu"
