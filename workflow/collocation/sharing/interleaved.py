"""Conditions of a cell: sets of members under methods of their own, which run interleaved.

Such a cell's method is named after its conditions, "alone-naive-mps". Plain members and clients of
one private MPS daemon may be on a card together; each condition is proven for its own members.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import evidence, streams
from workflow.collocation.sharing.base import Method, named, register
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study.cell import CellSpec, MemberSpec
from workflow.collocation.study.names import STREAMS, WITHOUT_MPS, Condition, list_conditions


class Interleaved(Method):
    """`conditions`: members of each one. `served`: the clients, where a condition has some; all
    others are `plain`, of which those that are `joined` are jobs of one process.
    """

    family = "interleaved"

    def __init__(self, spec: CellSpec, device: Device | None):
        super().__init__(spec, device)
        self.conditions = {condition.name: [*own] for condition, own in self._conditions()}
        self.joined = {m for m, method in enumerate(spec.methods) if method == STREAMS}
        clients = {
            m: spec.members[m] for m, its in enumerate(spec.methods) if its not in WITHOUT_MPS
        }
        of_mps = spec.model_copy(update={"method": "mps"})
        self.plain = Naive(spec, device)
        self.served = Mps(of_mps, device, clients) if clients else None

    def refusal(self) -> str | None:
        for condition, members in self._conditions():
            part = {"method": condition.method, "members": tuple(members.values())}
            own = named(condition.method)(self.spec.model_copy(update=part), self.device)
            if reason := own.refusal():
                return reason
        return None

    def processes(self) -> int:
        separate = self.spec.methods.count("naive")
        return separate + bool(self.joined) + (self.served is not None)

    def entered(self, log: Path) -> AbstractContextManager:
        return self.served.entered(log) if self.served else nullcontext()

    def environment(self, member: int) -> dict[str, str]:
        queues = streams.QUEUES if member in self.joined else {}
        return self._of(member).environment(member) | queues

    def witness(self, reports: dict[int, Report]) -> dict:
        """What each method says of its own members: plain ones are no clients of the daemon."""
        own = {m: report for m, report in reports.items() if m in self.joined}
        found = self._separate(reports)
        return found | {"streams": streams.own_streams(own, self.device)} if own else found

    def _separate(self, reports: dict[int, Report]) -> dict:
        if self.served is None:
            return self.plain.witness(reports)
        plain = {m: report for m, report in reports.items() if self._of(m) is self.plain}
        clients = {m: report for m, report in reports.items() if m not in plain}
        evidence.require_device("naive", plain, self.device.uuid, self.device)
        found = self.served.witness(clients, plain)
        if len(self.served.clients) == len(self.spec.members):
            return found
        other = self.plain.facts(plain, self.served.listed)
        both = found["verified"] and other["verified"]
        return {"verified": both or None, "mps": found, "naive": other}

    def own_pids(self) -> set[int]:
        return self.plain.names | (self.served.names if self.served else set())

    def release(self, pid: int) -> None:
        if self.served and pid not in self.plain.names:
            self.served.release(pid)

    def _of(self, member: int) -> Method:
        return self.served if self.served and member in self.served.clients else self.plain

    def _conditions(self) -> Iterator[tuple[Condition, dict[int, MemberSpec]]]:
        """Each condition and its members, by their index; a part of a set has none of its own."""
        members = dict(enumerate(self.spec.members))
        found = list_conditions(self.name, [member.workload for member in members.values()])
        for index, condition in enumerate(found):
            own = {m: its for m, its in members.items() if its.condition == index}
            if not own:
                sets = {n for n, of in enumerate(found) if of.method == condition.method}
                sets -= {n for n, of in enumerate(found) if of.alone_workload}
                alike = [(m, its) for m, its in members.items() if its.condition in sets]
                own = dict(alike[: condition.count])
            yield condition, own


register(Interleaved)
