"""The loader that the jobs of a cell share (models/shared.py): a process beside its members."""

import socket
from contextlib import ExitStack
from pathlib import Path

from workflow.collocation.run.fork_client import Server
from workflow.collocation.run.outcome import Tracked
from workflow.collocation.sharing.evidence import NotInForce
from workflow.collocation.study.names import SHARED

PORTS = 4


class Loader:
    """Of the cell with these member specs, each of which is told where it is; none, and nothing is
    started, where they do not share one. It has as many workers and cores as they have together.
    """

    def __init__(self, specs: list[dict]):
        self.spec: dict | None = None
        self.member: Tracked | None = None  # once it is started
        if specs[0]["input"]["mode"] != SHARED:
            return
        feed = {"ports": _free_ports(), "jobs": len(specs)}
        for spec in specs:
            spec["feed"] = feed
        self.spec = specs[0] | {
            "member": len(specs),
            "kind": "loader",
            "cores": sorted({core for spec in specs for core in spec["cores"]}),
            "input": {"workers": sum(spec["input"]["workers"] for spec in specs)},
            "environment": {"CUDA_VISIBLE_DEVICES": ""},
        }

    def start(self, server: Server, log: Path) -> None:
        if self.spec:
            [self.member] = server.start([self.spec], log / "loader.log")

    @property
    def lost(self) -> str | None:
        """How it ended, in a sentence."""
        over = self.member and self.member.status
        return f"the loader of the cell ended: {self.member.error}" if over else None

    def require(self) -> None:
        """Raise NotInForce if it has ended."""
        if self.lost:
            raise NotInForce(self.lost)


def _free_ports() -> list[int]:
    with ExitStack() as stack:  # all at once, so that they differ
        sockets = [stack.enter_context(socket.socket()) for _ in range(PORTS)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
