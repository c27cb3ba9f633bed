"""Method of interleaved cells: several sets of jobs in one cell, which train in turns.

Each set is a condition with a method of its own, and the cell's method is named after them:
"alone-naive-mps". Plain members (clients of no daemon) and clients of one private MPS daemon may be
on a card together; each condition is proven for its own members.
"""

from collections.abc import Iterator
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import streams
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import Report, require_device
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study.cell import CellSpec, MemberSpec
from workflow.collocation.study.names import INTERLEAVED, WITHOUT_MPS, Condition, list_conditions


class Interleaved(Method):
    """Sets of jobs that take turns, under different methods.

    conditions: the members of each condition, by its name. plain: the method of members that are no
    clients of MPS. mps: the method of those that are, None without any. in_one_process: the members
    that run on CUDA streams of one process.
    """

    family = INTERLEAVED

    def __init__(self, spec: CellSpec, device: Device | None):
        super().__init__(spec, device)
        self.conditions = {condition.name: [*members] for condition, members in self._conditions()}
        methods = dict(enumerate(spec.methods))
        self.in_one_process = {m for m, name in methods.items() if name == streams.Streams.family}
        clients = {m: spec.members[m] for m, name in methods.items() if name not in WITHOUT_MPS}
        self.plain = Naive(spec, device)
        mps_spec = spec.model_copy(update={"method": Mps.family})
        self.mps = Mps(mps_spec, device, clients) if clients else None

    def refuse(self) -> str | None:
        return self.mps.refuse() if self.mps else None

    def process_count(self) -> int:
        separate = self.spec.methods.count(Naive.family)
        return separate + bool(self.in_one_process) + (self.mps is not None)

    def enter(self, log_folder: Path) -> None:
        if self.mps:
            self.mps.enter(log_folder)

    def leave(self) -> None:
        if self.mps:
            self.mps.leave()

    def environment(self, member: int) -> dict[str, str]:
        queues = streams.HARDWARE_QUEUES if member in self.in_one_process else {}
        method = self.mps if self._is_client(member) else self.plain
        return method.environment(member) | queues

    def evidence(self, reports: dict[int, Report]) -> dict:
        """What each method proves of its own members: plain ones are no clients of the daemon."""
        proof = self._evidence_of_processes(reports)
        joined = {m: report for m, report in reports.items() if m in self.in_one_process}
        if joined:
            proof = proof | {"streams": streams.require_own_streams(joined, self.device)}
        return proof

    def _evidence_of_processes(self, reports: dict[int, Report]) -> dict:
        if self.mps is None or not self._has_clients(reports):
            return self.plain.evidence(reports)
        plain = {m: report for m, report in reports.items() if not self._is_client(m)}
        clients = {m: report for m, report in reports.items() if self._is_client(m)}
        require_device("naive", plain, self.device.uuid, self.device)
        of_clients = self.mps.evidence(clients, plain)
        if not plain or len(self.mps.clients) == len(self.spec.members):
            return of_clients
        of_plain = self.plain.facts(plain, self.mps.listed)
        verified = of_clients["verified"] and of_plain["verified"]
        return {"verified": verified or None, "mps": of_clients, "naive": of_plain}

    def nvml_pids(self) -> set[int]:
        return self.plain.pids | (self.mps.pids if self.mps else set())

    def release(self, pid: int) -> None:
        if self.mps and pid not in self.plain.pids:
            self.mps.release(pid)

    def _has_clients(self, reports: dict[int, Report]) -> bool:
        """Whether the daemon has started a server, which it does for its first client."""
        return self.mps.server is not None or any(map(self._is_client, reports))

    def _is_client(self, member: int) -> bool:
        return self.mps is not None and member in self.mps.clients

    def _conditions(self) -> Iterator[tuple[Condition, dict[int, MemberSpec]]]:
        """Each condition with its members, by their index.

        A condition that is a part of another's set, as `2xmps` is of `mps`, has the first members
        of that set.
        """
        members = dict(enumerate(self.spec.members))
        workloads = [member.workload for member in members.values()]
        every = list_conditions(self.name, workloads)
        for index, condition in enumerate(every):
            chosen = {m: member for m, member in members.items() if member.condition == index}
            if not chosen:
                sets = [n for n, other in enumerate(every) if _same_set(other, condition)]
                alike = [(m, member) for m, member in members.items() if member.condition in sets]
                chosen = dict(alike[: condition.count])
            yield condition, chosen


def _same_set(whole: Condition, part: Condition) -> bool:
    return whole.method == part.method and not whole.alone_workload
