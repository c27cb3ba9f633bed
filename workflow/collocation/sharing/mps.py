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
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.sharing import evidence, mps_daemon
from workflow.collocation.sharing.base import Method, Sharing, register
from workflow.collocation.sharing.evidence import NotInForce, Place, Report, called, known_as
from workflow.collocation.spec.limits import TAKES, Limits

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


@dataclass(frozen=True)
class Mps(Method):
    family = "mps"
    takes = TAKES

    def refusal(self, spec: dict, device: gpu.Device | None, switch: bool = False) -> str | None:
        """Here also: if a limit could never be proven on this card, or would limit nothing."""
        if device is None:
            return "MPS needs an NVIDIA GPU, and there is none on this machine"
        if shutil.which(mps_daemon.CONTROL) is None:
            return f"MPS needs {mps_daemon.CONTROL}, which is not on PATH"
        total = device.memory_bytes
        for member, entry in enumerate(spec["members"]):
            who, memory = f"of member {member} ({entry['workload']})", entry.get("pinned_memory_mb")
            if "sm_percent" in entry and device.sm_count is None:
                return (
                    f"{spec['method']}: the SM limit {who} cannot be proven: how many SMs "
                    f"{device.name} has is not known"
                )
            if None not in (memory, total) and memory * MIB >= total:
                return (
                    f"{spec['method']}: the memory limit {who}, {memory} MiB, limits nothing: "
                    f"{device.name} has {total // MIB} MiB"
                )
        return None

    @contextmanager
    def enter(
        self, spec: dict, device: gpu.Device, log: Path, switch: bool = False
    ) -> Iterator["Clients"]:
        with mps_daemon.running(device.uuid, log / "mps") as daemon:
            place = Place(device.uuid, device.sm_count)
            yield Clients(device, daemon, dict(enumerate(spec["members"])), place, spec["method"])


