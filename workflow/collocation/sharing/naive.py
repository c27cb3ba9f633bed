"""naive: plain processes on one GPU, time-sliced by the driver."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.sharing import evidence
from workflow.collocation.sharing.base import Method, Sharing, register
from workflow.collocation.sharing.evidence import NotInForce, Report


@dataclass(frozen=True)
class Naive(Method):
    family = "naive"

    def processes(self, spec: dict) -> int:
        return len(spec["members"])

    @contextmanager
    def enter(
        self, spec: dict, device: gpu.Device | None, log: Path, switch: bool = False
    ) -> Iterator["Plain"]:
        yield Plain(device)


@dataclass
class Plain(Sharing):
    device: gpu.Device | None
    names: set[int] = field(default_factory=set)  # PIDs of members, as far as witnessed

    def environment(self, member: int) -> dict[str, str]:
        if self.device is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {"CUDA_VISIBLE_DEVICES": self.device.uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def own_pids(self) -> set[int]:
        return self.names

    def witness(
        self, reports: dict[int, Report], clients: Collection[int] = (), server: int | None = None
    ) -> dict:
        """clients, server: PIDs of an MPS daemon's, where another side of the cell has one. Its own
        list of clients has been seen.
        """
        members = sorted(report.pid for report in reports.values())
        if self.device is None:
            return {"verified": True, "device": "cpu", "members": members}
        evidence.require_device("naive", reports, self.device.uuid)
        others = {*clients, server} - {None}
        listed = self.device.processes()
        names = evidence.names_of(members)
        self.names |= names
        # In a container NVML may name the host's PIDs, or none: then it tells their number at most.
        comparable = bool(names & set(listed["compute"] or []))
        if members and not comparable:
            listed = evidence.require_counts("naive", self.device, members, clients)
        if comparable or not clients:
            evidence.require_no_clients("naive", reports, listed)
        if comparable:
            if absent := evidence.absent(reports, listed["compute"]):
                raise NotInForce(f"naive: {absent} not among NVML's processes {listed['compute']}")
            listed = evidence.require_alone(self.device, others.union(members))
        # So many processes, each member among them by its UUID: the list holds nobody else.
        there = len(members) + len(others)
        counted = bool(members) and len(listed["compute"] or []) == there
        told = listed["mps"] is not None and (comparable or counted)
        return {
            "verified": True if told else None,
            "members": members,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            **listed,
        }


# The second is the same under another name: what A/A measures.
register(Naive("naive"), Naive("naive_again"))
