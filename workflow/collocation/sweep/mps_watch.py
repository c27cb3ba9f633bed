"""The MPS daemon of a supervisor: whether it serves the runs, and whether its server failed."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import NotInForce
from workflow.collocation.sweep.record import Attempt

PROOF_S = 120.0  # on the GPU, within which the daemon has to list a run
FAULT_S = 30.0  # after a fault of the server, within which what it takes with it has failed


class MpsWatch:
    """A daemon, and what was seen of it. server: PID of the server that serves the runs."""

    def __init__(self, device_uuid: str, logs: Path):
        self.daemon = mps_daemon.Daemon(device_uuid, logs)
        self.server: int | None = None
        self.fault_s = float("-inf")  # when the server was last seen to have failed
        self.on_gpu_s: dict[int, float] = {}  # since when NVML lists a run, by its keeper's PID

    def revive(self) -> None:
        """Start another daemon if this one has ended; what it served fails. Raises NotInForce."""
        if self.daemon.process.poll() is not None:
            self._note_fault()
            self.daemon.end()
            self.daemon = mps_daemon.Daemon(self.daemon.device_uuid, self.daemon.logs)
            self.daemon.start()

    def prove(
        self,
        unproven: Mapping[int, Attempt],
        trees: Mapping[int, set[int]],
        listed: Iterable[int],
        now_s: float,
    ) -> None:
        """Enter into attempts whether MPS is in force. Raises NotInForce for a daemon that is mute.

        unproven: attempts without an answer. trees: PIDs of all runs; both by their keeper's PID.
        listed: PIDs that NVML lists on the GPU.
        """
        if not unproven and self.server:
            return
        servers = self.daemon.servers()
        if len(servers) == 1 and self.daemon.status(servers[0]) == "ACTIVE":
            self.server = servers[0]
        clients = {pid for server in servers for pid in self.daemon.clients(server)}
        for keeper, attempt in unproven.items():
            if trees[keeper] & clients:
                attempt.mps = True
            elif trees[keeper] & {*listed}:
                since_s = self.on_gpu_s.setdefault(keeper, now_s)
                attempt.mps = False if now_s - since_s > PROOF_S else None

    def failed(self, started_s: float, says_fault: bool) -> tuple[bool, bool]:
        """Of a run that failed: whether the server failed under it, and whether it is the first.

        started_s: when the run began. says_fault: whether its own words tell of such a failure.
        """
        if time.monotonic() - self.fault_s < FAULT_S:
            return started_s < self.fault_s, False
        if not says_fault and self._serves():
            return False, False
        self._note_fault()
        return True, True

    def _serves(self) -> bool:
        """Whether the server is there as it was seen last; True before one was seen."""
        if self.server is None:
            return True
        with suppress(NotInForce):
            servers = self.daemon.servers()
            return servers == [self.server] and self.daemon.status(self.server) == "ACTIVE"
        return False

    def _note_fault(self) -> None:
        self.fault_s, self.server = time.monotonic(), None
