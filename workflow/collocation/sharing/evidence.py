"""Evidence that all methods share: what members report of themselves, and who is on the card."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from workflow.collocation.gpu import Device
from workflow.collocation.process_lifetime import all_descendants, process_trees
from workflow.collocation.study.errors import NotInForce, printable

CONTROL = "nvidia-cuda-mps-control"
PIPE_FOLDER, DEFAULT_PIPE = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
# For members without MPS: with the default folder, any daemon on this machine would silently make
# clients of them. Nobody can make this folder, and a program that reaches no daemon runs without
# MPS.
NO_DAEMON = "/proc/no-mps"
GRACE_S = 3.0  # for processes that are ending to leave the card


class GpuBusy(Exception):
    """Others use the card, too: the cell waits for them to leave, and is no worse for it."""


class WrongProducts(NotInForce):
    """Products come out wrong under a member's limit of SMs, and would again: `unsupported`."""


class Unsupported(Exception):
    """The method cannot run here, with the reason; the cell's status is `unsupported`."""


@dataclass(frozen=True)
class Report:
    """What a member reports of itself once it is built.

    device_uuid: "GPU-…" or "MIG-…", as CUDA names the device it runs on. sm_count: SMs that its
    context can use. memory_free: bytes that it saw free with a context and nothing loaded.
    sm_source: where the count is from, "affinity" (CUDA). stream: handle of its own CUDA stream.
    products: under a limit of SMs, by number format, how many `sizes` of matrices were multiplied,
    and which were `wrong`; None if that is not known.
    """

    pid: int
    device_uuid: str | None
    sm_count: int | None
    memory_free: int | None
    sm_source: str | None = None
    stream: int | None = None
    products: dict[str, dict] | None = None


Reports = Mapping[int, Report]  # by member
ProcessLists = dict[str, list[int] | None]  # as Device.processes returns them


def processes_of(report: Report) -> set[int]:
    """PIDs of the member and of what it started: a script may compute in a child (torchrun,
    accelerate, a shell's).
    """
    return {report.pid, *(process.pid for process in process_trees([report.pid]))}


def describe(member: int, report: Report) -> str:
    """The member as sentences name it."""
    return f"member {member} (PID {report.pid})"


def require_device(method: str, reports: Reports, uuid: str, device: Device | None = None) -> None:
    """Raise NotInForce unless every one of these members runs on this GPU or MIG device.

    device: the whole GPU, on which NVML has to list a process of a script that does not say where
    it runs.
    """
    for member, report in reports.items():
        name = f"{method}: {describe(member, report)}"
        if report.device_uuid is None:
            if device and processes_of(report) & set(device.processes()["compute"] or []):
                continue
            raise NotInForce(
                f"{name} was not seen on {uuid}: NVML lists none of its processes there, and it "
                "says of no device that it runs on it"
            )
        if report.device_uuid != uuid:
            raise NotInForce(f"{name} runs on {report.device_uuid}, not on {uuid}")


def listed_and_missing(reports: Reports, pids: Iterable[int]) -> tuple[str, str]:
    """The members of which a list of PIDs has a process, and those of which it has none, as
    sentences name them.
    """
    pids = set(pids)
    listed, missing = [], []
    for member, report in reports.items():
        names = listed if processes_of(report) & pids else missing
        names.append(describe(member, report))
    return ", ".join(listed), ", ".join(missing)


def owner(pid: int) -> str:
    """A process that is no member, as sentences name it: PID, program and user."""
    try:
        process = psutil.Process(pid)
        return f"PID {pid} ({printable(process.name())}, owner {process.username()})"
    except psutil.Error:
        return f"PID {pid} (owner not visible from here)"


