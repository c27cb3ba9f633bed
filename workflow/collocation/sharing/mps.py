"""Method `mps`: members are clients of a private MPS daemon, whose client list is the evidence.

A CUDA process that does not reach the daemon runs without MPS and says nothing, so nothing counts
until the daemon itself lists every member. A limit that is not in force is as silent: it counts
once the member itself finds that it has no more. So are products that are wrong under a limit.
"""

import shutil
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.process_lifetime import process_trees
from workflow.collocation.sharing import evidence, mps_daemon
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import (
    NotInForce,
    ProcessLists,
    Report,
    Reports,
    WrongProducts,
)
from workflow.collocation.study.cell import CellSpec, MemberSpec

# MPS gives SMs in pairs that share a TPC, rounded down, but never fewer than a card's minimum,
# listed by compute capability where it was read. An H200 of 132 SMs: 70 % gives 92, 50 % 66, 24 %
# 30, 14 % 18, 10 % 12, and 7 %, 3 % and 1 % give 8.
PAIR, MINIMUM_SMS = 2, {(9, 0): 8}
ROUNDING = 1e-6
MIB = 2**20
# Limit of a member → the variable that sets it, and the form of its value.
LIMIT_VARIABLES = {
    "sm_percent": ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "{:.6g}"),
    "pinned_memory_mb": ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0={}M"),
    "priority": ("CUDA_MPS_CLIENT_PRIORITY", "{}"),
}


