"""mig: each member has a hardware partition of the card; what it reports of it is the evidence.

mig_layout plans, pure; mig_card divides a card for a cell and puts it back, also after a kill;
mig_nvml asks NVIDIA's library.

Experimental: all this ran on a simulated card (tests/fakes), and reading on an H200; no card was
divided by it yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import evidence, mig_card
from workflow.collocation.sharing.base import Method, Sharing, register
from workflow.collocation.sharing.evidence import NotInForce, Report, called
from workflow.collocation.sharing.mig_card import Seat, Seats
from workflow.collocation.sharing.mig_layout import Layout, plan
from workflow.collocation.spec.cell import CellSpec


@dataclass(frozen=True)
class Mig(Method):
    family = "mig"
    experimental = "MIG is experimental: it has divided a simulated card only"

    def refusal(self, spec: CellSpec, device: Device | None) -> str | None:
        if device is None:
            return "MIG needs an NVIDIA GPU, and there is none on this machine"
        card = mig_card.read(device)
        if card is None:
            return f"{device.name} has no MIG"
        return mig_card.blocked(device, plan(spec, card))

    @contextmanager
    def enter(self, spec: CellSpec, device: Device, log: Path) -> Iterator["Instances"]:
        layout = plan(spec, mig_card.read(device))
        with mig_card.divided(device, layout) as devices:
            yield Instances(self.name, device, layout, devices)


@dataclass
class Instances(Sharing):
    """devices: seat → MIG device, as applied."""

    method: str
    device: Device
    layout: Layout
    devices: Seats
    names: set[int] = field(default_factory=set)  # PIDs under which NVML may list the members

    def seat(self, member: int) -> Seat:
        return self.devices[self.layout.seats[member]]

    def environment(self, member: int) -> dict[str, str]:
        uuid = self.seat(member).compute.uuid
        return {"CUDA_VISIBLE_DEVICES": uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def own_pids(self) -> set[int]:
        return self.names

    def instances(self) -> dict[str, int | None]:
        parts = self.layout.parts
        return {
            f"gi:{seat.instance.id}": parts[at[0]].profile.sm_count
            for at, seat in self.devices.items()
        }

    def entity(self, member: int) -> str:
        return f"gi:{self.seat(member).instance.id}"

    def witness(self, reports: dict[int, Report]) -> dict:
        self.names = self.names.union(*map(evidence.processes_of, reports.values()))
        mig_card.require_unchanged(self.device, self.layout, self.devices)
        members = {member: self._facts(member, report) for member, report in reports.items()}
        listed = evidence.require_members(self.method, self.device, reports)
        told = bool(reports) and None not in [report.sm_count for report in reports.values()]
        return {
            "verified": told or None,
            "layout": str(self.layout),
            "members": members,
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
        }

    def _facts(self, member: int, report: Report) -> dict:
        """What is evidence of this member's seat; raises NotInForce if it is not in it."""
        instance, mine = self.seat(member).instance, self.seat(member).compute
        evidence.require_device(self.method, {member: report}, mine.uuid)
        if report.sm_count not in (None, mine.sm_count):
            raise NotInForce(
                f"{self.method}: {called(member, report)} can use {report.sm_count} SMs; its "
                f"instance {instance.profile.name} ({mine.uuid}) has {mine.sm_count}"
            )
        return {
            "pid": report.pid,
            "mig_uuid": report.device_uuid,
            "gpu_instance": instance.id,
            "compute_instance": mine.id,
            "profile": instance.profile.name,
            "placement": f"{instance.start}:{instance.size}",
            "memory_mib": mine.memory_mib,
            "sm_planned": mine.sm_count,
            "sm_reported": report.sm_count,
        }


register(Mig)