def require_free(device: Device, who: str = "a cell") -> None:
    """Raise GpuBusy, naming PID and owner, if somebody else's MPS daemon serves the card, or
    processes compute on it. Ends nobody. who: needs the card, as the sentence has it.
    """
    for process in psutil.process_iter():
        environment = None
        with suppress(psutil.Error):  # Another user's daemon: NVML would list its clients.
            # Without these options it is somebody's question to a daemon, or it has ended.
            if process.name() == CONTROL and {"-d", "-f"} & set(process.cmdline()):
                environment = process.environ()
        if environment is not None and device.shown_to(environment):
            pipe = printable(environment.get(PIPE_FOLDER, DEFAULT_PIPE))
            raise GpuBusy(
                f"{who} needs the GPU to itself, and another MPS daemon serves it: "
                f"{owner(process.pid)}, pipe folder {pipe}"
            )
    _await_lists(device, lambda listed, late: _strangers(listed, set(), who))


def require_members(
    method: str, device: Device, plain: Reports, clients: Reports | None = None, server: int = 0
) -> ProcessLists:
    """NVML's process lists of the card, once they hold the cell's members and nobody else.

    plain: members that are no clients of MPS. clients: members that are. server: PID of the MPS
    server. Where NVML lists other PIDs than this machine has, as in a container, it has to list as
    many, or more where members started processes; an empty list proves nothing. Raises GpuBusy,
    naming PID and owner, if others stay on the card; NotInForce if a member is not listed, or is a
    client against the plan, or is none.
    """
    clients = clients or {}
    pids = list({report.pid for report in (*plain.values(), *clients.values())})

    def problem(listed: ProcessLists, late: bool) -> Exception | None:
        compute, mps = listed["compute"] or [], listed["mps"] or []
        if not pids:  # Members that failed may be slow to leave the card.
            return None
        started = {process.pid for process in process_trees(pids)}
        ours = {*pids, *started, *[server] * bool(server)}
        if not ours & set(compute):
            planned = len(pids) + bool(server)
            if len(compute) in (0, planned) and len(mps) in (0, len(clients)):
                return None
            # Processes that a member started are listed, too, under PIDs that mean nothing here.
            room = planned + len(started - set(pids))
            if planned < len(compute) <= room and len(mps) <= len(clients) + room - planned:
                return None
            error = GpuBusy if len(compute) > room else NotInForce
            return error(
                f"{method}: NVML lists {len(compute)} processes and {len(mps)} MPS clients; the "
                f"cell has {len(pids)} members, {len(clients)} of them clients"
            )
        _, missing = listed_and_missing(plain, compute)
        if missing:
            return NotInForce(f"{method}: not among NVML's processes {compute}: {missing}")
        _, missing = listed_and_missing(clients, mps)
        if missing and listed["mps"] is not None:
            return NotInForce(f"{method}: not among NVML's MPS clients {mps}: {missing}")
        joined, _ = listed_and_missing(plain, mps)
        if joined:
            return NotInForce(f"{method}: NVML lists MPS clients on the card: {joined}")
        # A process that a member started, or one that failed and is slow to end, is no stranger.
        ending = {process.pid for process in all_descendants()} if late else set()
        return _strangers(listed, ours | ending)

    return _await_lists(device, problem)


def _await_lists(
    device: Device, problem: Callable[[ProcessLists, bool], Exception | None]
) -> ProcessLists:
    """NVML's process lists once there is no problem with them; raises the one that stays."""
    deadline = time.monotonic() + GRACE_S
    while True:
        listed, late = device.processes(), time.monotonic() > deadline
        error = problem(listed, late)
        if error is None:
            return listed
        if late:
            raise error
        time.sleep(0.2)


def _strangers(listed: ProcessLists, ours: set[int], who: str = "a cell") -> GpuBusy | None:
    strangers = {*(listed["compute"] or []), *(listed["mps"] or [])} - ours
    if not strangers:
        return None
    owners = ", ".join(owner(pid) for pid in sorted(strangers))
    return GpuBusy(f"{who} needs the GPU to itself, and others compute on it: {owners}")
