"""naive: separate processes on one GPU, time-sliced by the driver."""

from workflow.collocation.sharing import evidence
from workflow.collocation.sharing.base import Method, register
from workflow.collocation.sharing.evidence import Listed, Report, Reports


class Naive(Method):
    family = "naive"

    def processes(self) -> int:
        return len(self.spec.members)

    def environment(self, member: int) -> dict[str, str]:
        if self.device is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {"CUDA_VISIBLE_DEVICES": self.device.uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

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
