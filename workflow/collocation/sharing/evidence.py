"""What the methods' evidence has in common: members' reports, and who else is on the card."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from workflow.collocation import gpu
from workflow.collocation.process_lifetime import offspring
from workflow.collocation.spec.errors import NotInForce, printable

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


@dataclass(frozen=True)
class Place:
    """Where a member has to be: a whole GPU or a MIG device."""

    uuid: str
    sm_count: int | None  # of the whole place, null where unknown


def called(member: int, report: Report) -> str:
    """How sentences name a member."""
    return f"member {member} (PID {report.pid})"


def require_device(method: str, reports: dict[int, Report], uuid: str) -> None:
    """Raise NotInForce unless every one of these members runs on this GPU or MIG device."""
    for member, report in reports.items():
        who, found = f"{method}: {called(member, report)}", report.device_uuid
        if found is None:
            raise NotInForce(f"{who} did not say which device it runs on; {uuid} was planned")
        if found != uuid:
            raise NotInForce(f"{who} runs on {found}, not on {uuid}")


def absent(reports: dict[int, Report], listed: Iterable[int]) -> str | None:
    """The members that a list of PIDs lacks, as the beginning of a sentence; None if it has all."""
    names = [
        called(member, report)
        for member, report in reports.items()
        if not known_as(report.pid) & set(listed)
    ]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}" if names else None


def known_as(pid: int) -> set[int]:
    """The process's PID here and, in a container started from here, its PIDs in there."""
    with suppress(OSError):
        nested = re.search(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.M)
        return {pid} | {int(n) for n in nested[1].split()} if nested else {pid}
    return {pid}


def names_of(pids: Iterable[int]) -> set[int]:
    """All PIDs that these processes are known as."""
    return set().union(*map(known_as, pids))


def require_free(device: gpu.Device) -> None:
    """Raise GpuBusy, naming PID and owner, if somebody else's MPS daemon serves the card, or
    processes compute on it. Kills nobody.
    """
    for process, environment in _daemons():
        if device.shown_to(environment):
            pipe = printable(environment.get(PIPE_FOLDER, DEFAULT_PIPE))
            raise GpuBusy(
                "a cell needs the GPU to itself, and another MPS daemon serves it: "
                f"{owner(process.pid)}, pipe folder {pipe}"
            )
    require_alone(device)


def require_alone(device: gpu.Device, ours: Iterable[int] = ()) -> dict[str, list[int] | None]:
    """What NVML lists on the card (Device.processes), once that is nobody but the PIDs of `ours`.

    Raises GpuBusy, naming PID and owner, if others stay on the card. To be asked with `ours`
    only where NVML shows them under the PIDs that they have here; then a member that failed and is
    slow to end is no stranger either.
    """
    expected = names_of(ours)

    def wrong(listed: dict, late: bool) -> Exception | None:
        strangers = {pid for pids in listed.values() for pid in pids or []} - expected
        if late and ours:
            strangers -= names_of(process.pid for process in offspring())
        owners = ", ".join(owner(pid) for pid in sorted(strangers))
        sentence = f"a cell needs the GPU to itself, and others compute on it: {owners}"
        return GpuBusy(sentence) if owners else None

    return _awaited(device, wrong)


def require_no_clients(method: str, reports: dict[int, Report], listed: dict) -> None:
    """Raise NotInForce if NVML lists MPS clients on the card of which one is, or may be, a member.
    Those that are none, where PIDs compare, are left to `require_alone`.

    listed: as Device.processes gives it. For methods that have the card to themselves without MPS.
    """
    clients = listed["mps"] or []
    members = {
        name: called(member, report)
        for member, report in reports.items()
        for name in known_as(report.pid)
    }
    comparable = members.keys() & set(listed["compute"] or [])
    if clients and not (comparable and members.keys().isdisjoint(clients)):
        names = ", ".join(members.get(pid) or owner(pid) for pid in clients)
        raise NotInForce(f"{method}: NVML lists MPS clients on the card: {names}")


def require_counts(
    method: str, device: gpu.Device, plain: Collection[int], clients: Collection[int] = ()
) -> dict[str, list[int] | None]:
    """What NVML lists on the card (Device.processes), once it is as many as there are: members of
    these PIDs and, where some are MPS clients, their server.

    For where NVML's PIDs do not compare with those here. An empty list tells nothing: in some
    containers NVML names nobody. Raises GpuBusy if there stay more than what the members may have
    started, NotInForce otherwise.
    """
    pids = [*plain, *clients]
    most = len(pids) + bool(clients)
    there = _several(len(pids), "member")
    if clients:
        there += " and 1 MPS server"

    def wrong(listed: dict, late: bool) -> Exception | None:
        served, computing = (len(listed[key] or []) for key in ("mps", "compute"))
        found, more, theirs = [], [], _started_by(pids) if late else 0
        if clients and served not in (0, len(clients)):
            found.append(_several(served, "MPS client"))
            more.append(served > len(clients) + theirs)
        if computing not in (0, most):
            found.append(_several(computing, "process", "es"))
            more.append(computing > most + theirs)
        sentence = f"{method}: NVML lists {' and '.join(found)}, the cell has {there}"
        return (GpuBusy if all(more) else NotInForce)(sentence) if found else None

    return _awaited(device, wrong)


def _awaited(device: gpu.Device, wrong: Callable) -> dict[str, list[int] | None]:
    """What NVML lists, once nothing is wrong with it; raises what is wrong if it stays so."""
    deadline = time.monotonic() + GRACE_S
    while True:
        listed, late = device.processes(), time.monotonic() > deadline
        if not (error := wrong(listed, late)):
            return listed
        if late:
            raise error
        time.sleep(0.2)


def _started_by(pids: Iterable[int]) -> int:
    """How many processes these have started."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with suppress(psutil.Error):
            found |= set(psutil.Process(pid).children(recursive=True))
    return len(found)


def _several(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def owner(pid: int) -> str:
    """How sentences name a process that is not a member."""
    try:
        process = psutil.Process(pid)
        return f"PID {pid} ({printable(process.name())}, owner {process.username()})"
    except psutil.Error:
        return f"PID {pid} (owner not visible from here)"


def _daemons() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Every MPS control daemon here whose environment is readable, and that.

    Another user's is not, which is no reason to refuse: NVML would list its clients.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # Without these options it is somebody's question to a daemon, or it has ended.
            if process.name() == CONTROL and {"-d", "-f"} & set(process.cmdline()):
                yield process, process.environ()
