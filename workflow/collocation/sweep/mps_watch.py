"""The MPS daemon of a supervisor: whether it serves the runs, and whether its server failed."""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from workflow.collocation.member.failures import says_refused, says_server_fault
from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import NotInForce
from workflow.collocation.sweep.record import Attempt

PROOF_S = 120.0  # on the GPU, within which the daemon has to list a run
START_S = 20.0  # for a server to be ready
FAULT_S = 60.0  # after a fault of the server, for what was under it to end by itself


class MpsWatch:
    """A daemon, and what was seen of it.

    server: PID of the server that serves the runs. fault_s: when it was last seen to have failed.
    """

    def __init__(self, device_uuid: str, logs: Path):
        self.daemon = mps_daemon.Daemon(device_uuid, logs)
        self.server: int | None = None
        self.fault_s = float("-inf")
        self.is_recovering = False
        self.on_gpu_s: dict[int, float] = {}  # since when NVML lists a run, by its keeper's PID

    def start(self) -> None:
        """Start the daemon and its server: one that starts with the first clients refuses some.

        Raises NotInForce if the daemon does not start.
        """
        self.daemon.start()
        deadline = time.monotonic() + START_S
        with suppress(NotInForce):
            self.daemon.ask(f"start_server -uid {os.getuid()}")
            while self._active_server() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            self.server = self._active_server()

    def restart(self) -> None:
        """Start another daemon; what this one served fails. Raises NotInForce."""
        self._note_fault()
        self.daemon.end()
        self.daemon = mps_daemon.Daemon(self.daemon.device_uuid, self.daemon.logs)
        self.start()

    def revive(self) -> None:
        """Start another daemon if this one has ended. Raises NotInForce."""
        if self.daemon.process.poll() is not None:
            self.restart()

    def is_ready(self, has_older: bool) -> bool:
        """Whether runs may start: a server at fault refuses new clients while old ones live.

        has_older: whether a run from before the fault still lives.
        """
        if self.is_recovering and (not has_older or self.is_overdue):
            with suppress(NotInForce):
                has_none = self.daemon.servers() == []
                self.is_recovering = not has_none and self._active_server() is None
        return not self.is_recovering

    @property
    def is_overdue(self) -> bool:
        """Whether the server should have recovered by now."""
        return time.monotonic() - self.fault_s > FAULT_S

    def _active_server(self) -> int | None:
        servers = self.daemon.servers()
        is_active = len(servers) == 1 and self.daemon.status(servers[0]) == "ACTIVE"
        return servers[0] if is_active else None

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
        self.server = self._active_server() or self.server
        servers = self.daemon.servers()
        clients = {pid for server in servers for pid in self.daemon.clients(server)}
        for keeper, attempt in unproven.items():
            if trees[keeper] & clients:
                attempt.mps = True
            elif trees[keeper] & {*listed}:
                since_s = self.on_gpu_s.setdefault(keeper, now_s)
                attempt.mps = False if now_s - since_s > PROOF_S else None

    def failed(self, started_s: float, output: str) -> tuple[bool, bool]:
        """Of a run that failed: whether the server failed under it, and whether it is the first.

        started_s: when the run began. output: its newest.
        """
        if started_s < self.fault_s and time.monotonic() - self.fault_s < 2 * FAULT_S:
            return True, False
        if not says_server_fault(output) and self._serves():
            return False, False
        self._note_fault()
        return True, not says_refused(output)

    def _serves(self) -> bool:
        """Whether the server is there as it was seen last; True before one was seen."""
        if self.server is None:
            return True
        with suppress(NotInForce):
            return self._active_server() == self.server
        return False

    def _note_fault(self) -> None:
        self.fault_s, self.server, self.is_recovering = time.monotonic(), None, True
