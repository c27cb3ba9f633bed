"""How members share a GPU: one module a method, one interface.

`refusal` says, without changing anything, why a method cannot run here. `enter` gives a context
manager; inside it the method is set up, and on every way out it is torn down. What it yields is a
`Sharing`: the environment each member starts with, and the evidence that the method is in force.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from workflow.collocation.gpu import Device
from workflow.collocation.methods import mig, mig_card, mig_restore, mps, mps_daemon, naive
from workflow.collocation.methods.evidence import Report, Unsupported, refuse_company


class Sharing(Protocol):
    def environment(self, member: int) -> dict[str, str]:
        """What the member finds in its environment, before its first CUDA call."""

    def witness(self, reports: dict[int, Report]) -> dict:
        """Evidence that the method is in force for these members, by what they report.

        Raises NotInForce, with the sentence that the cell fails with.
        """

    def release(self, pid: int) -> None:
        """Before a member is killed: have the method drop it, so that no neighbour is harmed.

        Never raises, and takes a few seconds at most.
        """

    def own_pids(self) -> set[int]:
        """PIDs under which NVML may list the members, and servers of theirs, as far as witnessed.

        To be asked, as the next, where there is a GPU.
        """

    def instances(self) -> dict[str, int | None]:
        """The GPU instances in use under MIG, as telemetry calls them ("gi:1"), and their SMs."""

    def entity(self, member: int) -> str:
        """Where the member runs, as telemetry calls it: "gpu", or a GPU instance."""


def _room(method: str):
    return {"naive": naive, "mps": mps, "mig": mig}[method.split("_")[0]]


def refusal(spec: dict, device: Device | None, switch: bool = False) -> str | None:
    """Why the cell's method cannot run on this machine, or None. Reads only.

    switch: the card's MIG mode and layout may be changed for a cell.
    """
    room = _room(spec["method"])
    if reason := room.refusal(spec, device, switch):
        return reason
    if device is None or room is mig:
        return None
    why = f", and {spec['method']} needs the whole card"
    return mig_card.wrong_mode(device, False, switch, why)


@contextmanager
def enter(spec: dict, device: Device | None, log: Path, switch: bool = False) -> Iterator[Sharing]:
    """Set the cell's method up; `log` is the folder for what the method's own programs print.

    To be entered by who holds the device's lock. Raises NotInForce or Unsupported; NotInForce, too,
    if afterwards the card could not be put back as it was.
    """
    room = _room(spec["method"])
    if device is None:
        with room.enter(spec, device, log, switch) as sharing:
            yield sharing
        return
    mps_daemon.sweep()  # a server that a killed run left would share the card with this one
    mig_restore.recover(device)  # and a layout that it left would not be the one found
    if reason := refusal(spec, device, switch):
        raise Unsupported(reason)
    refuse_company(device)
    with (
        mig_card.in_mode(device, on=room is mig, switch=switch),
        room.enter(spec, device, log, switch) as sharing,
    ):
        yield sharing
