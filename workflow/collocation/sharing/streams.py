"""Method `streams`: all jobs in one process, each on its own CUDA stream (models/streams.py)."""

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.evidence import NotInForce, Report, Reports, describe
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study.names import STREAMS

# CUDA's hardware queues: 8 by default, and streams that share one wait for each other.
HARDWARE_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


class Streams(Naive):
    """All jobs are threads of one process, with a CUDA stream each."""

    family = STREAMS
    one_process = True

    def process_count(self) -> int:
        return 1

    def environment(self, member: int) -> dict[str, str]:
        return super().environment(member) | HARDWARE_QUEUES

    def evidence(self, reports: dict[int, Report]) -> dict:
        separate = super().evidence(reports)
        return separate | {"streams": require_own_streams(reports, self.device)}


def require_own_streams(reports: Reports, device: Device | None) -> dict[int, int | None]:
    """The CUDA stream handle of each member, by member.

    Raises NotInForce if they are in several processes, or if, on a GPU, one has no stream of its
    own.
    """
    streams = {member: report.stream for member, report in reports.items()}
    pids = {report.pid for report in reports.values()}
    if len(pids) > 1:
        raise NotInForce(f"{STREAMS}: its jobs are in {len(pids)} processes, not in one")
    if device is None:
        return streams
    handles = list(streams.values())
    for member, report in reports.items():
        if not report.stream or handles.count(report.stream) > 1:
            raise NotInForce(f"{STREAMS}: {describe(member, report)} has no CUDA stream of its own")
    return streams