@dataclass
class Clients(Sharing):
    """The members that one daemon serves on one place of `device`.

    members: the spec's entry of each of them, with its limits. method: for sentences.
    server: the MPS server's PID as first witnessed; a later one is another server.
    """

    device: gpu.Device
    daemon: mps_daemon.Daemon
    members: dict[int, dict]
    place: Place
    method: str = "mps"
    server: int | None = None
    names: set[int] = field(default_factory=set)  # PIDs of server and members, as witnessed

    def environment(self, member: int) -> dict[str, str]:
        entry = self.members[member]
        return self.daemon.environment | {
            name: form.format(entry[key]) for key, (name, form) in SET_BY.items() if key in entry
        }

    def witness(self, reports: dict[int, Report], plain: dict[int, Report] | None = None) -> dict:
        """plain: members of the cell's other sides, which have to be none of the daemon's clients;
        then it has none but its members.
        """
        evidence.require_device(self.method, reports, self.place.uuid)
        server = self._same_server()
        status = self.daemon.ask(f"get_server_status {server}").strip()
        if status != "ACTIVE":
            raise NotInForce(f"MPS: server {server} is {status or 'without status'}, not ACTIVE")
        clients = _pids(self.daemon.ask(f"get_client_list {server}"))
        if absent := evidence.absent(reports, clients):
            raise NotInForce(f"MPS: {absent} not among server {server}'s clients {clients}")
        pids = [server, *(report.pid for report in reports.values())]
        self.names |= evidence.names_of(pids)
        if plain is not None and (more := set(clients) - self.names):
            names = {name: called(m, r) for m, r in plain.items() for name in known_as(r.pid)}
            who = ", ".join(names.get(pid) or evidence.owner(pid) for pid in sorted(more))
            raise NotInForce(f"MPS: server {server} has clients that are none of its side: {who}")
        others = [report.pid for report in (plain or {}).values()]
        listed = self.device.processes()
        # Where NVML does not show the server under its PID, it names the host's PIDs, or none.
        comparable = listed["mps"] is not None and server in (listed["compute"] or [])
        whole = self.place.uuid == self.device.uuid  # on a part of it there may be neighbours
        if comparable:
            if absent := evidence.absent(reports, listed["mps"]):
                raise NotInForce(f"MPS: {absent} not among NVML's MPS clients {listed['mps']}")
            if whole:
                listed = evidence.require_alone(self.device, [*pids, *others])
        elif whole and reports:
            listed = evidence.require_counts(self.method, self.device, others, pids[1:])
        limits = {
            member: self._limit_in_force(member, report) for member, report in reports.items()
        }
        proven = bool(reports) and not any(limit["unproven"] for limit in limits.values())
        self.server = server
        return {
            "verified": proven or None,
            "server": server,
            "status": status,
            "clients": clients,
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
            "nvml_agrees": True if comparable else None,
            "devices": {member: report.device_uuid for member, report in reports.items()},
            "limits": limits,
        } | self._priorities()

    def own_pids(self) -> set[int]:
        return self.names

    def release(self, pid: int) -> None:
        """Have the server drop one client's work, so that killing it then harms no neighbour.

        The client's process lives on. Never raises, and takes RELEASE_S at most.
        """
        until = time.monotonic() + RELEASE_S
        with suppress(NotInForce):
            for server in _pids(self.daemon.ask("get_server_list", RELEASE_S)):
                self.daemon.ask(f"terminate_client {server} {pid}", until - time.monotonic())

    def _same_server(self) -> int:
        servers = _pids(self.daemon.ask("get_server_list"))
        if len(servers) != 1:
            raise NotInForce(f"MPS: one server was expected, the daemon lists {servers or 'none'}")
        if self.server not in (None, servers[0]):
            raise NotInForce(f"MPS: the server was PID {self.server} and is now PID {servers[0]}")
        return servers[0]

    def _limit_in_force(self, member: int, report: Report) -> dict:
        """What is evidence of this member's limits; raises NotInForce if one is not in force, if
        the member could not tell, or if a limit holds that nobody asked for.

        `unproven`: why what the member saw proves nothing, although it does not contradict.
        """
        entry = self.members[member]
        percent, memory = entry.get("sm_percent"), entry.get("pinned_memory_mb")
        who, total = f"{self.method}: {called(member, report)}", self.place.sm_count
        has, free = report.sm_count, report.memory_free
        expected = card_free = unproven = None
        if percent is None and None not in (has, total) and has != total:
            raise NotInForce(f"{who} can use {has} of {total} SMs, and no limit was asked for")
        if percent is not None:
            if has is None:
                raise NotInForce(
                    f"{who}: its SM limit cannot be proven: it could not tell how many SMs it can "
                    "use"
                )
            share, least = percent * total / 100, LEAST_SMS.get(self.device.capability)
            expected = int(share + 1e-6)
            if not (share - PAIR < has <= share + 1e-6 or share < has == least):
                if least or has >= total:
                    so = f"{percent:g} % of {total} is {expected}"
                    raise NotInForce(f"{who} can use {has} SMs; {so}")
                unproven = (
                    f"in what groups {self.device.name} gives SMs is not known: it gave {has} for "
                    f"{percent:g} % of {total}"
                )
        if memory is not None:
            if free is None:
                raise NotInForce(
                    f"{who}: its memory limit cannot be proven: it could not tell what is free"
                )
            if free > memory * MIB:
                raise NotInForce(
                    f"{who} saw {free / MIB:.0f} MiB of free memory; its limit is {memory} MiB"
                )
            card_free = self.device.memory_free()
            if card_free is None:
                unproven = f"how much of {self.place.uuid} is free is not known"
            elif card_free <= memory * MIB:
                unproven = (
                    f"{self.place.uuid} has {card_free // MIB} MiB free, and would show no more "
                    f"without the limit of {memory} MiB"
                )
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

    def _priorities(self) -> dict:
        """What was asked for, and what the daemon gives those that ask for nothing. No interface
        of MPS shows what a client has: only how members do beside each other tells.
        """
        asked = {m: e["priority"] for m, e in self.members.items() if "priority" in e}
        if not asked:
            return {}
        default = self.daemon.ask("get_default_client_priority").strip()
        return {"priorities": {"asked": asked, "default": default, "seen": None}}


def _pids(answer: str) -> list[int]:
    """The PIDs of lines that hold nothing else: a message that quotes a PID is no list."""
    return sorted(int(n) for line in re.findall(r"^[\d\s]+$", answer, re.M) for n in line.split())


register(
    Mps("mps"),
    Mps("mps_equal", Limits(sm_percent="equal")),
    Mps("mps_overlap", Limits(sm_percent="overlap")),
)
