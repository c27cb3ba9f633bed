"""streams: all jobs in one process, each on a CUDA stream of its own (models/streams.py)."""

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.base import register
from workflow.collocation.sharing.evidence import NotInForce, Report, Reports, called
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study.names import STREAMS

# Hardware queues; by default 8, and streams that share one wait for each other.
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


class Streams(Naive):
    family = STREAMS

    def processes(self) -> int:
        return 1

    def environment(self, member: int) -> dict[str, str]:
        return super().environment(member) | QUEUES

    def witness(self, reports: dict[int, Report]) -> dict:
        found = super().witness(reports)
        return found | {"streams": own_streams(reports, self.device)}


def own_streams(reports: Reports, device: Device | None) -> dict[int, int | None]:
    """The stream of each member. Raises NotInForce unless all are of one process, and on a GPU no
    two on one stream.
    """
    found = {member: report.stream for member, report in reports.items()}
    if len(pids := {report.pid for report in reports.values()}) > 1:
        raise NotInForce(f"{STREAMS}: its jobs are in {len(pids)} processes, not in one")
    if device is not None:
        for member, report in reports.items():
            if not report.stream or list(found.values()).count(report.stream) > 1:
                who = called(member, report)
                raise NotInForce(f"{STREAMS}: {who} has no CUDA stream of its own")
    return found


register(Streams)
