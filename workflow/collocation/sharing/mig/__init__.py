"""mig: each member has a hardware partition of the card; what it reports of it is the evidence.

The members are told the UUID of a MIG device, and say on which they found themselves, and of how
many SMs. Under mig_mps, members share a MIG device as clients of an MPS daemon of its own.

layout plans, pure; card reads a card's MIG state and changes it for a cell; restore puts back what
was found, also after a kill; nvml asks NVIDIA's library.

Experimental: all this ran on a simulated card (tests/fakes), and reading on an H200; no card was
switched or divided by it yet.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import evidence, mps, mps_daemon
from workflow.collocation.sharing.base import METHODS, Method, Sharing, register
from workflow.collocation.sharing.evidence import NotInForce, Place, Report, Unsupported, called
from workflow.collocation.sharing.mig import card, nvml
from workflow.collocation.sharing.mig.card import Seat, Seats, divided, read, wrong_mode
from workflow.collocation.sharing.mig.layout import Layout, plan


@dataclass(frozen=True)
class Mig(Method):
    """slice: what each member gets; None: the best that fits, or what it names in a mix. shared:
    compute instances of one GPU instance. served: members share instances as clients of MPS.
    """

    slice: str | None = None
    shared: bool = False
    served: bool = False

    family = "mig"
    parts = True
    experimental = "MIG is experimental: it has divided a simulated card only"

    def refusal(self, spec: dict, device: Device | None, switch: bool = False) -> str | None:
        if device is None:
            return "MIG needs an NVIDIA GPU, and there is none on this machine"
        try:
            table = read(device)
            if table is None:
                return f"{device.name} has no MIG"
            if reason := wrong_mode(device, True, switch):
                return reason
            reason = card.occupied(device, plan(spec, table), switch)
        except Unsupported as error:
            return str(error)
        except NotInForce:  # the card does not answer now: no reason that lasts
            return None
        return reason or (METHODS["mps"].refusal(spec, device) if self.served else None)

    @contextmanager
    def enter(
        self, spec: dict, device: Device, log: Path, switch: bool = False
    ) -> Iterator["Instances"]:
        layout = plan(spec, read(device))
        with ExitStack() as stack:
            devices = stack.enter_context(divided(device, layout, switch))
            sharing = Instances(self.name, device, layout, devices)
            for index, at in enumerate(dict.fromkeys(layout.seats) if self.served else ()):
                place = Place(devices[at].compute.uuid, devices[at].compute.sm_count)
                running = mps_daemon.running(place.uuid, log / "mps" / str(index))
                members = {m: spec["members"][m] for m, its in enumerate(layout.seats) if its == at}
                sharing.servers[place.uuid] = mps.Clients(
                    device, stack.enter_context(running), members, place, self.name
                )
            yield sharing


@dataclass
class Instances(Sharing):
    """devices: seat → MIG device, as applied. servers: MPS in a MIG device, by its UUID."""

    method: str
    device: Device
    layout: Layout
    devices: Seats
    servers: dict[str, mps.Clients] = field(default_factory=dict)
    names: set[int] = field(default_factory=set)  # PIDs under which NVML may list the members

    def seat(self, member: int) -> Seat:
        return self.devices[self.layout.seats[member]]

    def environment(self, member: int) -> dict[str, str]:
        uuid = self.seat(member).compute.uuid
        if uuid in self.servers:
            return self.servers[uuid].environment(member)
        return {"CUDA_VISIBLE_DEVICES": uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def release(self, pid: int) -> None:
        """Have its MPS server drop it; the other refuses, and without MPS nobody is harmed."""
        for server in self.servers.values():
            server.release(pid)

    def own_pids(self) -> set[int]:
        return self.names.union(*(server.own_pids() for server in self.servers.values()))

    def instances(self) -> dict[str, int | None]:
        parts = self.layout.parts
        return {
            f"gi:{seat.instance.id}": parts[at[0]].profile.sm_count
            for at, seat in self.devices.items()
        }

    def entity(self, member: int) -> str:
        return f"gi:{self.seat(member).instance.id}"

    def witness(self, reports: dict[int, Report]) -> dict:
        pids = [report.pid for report in reports.values()]
        self.names |= evidence.names_of(pids)
        card.require_unchanged(self.device, self.layout, self.devices)
        for member, report in reports.items():
            self._require_seat(member, report)
        served = {}
        for uuid, server in self.servers.items():
            clients = {m: r for m, r in reports.items() if self.seat(m).compute.uuid == uuid}
            if clients:  # where all were lost before they had a context, there is no server
                served[uuid] = server.witness(clients)
        listed = self.device.processes()
        if not self.servers:
            evidence.require_no_clients(self.method, reports, listed)
        agrees = self._nvml_agrees(reports, [facts["server"] for facts in served.values()])
        told = bool(reports) and None not in [report.sm_count for report in reports.values()]
        return {
            "verified": (told and all(facts["verified"] for facts in served.values())) or None,
            "layout": str(self.layout),
            "members": {member: self._facts(member, report) for member, report in reports.items()},
            "compute_profiles": {s.instance.name: s.instance.offers for s in self.devices.values()},
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
            "nvml_agrees": agrees,
        } | ({"mps": served} if served else {})

    def _require_seat(self, member: int, report: Report) -> None:
        instance, mine = self.seat(member).instance, self.seat(member).compute
        evidence.require_device(self.method, {member: report}, mine.uuid)
        if report.sm_count not in (None, mine.sm_count):
            raise NotInForce(
                f"{self.method}: {called(member, report)} can use {report.sm_count} SMs; its "
                f"instance {instance.name} ({mine.uuid}) has {mine.sm_count}"
            )

    def _nvml_agrees(self, reports: dict[int, Report], servers: list[int]) -> bool | None:
        """Whether NVML lists every member on its instance, and nobody else on the card; None where
        it does not show the PIDs that members have here. Raises NotInForce if it says otherwise.
        """
        try:
            residents = nvml.residents(self.device)
        except pynvml.NVMLError:
            return None
        pids = [report.pid for report in reports.values()]
        if not evidence.names_of(pids) & residents.keys():
            return None
        if absent := evidence.absent(reports, residents):
            raise NotInForce(f"{self.method}: {absent} not among NVML's processes on the card")
        for member, report in reports.items():
            seat = self.seat(member).instance.id, self.seat(member).compute.id
            there = {residents[pid] for pid in evidence.known_as(report.pid) & residents.keys()}
            if seat not in there:
                raise NotInForce(
                    f"{self.method}: NVML lists {called(member, report)} on another instance than "
                    f"{seat[0]}/{seat[1]} (GPU/compute): "
                    + ", ".join(f"{gpu_instance}/{compute}" for gpu_instance, compute in there)
                )
        evidence.require_alone(self.device, [*servers, *pids])
        return True

    def _facts(self, member: int, report: Report) -> dict:
        instance, mine = self.seat(member).instance, self.seat(member).compute
        return {
            "pid": report.pid,
            "mig_uuid": report.device_uuid,
            "gpu_instance": instance.id,
            "compute_instance": mine.id,
            "profile": instance.name,
            "placement": f"{instance.start}:{instance.size}",
            "memory_mib": mine.memory_mib,
            "sm_planned": mine.sm_count,
            "sm_reported": report.sm_count,
        }


register(
    Mig("mig"),
    *(Mig(f"mig_{slice}", slice=slice) for slice in ("7g", "4g", "3g", "2g", "1g", "1g2x")),
    Mig("mig_shared", shared=True),
)
