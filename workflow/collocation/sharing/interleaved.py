"""Conditions of a cell: sets of members under methods of their own, which run interleaved.

Such a cell's method is named after its conditions, "alone-naive-mps". Plain members and clients of
one private MPS daemon may be on a card together; each condition is proven for its own members.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import evidence, mps, mps_daemon, naive, streams
from workflow.collocation.sharing.base import Method, Sharing, named, register
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.spec.cell import CellSpec, MemberSpec
from workflow.collocation.spec.names import PLAIN, STREAMS, Condition, conditions


@dataclass(frozen=True)
class Interleaved(Method):
    family = "interleaved"

    def refusal(self, spec: CellSpec, device: Device | None) -> str | None:
        for condition, members in self._conditions(spec):
            part = {"method": condition.method, "members": tuple(members.values())}
            if reason := named(condition.method).refusal(spec.model_copy(update=part), device):
                return reason
        return None

    def processes(self, spec: CellSpec) -> int:
        methods = spec.methods
        plain = methods.count("naive") + (STREAMS in methods)
        return plain + any(method not in PLAIN for method in methods)

    @contextmanager
    def enter(self, spec: CellSpec, device: Device | None, log: Path) -> Iterator["Together"]:
        members = {condition.name: list(own) for condition, own in self._conditions(spec)}
        clients = {m: spec.members[m] for m, its in enumerate(spec.methods) if its not in PLAIN}
        daemon = mps_daemon.running(device.uuid, log / "mps") if clients else nullcontext()
        with daemon as running:
            served = mps.Clients(device, running, clients) if clients else None
            joined = frozenset(m for m, its in enumerate(spec.methods) if its == STREAMS)
            yield Together(naive.Plain(device), served, members, joined)

    def _conditions(self, spec: CellSpec) -> Iterator[tuple[Condition, dict[int, MemberSpec]]]:
        """Each condition and its members, by their index; a part of a set has none of its own."""
        names = [member.workload for member in spec.members]
        found = conditions(self.name, names)
        for index, condition in enumerate(found):
            own = {m: its for m, its in enumerate(spec.members) if its.condition == index}
            if not own:
                own = {
                    m: its
                    for m, its in enumerate(spec.members)
                    if found[its.condition].method == condition.method
                    and not found[its.condition].job
                }
                own = dict(list(own.items())[: condition.jobs])
            yield condition, own


@dataclass
class Together(Sharing):
    """`conditions`: members of each one. `served`: the clients, where a condition has some.
    `joined`: members that are jobs of one process.
    """

    plain: naive.Plain
    served: mps.Clients | None
    conditions: dict[str, list[int]]
    joined: frozenset[int] = frozenset()

    def environment(self, member: int) -> dict[str, str]:
        queues = streams.QUEUES if member in self.joined else {}
        return self._of(member).environment(member) | queues

    def witness(self, reports: dict[int, Report]) -> dict:
        """What each method says of its own members: plain ones are no clients of the daemon."""
        own = {m: report for m, report in reports.items() if m in self.joined}
        found = self._separate(reports)
        return found | {"streams": streams.own_streams(own, self.plain.device)} if own else found

    def _separate(self, reports: dict[int, Report]) -> dict:
        if self.served is None:
            return self.plain.witness(reports)
        plain = {m: report for m, report in reports.items() if self._of(m) is self.plain}
        clients = {m: report for m, report in reports.items() if m not in plain}
        evidence.require_device("naive", plain, self.plain.device.uuid, self.plain.device)
        found = self.served.witness(clients, plain)
        if set(self.served.members) == set().union(*self.conditions.values()):
            return found
        other = self.plain.facts(plain, self.served.listed)
        both = found["verified"] and other["verified"]
        return {"verified": both or None, "mps": found, "naive": other}

    def own_pids(self) -> set[int]:
        return self.plain.own_pids() | (self.served.own_pids() if self.served else set())

    def release(self, pid: int) -> None:
        if self.served and pid not in self.plain.names:
            self.served.release(pid)

    def _of(self, member: int) -> Sharing:
        return self.served if self.served and member in self.served.members else self.plain


register(Interleaved)
