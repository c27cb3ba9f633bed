"""How members share a GPU: one module a method, one interface.

`refusal` says, without touching the card, why a method cannot run here. `enter` gives a context
manager; inside it the method is set up, and on every way out it is torn down. What it yields is a
`Sharing`: the environment each member starts with, and the evidence that the method is in force.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from workflow.collocation.gpu import Device
from workflow.collocation.methods import mig, mps, mps_daemon, naive
from workflow.collocation.methods.evidence import refuse_company


class Sharing(Protocol):
    def environment(self, member: int) -> dict[str, str]:
        """What the member finds in its environment, before its first CUDA call."""

    def witness(self, pids: dict[int, int]) -> dict:
        """Evidence that the method is in force for these members ({member: pid}).

        Raises NotInForce, with the sentence that the cell fails with.
        """


def _room(method: str):
    return {"naive": naive, "mps": mps, "mig": mig}[method.split("_")[0]]


def refusal(spec: dict, device: Device | None) -> str | None:
    """Why the cell's method cannot run on this machine, or None. Reads only."""
    return _room(spec["method"]).refusal(spec, device)


def enter(spec: dict, device: Device | None, log: Path) -> AbstractContextManager[Sharing]:
    """Set the cell's method up; `log` is the folder for what the method's own programs print."""
    if device:
        mps_daemon.sweep()  # a server that a killed run left would share the card with this one
        refuse_company(device)
    return _room(spec["method"]).enter(spec, device, log)
