"""The data loader that all jobs of a cell share (models/shared.py): one more process."""

import socket
from contextlib import ExitStack
from pathlib import Path

from workflow.collocation.run.fork_client import Server
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.sharing.evidence import NotInForce
from workflow.collocation.study.names import SHARED

PORTS = 4


class SharedLoader:
    """The shared data loader of a cell, or nothing if the cell's jobs load their own data.

    It has as many workers and cores as the jobs have together. Their member specs (`specs`) get the
    key "feed", which says where the loader is.
    """

    def __init__(self, specs: list[dict]):
        self.spec: dict | None = None
        self.member: TrackedMember | None = None  # set by start()
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
        """Start its process, with a log in the folder `log`, if the cell has a shared loader."""
        if self.spec:
            [self.member] = server.start([self.spec], log / "loader.log")

    @property
    def problem(self) -> str | None:
        """A sentence on how it ended; None while it runs."""
        if self.member and self.member.status:
            return f"the loader of the cell ended: {self.member.error}"
        return None

    def require(self) -> None:
        """Raise NotInForce if it has ended."""
        if self.problem:
            raise NotInForce(self.problem)


def _free_ports() -> list[int]:
    with ExitStack() as stack:  # all sockets are open at the same time, so that ports differ
        sockets = [stack.enter_context(socket.socket()) for _ in range(PORTS)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
