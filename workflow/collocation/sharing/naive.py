"""naive: separate processes on one GPU, time-sliced by the driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import evidence
from workflow.collocation.sharing.base import Method, Sharing, register
from workflow.collocation.sharing.evidence import Listed, Report, Reports
from workflow.collocation.spec.cell import CellSpec


@dataclass(frozen=True)
class Naive(Method):
    family = "naive"

    def processes(self, spec: CellSpec) -> int:
        return len(spec.members)

    @contextmanager
    def enter(self, spec: CellSpec, device: Device | None, log: Path) -> Iterator["Plain"]:
        yield Plain(device)


@dataclass
class Plain(Sharing):
    device: Device | None
    names: set[int] = field(default_factory=set)  # PIDs of members, as far as witnessed

    def environment(self, member: int) -> dict[str, str]:
        if self.device is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {"CUDA_VISIBLE_DEVICES": self.device.uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def own_pids(self) -> set[int]:
        return self.names

    def witness(self, reports: dict[int, Report]) -> dict:
        if self.device is None:
            members = sorted({report.pid for report in reports.values()})
            return {"verified": True, "device": "cpu", "members": members}
        evidence.require_device("naive", reports, self.device.uuid, self.device)
        return self.facts(reports, evidence.require_members("naive", self.device, reports))

    def facts(self, reports: Reports, listed: Listed) -> dict:
        """The evidence, with NVML's lists, which hold the members and nobody else."""
        members = sorted({report.pid for report in reports.values()})
        self.names = self.names.union(*map(evidence.processes_of, reports.values()))
        told = bool(members and listed["compute"]) and listed["mps"] is not None
        return {
            "verified": told or None,
            "members": members,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            **listed,
        }


register(Naive)