def name_for_clients(cuda_name: str) -> dict[str, str]:
    """Variables that name a card to clients of a daemon that shows it alone.

    Clients count among the devices that the daemon shows: an index can mean this card to CUDA, and
    to those who ask NVML by it, only if it is 0. Other cards keep the name that the daemon gives.
    """
    if cuda_name != "0":
        return {}
    return {"CUDA_VISIBLE_DEVICES": cuda_name, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class Mps(Method):
    """Members share one CUDA context, that of a private MPS server.

    clients: the members that the daemon serves, with their limits; by default all of the cell.
    server: PID of the MPS server when evidence was first taken; a later one is another server.
    listed: NVML's process lists when evidence was last taken.
    """

    family = "mps"

    def __init__(
        self,
        spec: CellSpec,
        device: Device | None,
        clients: dict[int, MemberSpec] | None = None,
    ):
        super().__init__(spec, device)
        self.clients = clients or dict(enumerate(spec.members))
        self.daemon: mps_daemon.Daemon | None = None
        self.server: int | None = None
        self.listed: ProcessLists = {}

    @classmethod
    def sweep(cls) -> None:
        mps_daemon.sweep()

    def refuse(self) -> str | None:
        if self.device is None:
            return "MPS needs an NVIDIA GPU, and there is none on this machine"
        if shutil.which(mps_daemon.CONTROL) is None:
            return f"MPS needs {mps_daemon.CONTROL}, which is not on PATH"
        limited = any(client.sm_percent for client in self.clients.values())
        if limited and self.device.sm_count is None:
            unknown = f"how many SMs {self.device.name} has is not known"
            return f"{self.name}: a limit of SMs cannot be proven: {unknown}"
        return None

    def enter(self, log_folder: Path) -> None:
        self.daemon = mps_daemon.Daemon(self.device.uuid, log_folder / "mps")
        self.daemon.start()

    def leave(self) -> None:
        if self.daemon:
            self.daemon.end()

    def environment(self, member: int) -> dict[str, str]:
        variables = dict(self.daemon.environment)
        variables |= name_for_clients(self.cuda_name)
        for limit, (variable, form) in LIMIT_VARIABLES.items():
            value = getattr(self.clients[member], limit)
            if value is not None:
                variables[variable] = form.format(value)
        return variables

    def evidence(self, reports: dict[int, Report], plain: Reports | None = None) -> dict:
        """plain: members of other conditions, which must be no clients of the daemon."""
        plain = plain or {}
        evidence.require_device(self.name, reports, self.device.uuid, self.device)
        server, status, clients = self._active_server()
        _, missing = evidence.listed_and_missing(reports, clients)
        if missing:
            raise NotInForce(f"MPS: not among server {server}'s clients {clients}: {missing}")
        joined, _ = evidence.listed_and_missing(plain, clients)
        if joined:
            raise NotInForce(f"MPS: among server {server}'s clients, not planned so: {joined}")
        self.pids.add(server)
        for report in reports.values():
            self.pids |= evidence.processes_of(report)
        self.listed = evidence.require_members(self.name, self.device, plain, reports, server)
        limits = {m: self._limit_in_force(m, report) for m, report in reports.items()}
        unproven = any(limit["unproven"] for limit in limits.values())
        self.server = server
        comparable = server in (self.listed["compute"] or []) and self.listed["mps"] is not None
        proof = {
            "verified": (bool(reports) and not unproven) or None,
            "server": server,
            "status": status,
            "clients": clients,
            "nvml_compute": self.listed["compute"],
            "nvml_mps": self.listed["mps"],
            "nvml_agrees": comparable or None,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            "limits": limits,
        }
        # No interface of MPS shows a client's priority, so only its effect can be seen.
        priorities = {member: client.priority for member, client in self.clients.items()}
        asked = {m: priority for m, priority in priorities.items() if priority is not None}
        if asked:
            default = self.daemon.ask("get_default_client_priority").strip()
            proof["priorities"] = {"asked": asked, "default": default, "seen": None}
        return proof

    def _active_server(self) -> tuple[int, str, list[int]]:
        """PID, status and clients' PIDs of the daemon's one server; raises NotInForce."""
        servers = self.daemon.servers()
        if len(servers) != 1:
            raise NotInForce(f"MPS: one server was expected, the daemon lists {servers or 'none'}")
        [server] = servers
        if self.server not in (None, server):
            raise NotInForce(f"MPS: the server was PID {self.server} and is now PID {server}")
        status = self.daemon.status(server)
        if status != "ACTIVE":
            raise NotInForce(f"MPS: server {server} is {status or 'without status'}, not ACTIVE")
        return server, status, self.daemon.clients(server)

    def release(self, pid: int) -> None:
        """Have the server drop the work of a member's processes, which live on."""
        self.daemon.release({pid, *(process.pid for process in process_trees([pid]))})

    def _limit_in_force(self, member: int, report: Report) -> dict:
        """The record of a member's limits, as asked for and as the member saw them.

        `unproven`: why that proves nothing, although it contradicts nothing. Raises NotInForce if a
        limit is not in force or could not be seen, or if one holds that nobody asked for; and
        WrongProducts.
        """
        client, name = self.clients[member], f"{self.name}: {evidence.describe(member, report)}"
        unproven = self._unproven_sm_limit(client.sm_percent, report.sm_count, name)
        if client.sm_percent is not None:
            unproven = self._unproven_products(client.sm_percent, report) or unproven
        card_free = None
        if client.pinned_memory_mb is not None:
            free, limit = report.memory_free, client.pinned_memory_mb
            if free is None:
                raise NotInForce(f"{name} could not tell what memory is free; its limit is open")
            if free > limit * MIB:
                raise NotInForce(
                    f"{name} saw {free / MIB:.0f} MiB of free memory; its limit is {limit} MiB"
                )
            card_free = self.device.memory_free()
            if card_free is None:
                unproven = "how much memory of the card is free is not known"
            elif card_free <= limit * MIB:
                unproven = f"the card has {card_free // MIB} MiB free, no more than the limit"
        return {
            "sm_percent": client.sm_percent,
            "sm_count": report.sm_count,
            "sm_source": report.sm_source,
            "sm_expected": self._expected_sms(client.sm_percent),
            "products": report.products,
            "pinned_memory_mb": client.pinned_memory_mb,
            "memory_free": report.memory_free,
            "card_free": card_free,
            "unproven": unproven,
        }

    def _expected_sms(self, percent: float | None) -> int | None:
        return None if percent is None else int(percent * self.device.sm_count / 100 + ROUNDING)

    def _unproven_sm_limit(self, percent: float | None, count: int | None, name: str) -> str | None:
        """Why the SMs that a member can use prove nothing, or None; raises NotInForce."""
        total = self.device.sm_count
        if percent is None:
            if None not in (count, total) and count != total:
                raise NotInForce(
                    f"{name} can use {count} of {total} SMs, and no limit was asked for"
                )
            return None
        if count is None:
            raise NotInForce(f"{name} could not tell how many SMs it can use; its limit is open")
        share, minimum = percent * total / 100, MINIMUM_SMS.get(self.device.capability)
        if share - PAIR < count <= share + ROUNDING or share < count == minimum:
            return None
        expected = f"{percent:g} % of {total} is {self._expected_sms(percent)}"
        if minimum or count >= total:
            raise NotInForce(f"{name} can use {count} SMs; {expected}")
        return f"it can use {count} SMs; {expected}, and this card's groups are not known"

    def _unproven_products(self, percent: float, report: Report) -> str | None:
        """Why a member's products under its limit prove nothing, or None; raises WrongProducts."""
        if report.products is None:
            return "its products were not held against float64"
        wrong = [
            f"{name} products of {len(made['wrong'])} of {made['sizes']} sizes"
            for name, made in report.products.items()
            if made["wrong"]
        ]
        if wrong:
            raise WrongProducts(
                f"MPS: at {percent:g} % ({report.sm_count} SMs) {' and '.join(wrong)} are wrong on "
                f"driver {self.device.driver}: not measured"
            )
        return None
