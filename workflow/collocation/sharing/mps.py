"""mps: members are clients of a private MPS daemon, and the daemon's client list is the evidence.

A CUDA process that does not reach the daemon runs without MPS and without a word, so nothing counts
until the daemon itself names every member. A limit that is not in force is as silent: it counts
once the member itself finds that it has no more.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.process_lifetime import process_trees
from workflow.collocation.sharing import evidence, mps_daemon
from workflow.collocation.sharing.base import Method, register
from workflow.collocation.sharing.evidence import Listed, NotInForce, Report, Reports, called
from workflow.collocation.study.cell import CellSpec, MemberSpec

RELEASE_S = 4.0
# SMs are given in pairs that share a TPC, fewer rather than more, but never fewer than the least of
# a card, known by compute capability where it was read. An H200 of 132 SMs: 70 % gives 92, 50 % 66,
# 24 % 30, 14 % 18, 10 % 12, and 7 %, 3 % and 1 % give 8.
PAIR, LEAST_SMS = 2, {(9, 0): 8}
MIB = 2**20
SET_BY = {  # what a member is limited to → the variable that does it
    "sm_percent": ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "{:.6g}"),
    "pinned_memory_mb": ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0={}M"),
    "priority": ("CUDA_MPS_CLIENT_PRIORITY", "{}"),
}


class Mps(Method):
    """The members that one daemon serves on the GPU.

    clients: these with their limits, of an interleaved cell; else all of the cell. server: the MPS
    server's PID as first witnessed; a later one is another server. listed: what NVML listed when
    last asked.
    """

    family = "mps"
    daemon: mps_daemon.Daemon

    def __init__(
        self,
        spec: CellSpec,
        device: Device | None,
        clients: dict[int, MemberSpec] | None = None,
    ):
        super().__init__(spec, device)
        self.clients = clients or dict(enumerate(spec.members))
        self.server: int | None = None
        self.listed: Listed = {}

    def refusal(self) -> str | None:
        if self.device is None:
            return "MPS needs an NVIDIA GPU, and there is none on this machine"
        if shutil.which(mps_daemon.CONTROL) is None:
            return f"MPS needs {mps_daemon.CONTROL}, which is not on PATH"
        if self.device.sm_count is None and any(its.sm_percent for its in self.clients.values()):
            unknown = f"how many SMs {self.device.name} has is not known"
            return f"{self.name}: a limit of SMs cannot be proven: {unknown}"
        return None

    @contextmanager
    def entered(self, log: Path) -> Iterator[None]:
        with mps_daemon.running(self.device.uuid, log / "mps") as self.daemon:
            yield

    def environment(self, member: int) -> dict[str, str]:
        given = {key: getattr(self.clients[member], key) for key in SET_BY}
        limits = {
            n: form.format(given[k]) for k, (n, form) in SET_BY.items() if given[k] is not None
        }
        return self.daemon.environment | limits

    def witness(self, reports: dict[int, Report], plain: Reports | None = None) -> dict:
        """plain: members of other conditions, which have to be none of the daemon's clients."""
        evidence.require_device(self.name, reports, self.device.uuid, self.device)
        servers = _pids(self.daemon.ask("get_server_list"))
        if len(servers) != 1:
            raise NotInForce(f"MPS: one server was expected, the daemon lists {servers or 'none'}")
        [server] = servers
        if self.server not in (None, server):
            raise NotInForce(f"MPS: the server was PID {self.server} and is now PID {server}")
        status = self.daemon.ask(f"get_server_status {server}").strip()
        if status != "ACTIVE":
            raise NotInForce(f"MPS: server {server} is {status or 'without status'}, not ACTIVE")
        clients = _pids(self.daemon.ask(f"get_client_list {server}"))
        if absent := evidence.among(reports, clients, False):
            raise NotInForce(f"MPS: not among server {server}'s clients {clients}: {absent}")
        if joined := evidence.among(plain or {}, clients, True):
            raise NotInForce(f"MPS: among server {server}'s clients, not planned so: {joined}")
        found = map(evidence.processes_of, reports.values())
        self.names |= {server}.union(*found)
        self.listed = evidence.require_members(self.name, self.device, plain or {}, reports, server)
        limits = {m: self._limit_in_force(m, report) for m, report in reports.items()}
        proven = bool(reports) and not any(limit["unproven"] for limit in limits.values())
        self.server = server
        comparable = server in (self.listed["compute"] or []) and self.listed["mps"] is not None
        found = {
            "verified": proven or None,
            "server": server,
            "status": status,
            "clients": clients,
            "nvml_compute": self.listed["compute"],
            "nvml_mps": self.listed["mps"],
            "nvml_agrees": comparable or None,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            "limits": limits,
        }
        # No interface of MPS shows what priority a client has: only how members do tells.
        asked = {m: its.priority for m, its in self.clients.items() if its.priority is not None}
        if asked:
            default = self.daemon.ask("get_default_client_priority").strip()
            found["priorities"] = {"asked": asked, "default": default, "seen": None}
        return found

    def release(self, pid: int) -> None:
        """Have the server drop the work of one member's processes, so that killing it then harms no
        neighbour.

        They live on. Never raises, and takes RELEASE_S at most.
        """
        until = time.monotonic() + RELEASE_S
        names = {pid, *(process.pid for process in process_trees([pid]))}
        with suppress(NotInForce):
            for server in _pids(self.daemon.ask("get_server_list", RELEASE_S)):
                left_s = until - time.monotonic()
                clients = _pids(self.daemon.ask(f"get_client_list {server}", left_s))
                for name in names & set(clients):
                    self.daemon.ask(f"terminate_client {server} {name}", until - time.monotonic())

    def _limit_in_force(self, member: int, report: Report) -> dict:
        """What is evidence of this member's limits; raises NotInForce if one is not in force, if
        the member could not tell, or if a limit holds that nobody asked for.

        `unproven`: why what the member saw proves nothing, although it does not contradict.
        """
        percent = self.clients[member].sm_percent
        memory = self.clients[member].pinned_memory_mb
        who, total = f"{self.name}: {called(member, report)}", self.device.sm_count
        has, free = report.sm_count, report.memory_free
        expected = card_free = unproven = None
        if percent is None and None not in (has, total) and has != total:
            raise NotInForce(f"{who} can use {has} of {total} SMs, and no limit was asked for")
        if percent is not None:
            if has is None:
                raise NotInForce(f"{who} could not tell how many SMs it can use; its limit is open")
            share, least = percent * total / 100, LEAST_SMS.get(self.device.capability)
            expected = int(share + 1e-6)
            if not (share - PAIR < has <= share + 1e-6 or share < has == least):
                so = f"{percent:g} % of {total} is {expected}"
                if least or has >= total:
                    raise NotInForce(f"{who} can use {has} SMs; {so}")
                unproven = f"it can use {has} SMs; {so}, and this card's groups are not known"
        if memory is not None:
            if free is None:
                raise NotInForce(f"{who} could not tell what memory is free; its limit is open")
            if free > memory * MIB:
                raise NotInForce(
                    f"{who} saw {free / MIB:.0f} MiB of free memory; its limit is {memory} MiB"
                )
            card_free = self.device.memory_free()
            if card_free is None:
                unproven = "how much memory of the card is free is not known"
            elif card_free <= memory * MIB:
                unproven = f"the card has {card_free // MIB} MiB free, no more than the limit"
        return {
            "sm_percent": percent,
            "sm_count": has,
            "sm_source": report.sm_source,
            "sm_expected": expected,
            "pinned_memory_mb": memory,
            "memory_free": free,
            "card_free": card_free,
            "unproven": unproven,
        }


def _pids(answer: str) -> list[int]:
    """The PIDs of lines that hold nothing else: a message that quotes a PID is no list."""
    return sorted(int(n) for line in re.findall(r"^[\d\s]+$", answer, re.M) for n in line.split())


register(Mps)
