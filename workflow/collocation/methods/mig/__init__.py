"""mig: each member has a hardware partition of the card; what it reports of it is the evidence.

The members are told the UUID of a MIG device, and say on which they found themselves, and of how
many SMs. Under mig_mps, members share a MIG device as clients of an MPS daemon of its own.

layout plans, pure; card reads a card's MIG state and changes it for a cell; restore puts back what
was found, also after a kill; nvml asks NVIDIA's library. Others need what `__all__` names.

Experimental: all this ran on a simulated card (tests/fakes), and reading on an H200; no card was
switched or divided by it yet.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.nvidia import mig_enabled
from workflow.collocation.methods import evidence, mps, mps_daemon
from workflow.collocation.methods.base import METHODS, Method, Sharing, register
from workflow.collocation.methods.evidence import NotInForce, Place, Report, Unsupported, called
from workflow.collocation.methods.mig import card, nvml
from workflow.collocation.methods.mig.card import Seat, Seats, in_mode, read, wrong_mode
from workflow.collocation.methods.mig.layout import Layout, layouts
from workflow.collocation.methods.mig.nvml import how_to_switch
from workflow.collocation.methods.mig.restore import recover

__all__ = ["Mig", "how_to_switch", "in_mode", "read", "recover", "wrong_mode"]


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
            # An older driver lists profiles once MIG mode is on, and that is for later then.
            known = table.profiles or mig_enabled(device)
            ways = layouts(spec, table) if known else []
            reason = wrong_mode(device, True, switch) or nvml.missing_rights()
            if not (reason or switch):
                reason = card.occupied(device, ways)
        except Unsupported as error:
            return str(error)
        except NotInForce:  # the card does not answer now: no reason that lasts
            return None
        return reason or (METHODS["mps"].refusal(spec, device) if self.served else None)

    @contextmanager
    def enter(
        self, spec: dict, device: Device, log: Path, switch: bool = False
    ) -> Iterator["Instances"]:
        ways = layouts(spec, read(device))
        with ExitStack() as stack:
            layout, devices = stack.enter_context(card.applied(device, ways, switch))
            seats = {member: devices[seat] for member, seat in enumerate(layout.seats)}
            pipe = stack.enter_context(evidence.no_daemon())
            sharing = Instances(self.name, device, layout, devices, seats, pipe)
            for index, seat in enumerate(dict.fromkeys(seats.values()) if self.served else ()):
                place = Place(seat.compute.uuid, seat.compute.sm_count)
                running = mps_daemon.running(place.uuid, log / "mps" / str(index))
                daemon = stack.enter_context(running)
                members = {m: spec["members"][m] for m in seats if seats[m] == seat}
                served = mps.Clients(device, daemon, members, place, self.name)
                sharing.servers[place.uuid] = served
            yield sharing


@dataclass
class Instances(Sharing):
    """devices: seat → MIG device, as applied. seats: member → its MIG device. servers: MPS in a MIG
    device, by its UUID.
    """

    method: str
    device: Device
    layout: Layout
    devices: Seats
    seats: dict[int, Seat]
    pipe: str
    servers: dict[str, mps.Clients] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)  # → member, as far as witnessed
    names: set[int] = field(default_factory=set)  # PIDs under which NVML may list them

    def environment(self, member: int) -> dict[str, str]:
        uuid = self.seats[member].compute.uuid
        if uuid in self.servers:
            return self.servers[uuid].environment(member)
        return {"CUDA_VISIBLE_DEVICES": uuid, evidence.PIPE_FOLDER: self.pipe}

    def release(self, pid: int) -> None:
        """Have the member's MPS server drop it; a plain process in an instance harms nobody."""
        member = self.pids.get(pid)
        for uuid, server in self.servers.items():
            if member is None or self.seats[member].compute.uuid == uuid:
                server.release(pid)

    def own_pids(self) -> set[int]:
        return self.names.union(*(server.own_pids() for server in self.servers.values()))

    def instances(self) -> dict[str, int | None]:
        parts = {seat.instance.id: self.layout.parts[i] for (i, _), seat in self.devices.items()}
        return {f"gi:{gi}": part.profile.sm_count for gi, part in sorted(parts.items())}

    def entity(self, member: int) -> str:
        return f"gi:{self.seats[member].instance.id}"

    def witness(self, reports: dict[int, Report]) -> dict:
        self.pids |= {report.pid: member for member, report in reports.items()}
        self.names |= evidence.names_of(self.pids)
        card.require_unchanged(self.device, self.layout, self.devices)
        for member, report in reports.items():
            self._require_seat(member, report)
        served = {}
        for uuid, server in self.servers.items():
            clients = {m: r for m, r in reports.items() if self.seats[m].compute.uuid == uuid}
            if clients:  # where all were lost before they had a context, there is no server
                served[uuid] = server.witness(clients)
        listed = self.device.processes()
        if not self.servers:
            evidence.require_no_clients(self.method, reports, listed)
        agrees = self._nvml_agrees(reports, [facts["server"] for facts in served.values()])
        told = bool(reports) and all(facts["verified"] for facts in served.values())
        for member, report in reports.items():
            told = told and report.sm_count == self.seats[member].compute.sm_count
        return {
            "verified": told or None,
            "layout": str(self.layout),
            "members": {member: self._facts(member, report) for member, report in reports.items()},
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
            "nvml_agrees": agrees,
            "unreadable_daemons": evidence.unreadable_daemons(),
        } | ({"mps": served} if served else {})

    def _require_seat(self, member: int, report: Report) -> None:
        instance, mine = self.seats[member].instance, self.seats[member].compute
        evidence.require_device(self.method, {member: report}, mine.uuid)
        # Between busy neighbours, a probe of where blocks come to lie sees too few.
        few = report.sm_source == "residency" and (report.sm_count or 0) < mine.sm_count
        if report.sm_count not in (None, mine.sm_count) and not few:
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
            seat = self.seats[member].instance.id, self.seats[member].compute.id
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
        instance, mine = self.seats[member].instance, self.seats[member].compute
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
    Mig("mig", most=7),
    Mig("mig_7g", most=1, slice="7g"),
    Mig("mig_4g", most=1, slice="4g"),
    Mig("mig_3g", most=1, slice="3g"),
    Mig("mig_2g", most=1, slice="2g"),
    Mig("mig_1g", most=1, slice="1g"),
    Mig("mig_1g2x", most=4, slice="1g2x"),  # a GPU has memory for 4 that have the double of it
    Mig("mig_shared", most=7, shared=True),
    Mig("mig_mps", least=3, served=True),  # with fewer copies, nobody shares an instance
)
