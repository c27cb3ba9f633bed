"""mps: members are clients of a private MPS daemon, and the daemon's client list is the evidence.

A CUDA process that does not reach the daemon runs without MPS and without a word, so nothing counts
until the daemon itself names every member.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.methods import mps_daemon
from workflow.collocation.methods.evidence import NotInForce


def refusal(spec: dict, device: gpu.Device | None) -> str | None:
    if device is None:
        return "MPS needs an NVIDIA GPU, and there is none on this machine"
    if sys.platform != "linux":
        return f"MPS runs on Linux only, and this is {sys.platform}"
    if spec["method"] != "mps":
        return f"{spec['method']}: this version does not yet prove SM limits"
    if shutil.which(mps_daemon.CONTROL) is None:
        return f"MPS needs {mps_daemon.CONTROL}, which is not on PATH"
    return None


@contextmanager
def enter(spec: dict, device: gpu.Device | None, log: Path) -> Iterator["Mps"]:
    if reason := refusal(spec, device):
        raise NotInForce(reason)
    with mps_daemon.running(device.uuid, log / "mps") as daemon:
        yield Mps(device, daemon)


@dataclass
class Mps:
    """`server` is the MPS server's PID as first witnessed; a later one is another server."""

    device: gpu.Device
    daemon: mps_daemon.Daemon
    server: int | None = None

    def environment(self, member: int) -> dict[str, str]:
        return self.daemon.environment

    def witness(self, pids: dict[int, int]) -> dict:
        servers = self._servers()
        if len(servers) != 1:
            raise NotInForce(f"MPS: one server was expected, the daemon lists {servers or 'none'}")
        [server] = servers
        if self.server not in (None, server):
            raise NotInForce(f"MPS: the server was PID {self.server} and is now PID {server}")
        status = self.daemon.ask(f"get_server_status {server}").strip()
        if status != "ACTIVE":
            raise NotInForce(f"MPS: server {server} is {status or 'without status'}, not ACTIVE")
        clients = _pids(self.daemon.ask(f"get_client_list {server}"))
        if absent := _absent(pids, clients):
            raise NotInForce(f"MPS: {absent} not among server {server}'s clients {clients}")
        listed = gpu.processes(self.device)
        # Where NVML does not show the server under its PID, it names the host's PIDs, or none.
        comparable = listed["mps"] is not None and server in (listed["compute"] or [])
        if comparable and (absent := _absent(pids, listed["mps"])):
            raise NotInForce(f"MPS: {absent} not among NVML's MPS clients {listed['mps']}")
        self.server = server
        return {
            "verified": True,
            "server": server,
            "status": status,
            "clients": clients,
            "nvml_mps": listed["mps"],
            "nvml_agrees": True if comparable else None,
        }

    def terminate(self, pid: int) -> bool:
        """Have the server drop one client's work, so that killing it then harms no neighbour.

        False if that was not done. The client's process lives on either way.
        """
        try:
            for server in self._servers():
                self.daemon.ask(f"terminate_client {server} {pid}")
        except NotInForce:
            return False
        return True

    def _servers(self) -> list[int]:
        return _pids(self.daemon.ask("get_server_list"))


def _pids(answer: str) -> list[int]:
    """The PIDs of lines that hold nothing else: a message that quotes a PID is no list."""
    return sorted(int(n) for line in re.findall(r"^[\d\s]+$", answer, re.M) for n in line.split())


def _absent(pids: dict[int, int], listed: list[int]) -> str | None:
    """The members that a list of PIDs lacks, as the beginning of a sentence; None if it has all."""
    absent = [
        f"member {member} (PID {pid})"
        for member, pid in pids.items()
        if not _known_as(pid) & set(listed)
    ]
    return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'}" if absent else None


def _known_as(pid: int) -> set[int]:
    """The process's PID here and, in a container started from here, its PIDs in there."""
    with suppress(OSError):
        nested = re.search(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)
        return {pid} | {int(n) for n in nested[1].split()} if nested else {pid}
    return {pid}
