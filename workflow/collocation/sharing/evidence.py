"""What the methods' evidence has in common: members' reports, and who is on the card."""

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
# clients of them. Nobody can make this one, and a program that reaches no daemon runs without MPS.
NO_DAEMON = "/proc/no-mps"
GRACE_S = 3.0  # for processes that are ending to leave the card


class GpuBusy(Exception):
    """Others have the card, too: the cell waits for them to leave, and is no worse for it."""


class Unsupported(Exception):
    """Setting up showed that the method cannot run here; the cell is unsupported, with this why."""


@dataclass(frozen=True)
class Report:
    """What a member said of itself when it was built."""

    pid: int
    device_uuid: str | None  # "GPU-…" or "MIG-…", as CUDA named the device it runs on
    sm_count: int | None  # SMs that its context can use
    memory_free: int | None  # bytes it saw free after making its context, with nothing loaded
    sm_source: str | None = None  # who told it: "affinity" (CUDA)
    stream: int | None = None  # handle of the CUDA stream that it has for itself, if it has one


Reports = Mapping[int, Report]  # by member
Listed = dict[str, list[int] | None]  # as Device.processes gives it


def processes_of(report: Report) -> set[int]:
    """PIDs of the member and what it started: a script may compute in a child (torchrun,
    accelerate, a shell's).
    """
    return {report.pid, *(process.pid for process in process_trees([report.pid]))}


def called(member: int, report: Report) -> str:
    """How sentences name a member."""
    return f"member {member} (PID {report.pid})"


def require_device(method: str, reports: Reports, uuid: str, device: Device | None = None) -> None:
    """Raise NotInForce unless every one of these members runs on this GPU or MIG device.

    device: the whole GPU, on which NVML has to list a process of a script that does not say where
    it runs.
    """
    for member, report in reports.items():
        who, found = f"{method}: {called(member, report)}", report.device_uuid
        if found is None:
            if device and processes_of(report) & set(device.processes()["compute"] or []):
                continue
            raise NotInForce(
                f"{who} was not seen on {uuid}: NVML lists none of its processes there, and it "
                "says of no device that it runs on it"
            )
        if found != uuid:
            raise NotInForce(f"{who} runs on {found}, not on {uuid}")


def among(reports: Reports, pids: Iterable[int], there: bool) -> str:
    """Those members that are, or are not, in a list of PIDs."""
    listed = set(pids)
    found = [called(m, r) for m, r in reports.items() if bool(processes_of(r) & listed) is there]
    return ", ".join(found)


def owner(pid: int) -> str:
    """How sentences name a process that is not a member."""
    try:
        process = psutil.Process(pid)
        return f"PID {pid} ({printable(process.name())}, owner {process.username()})"
    except psutil.Error:
        return f"PID {pid} (owner not visible from here)"


def require_free(device: Device) -> None:
    """Raise GpuBusy, naming PID and owner, if somebody else's MPS daemon serves the card, or
    processes compute on it. Kills nobody.
    """
    for process in psutil.process_iter():
        environment = None
        with suppress(psutil.Error):  # another user's: NVML would list its clients
            # Without these options it is somebody's question to a daemon, or it has ended.
            if process.name() == CONTROL and {"-d", "-f"} & set(process.cmdline()):
                environment = process.environ()
        if environment is not None and device.shown_to(environment):
            pipe = printable(environment.get(PIPE_FOLDER, DEFAULT_PIPE))
            raise GpuBusy(
                "a cell needs the GPU to itself, and another MPS daemon serves it: "
                f"{owner(process.pid)}, pipe folder {pipe}"
            )
    _awaited(device, lambda listed, late: _strangers(listed, set()))


def require_members(
    method: str, device: Device, plain: Reports, clients: Reports | None = None, server: int = 0
) -> Listed:
    """What NVML lists on the card, once that is these members, plain ones and clients of the MPS
    server, each with what it started, and nobody else.

    Where it shows them under other PIDs than they have here, as in a container, it has to list as
    many, or more where they started processes; where it lists nobody, that tells nothing. Raises
    GpuBusy, naming PID and owner, if others stay on the card; NotInForce if a member is not listed,
    or is no client that has to be one, or is one that must not be.
    """
    clients = clients or {}
    pids = list({report.pid for report in (*plain.values(), *clients.values())})

    def wrong(listed: Listed, late: bool) -> Exception | None:
        compute, mps = listed["compute"] or [], listed["mps"] or []
        if not pids:  # those that failed may be slow to leave
            return None
        started = {process.pid for process in process_trees(pids)}
        ours = {*pids, *started, *[server] * bool(server)}
        if not ours & set(compute):
            most = len(pids) + bool(clients)
            if len(compute) in (0, most) and len(mps) in (0, len(clients)):
                return None
            # What a member started is listed, too, under a PID that tells nothing here.
            room = most + len(started - set(pids))
            if most < len(compute) <= room and len(mps) <= len(clients) + room - most:
                return None
            others = len(compute) > room
            return (GpuBusy if others else NotInForce)(
                f"{method}: NVML lists {len(compute)} processes and {len(mps)} MPS clients; the "
                f"cell has {len(pids)} members, {len(clients)} of them clients"
            )
        if absent := among(plain, compute, False):
            return NotInForce(f"{method}: not among NVML's processes {compute}: {absent}")
        if listed["mps"] is not None and (absent := among(clients, mps, False)):
            return NotInForce(f"{method}: not among NVML's MPS clients {mps}: {absent}")
        if joined := among(plain, mps, True):
            return NotInForce(f"{method}: NVML lists MPS clients on the card: {joined}")
        # What a member started, or one that failed and is slow to end, is no stranger.
        ending = {process.pid for process in all_descendants()} if late else set()
        return _strangers(listed, ours | ending)

    return _awaited(device, wrong)


def _awaited(device: Device, wrong: Callable[[Listed, bool], Exception | None]) -> Listed:
    """What NVML lists, once nothing is wrong with it; raises what is wrong if it stays so."""
    deadline = time.monotonic() + GRACE_S
    while True:
        listed, late = device.processes(), time.monotonic() > deadline
        if not (error := wrong(listed, late)):
            return listed
        if late:
            raise error
        time.sleep(0.2)


def _strangers(listed: Listed, ours: set[int]) -> Exception | None:
    others = {*(listed["compute"] or []), *(listed["mps"] or [])} - ours
    owners = ", ".join(owner(pid) for pid in sorted(others))
    sentence = f"a cell needs the GPU to itself, and others compute on it: {owners}"
    return GpuBusy(sentence) if others else None
