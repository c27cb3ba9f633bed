"""Sides of a cell: sets of members under methods of their own, which share the card and take turns.

Such a cell's method is named after its sides, "alone-naive-mps". Plain members and clients of one
private MPS daemon may be on a card together; each side is proven for its own members.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.sharing import mps, mps_daemon, naive
from workflow.collocation.sharing.base import Method, Sharing, named
from workflow.collocation.sharing.evidence import Place, Report
from workflow.collocation.spec.names import PLAIN, Side, sides


@dataclass(frozen=True)
class Sides(Method):
    family = "sides"

    def refusal(self, spec: dict, device: gpu.Device | None, switch: bool = False) -> str | None:
        for side, members in self._sides(spec):
            part = spec | {"method": side.method, "members": list(members.values())}
            if reason := named(side.method).refusal(part, device, switch):
                return reason
        return None

    def processes(self, spec: dict) -> int:
        clients = self._clients(spec)
        return len(spec["members"]) - len(clients) + bool(clients)

    @contextmanager
    def enter(
        self, spec: dict, device: gpu.Device | None, log: Path, switch: bool = False
    ) -> Iterator["Together"]:
        turns = {side.name: list(members) for side, members in self._sides(spec)}
        with ExitStack() as stack:
            served = None
            if clients := self._clients(spec):
                daemon = stack.enter_context(mps_daemon.running(device.uuid, log / "mps"))
                served = mps.Clients(device, daemon, clients, Place(device.uuid, device.sm_count))
            yield Together(naive.Plain(device), served, turns)

    def _sides(self, spec: dict) -> Iterator[tuple[Side, dict[int, dict]]]:
        """Each side and its members: their entries in the spec by their index."""
        members = spec["members"]
        for index, side in enumerate(sides(self.name, (entry["workload"] for entry in members))):
            yield side, {m: entry for m, entry in enumerate(members) if entry["side"] == index}

    def _clients(self, spec: dict) -> dict[int, dict]:
        """The members that the daemon serves."""
        served = (members for side, members in self._sides(spec) if side.method not in PLAIN)
        return {m: entry for members in served for m, entry in members.items()}


@dataclass
class Together(Sharing):
    """`turns`: members of each side. `served`: the clients, where a side has some."""

    plain: naive.Plain
    served: mps.Clients | None
    turns: dict[str, list[int]]

    def environment(self, member: int) -> dict[str, str]:
        return self._of(member).environment(member)

    def witness(self, reports: dict[int, Report]) -> dict:
        """What each method says of its own members: plain ones are no clients of the daemon, and
        it has no others than its own.
        """
        if self.served is None:
            return self.plain.witness(reports)
        plain = {m: report for m, report in reports.items() if self._of(m) is self.plain}
        clients = {m: report for m, report in reports.items() if m not in plain}
        found = self.served.witness(clients, plain)
        if len(self.served.members) == sum(map(len, self.turns.values())):
            return found
        pids = [report.pid for report in clients.values()]
        other = self.plain.witness(plain, pids, found["server"])
        both = found["verified"] and other["verified"]
        return {"verified": both or None, "mps": found, "naive": other}

    def own_pids(self) -> set[int]:
        return self.plain.own_pids() | (self.served.own_pids() if self.served else set())

    def release(self, pid: int) -> None:
        if self.served and pid not in self.plain.names:
            self.served.release(pid)

    def _of(self, member: int) -> Sharing:
        return self.served if self.served and member in self.served.members else self.plain
