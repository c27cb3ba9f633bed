"""Method `naive`: separate processes on one GPU, time-sliced by the driver."""

from workflow.collocation.sharing import evidence
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import ProcessLists, Report, Reports


class Naive(Method):
    """Each job is a process of its own, and nothing is set up."""

    family = "naive"

    def process_count(self) -> int:
        return len(self.spec.members)

    def environment(self, member: int) -> dict[str, str]:
        if self.device is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {
            "CUDA_VISIBLE_DEVICES": self.cuda_name,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            evidence.PIPE_FOLDER: evidence.NO_DAEMON,
        }

    def evidence(self, reports: dict[int, Report]) -> dict:
        if self.device is None:
            members = sorted({report.pid for report in reports.values()})
            return {"verified": True, "device": "cpu", "members": members}
        evidence.require_device("naive", reports, self.device.uuid, self.device)
        listed = evidence.require_members("naive", self.device, reports)
        return self.facts(reports, listed)

    def facts(self, reports: Reports, listed: ProcessLists) -> dict:
        """The record of the evidence, from NVML's process lists, which hold nobody else."""
        members = sorted({report.pid for report in reports.values()})
        for report in reports.values():
            self.pids |= evidence.processes_of(report)
        nvml_answers = bool(listed["compute"]) and listed["mps"] is not None
        return {
            "verified": (bool(members) and nvml_answers) or None,
            "members": members,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            **listed,
        }
