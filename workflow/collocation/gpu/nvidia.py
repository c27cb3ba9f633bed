"""An NVIDIA GPU as NVML sees it: which card a study uses, its state, and who computes on it.

Everything here only reads. On a machine without an NVIDIA driver `find` finds none.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from workflow.collocation.gpu.device import Device
from workflow.collocation.gpu.nvml_subprocess import Silent, apart, leave_out, left_out
from workflow.collocation.spec.errors import ConfigError

# By compute capability, as CUDA's own samples have it (helper_cuda.h).
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128}
CORES_PER_SM |= dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], 128)


VISIBLE = "CUDA_VISIBLE_DEVICES"
# By the compute modes that limit it: how many processes may compute on a card at once.
MOST = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ("EXCLUSIVE_THREAD", 1),
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ("EXCLUSIVE_PROCESS", 1),
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ("PROHIBITED", 0),
}


@dataclass(frozen=True)
class Nvidia(Device):
    """bus: the card's place on the PCI bus, by which CUDA may count."""

    bus: str = field(default="", compare=False)

    @apart()
    def processes(self) -> dict[str, list[int] | None]:
        def pids(ask) -> list[int] | None:
            return _read(self.uuid, lambda h: sorted(entry.pid for entry in ask(h)))

        return {
            "compute": pids(pynvml.nvmlDeviceGetComputeRunningProcesses),
            "mps": pids(pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
        }


def find(wanted: str | int | None = "auto") -> list[Nvidia]:
    """The GPUs that may be used: those named, by index or UUID (or its beginning), with commas in
    between; or with 'auto' those that CUDA_VISIBLE_DEVICES shows, all if it is not set. None: all
    of this machine, along the bus, whether or not they may be used.

    'auto' gives none without a driver or a GPU. Raises ConfigError at a name that means no GPU that
    is there, or several. In CUDA_VISIBLE_DEVICES one behind a good one ends the list, as for CUDA.
    A GPU that is silent is left out; if nothing else is there, that raises Silent.
    """
    try:
        devices = _devices()
    except pynvml.NVMLError:
        if wanted in ("auto", None):
            return []
        raise ConfigError(
            f"gpu: {wanted!r} was asked for, but there is no NVIDIA driver here; allowed: auto, cpu"
        ) from None
    if wanted is None:
        return sorted(devices, key=lambda device: device.bus)
    source, names = "gpu", str(wanted)
    if wanted == "auto":
        source, names = VISIBLE, os.environ.get(VISIBLE)
        if not devices or names is None:
            return devices
    given: list[Nvidia] = []
    for name in names.split(","):
        name, what = name.strip(), "names several GPUs"
        if wanted != "auto":
            found = [d for d in devices if name == str(d.index) or name and d.uuid.startswith(name)]
        elif name in ("", "-1"):
            return given
        elif name.isdecimal() and left_out():
            raise Silent(f"{source}: {name!r} may be any GPU: {silence()}")
        else:
            found = _meant(name, os.environ, devices)
            if name.isdecimal():
                what = "may be any GPU, for CUDA counts the fastest first (CUDA_DEVICE_ORDER)"
        part = name.startswith("MIG-")
        if not found and left_out() and (not name.isdecimal() or int(name) in left_out()):
            continue
        if len(found) != 1 or part:
            if given and not found and wanted == "auto":
                return given
            raise ConfigError(f"{source}: {name!r} {_trouble(found, part, what, devices, source)}")
        if found[0] not in given:
            given += found
    if not given:
        raise Silent(f"{source}: {names!r}: {silence()}")
    return given


def silence() -> str:
    """A sentence that names the cards that were left out; empty if there are none."""
    which = ", ".join(map(str, left_out()))
    return f"the NVIDIA driver does not answer for GPU {which}, which is left out" if which else ""


def _trouble(found: list, part: bool, what: str, devices: list[Nvidia], source: str) -> str:
    """Why a name is none of one GPU, and which would be."""
    if not found or part:
        what = f"is no GPU{', but a part of one,' if part else ''} of this machine"
    known = ", ".join(f"{device.index} ({device.uuid})" for device in devices) or "none is there"
    if source == VISIBLE and len(found) > 1:
        known = ", ".join(device.uuid for device in devices)
    return f"{what}; allowed: {known}"


def shows(environment: Mapping[str, str], device: Device) -> bool:
    """Whether CUDA certainly shows the card to who has this environment."""
    if VISIBLE not in environment:
        return True
    devices = _or_none(_devices) or [device]
    names = [name.strip() for name in environment[VISIBLE].split(",")]
    if left_out() and any(map(str.isdecimal, names)):
        return False
    for name in names:
        uuids = [one.uuid for one in _meant(name, environment, devices)]
        if not uuids:  # what stands behind a name that means nothing is hidden
            return False
        if uuids == [device.uuid]:
            return True
    return False


def _meant(name: str, environment: Mapping[str, str], devices: list[Nvidia]) -> list[Nvidia]:
    """The cards that CUDA may mean by an entry of CUDA_VISIBLE_DEVICES, or by a part of one.

    A UUID may be cut short. An index counts along the bus where CUDA_DEVICE_ORDER says so; or else
    the fastest first, by a heuristic of CUDA's, which leaves cards of one model as they are.
    """
    if name.isdecimal():
        along = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if along or len({device.name for device in devices}) == 1:
            return sorted(devices, key=lambda device: device.bus)[int(name) :][:1]
        return devices if int(name) < len(devices) else []
    if name.startswith("MIG-"):
        card = card_of(name)
        return [d for d in devices if d.uuid == card or name.startswith(f"MIG-{d.uuid}/")]
    return [d for d in devices if name.startswith("GPU-") and d.uuid.startswith(name)]


def _devices() -> list[Nvidia]:
    """All cards that answer: a lost one must not hide the others, nor one that is silent. Raises
    NVMLError; Silent if all are.
    """
    found = []
    for index in range(_count()):
        if index not in left_out():
            try:
                found.append(_or_none(lambda i=index: _device(i)))
            except Silent as silent:
                leave_out(index, silent)
                _count()  # is it the card alone?
    if left_out() and not found:
        raise next(iter(left_out().values()))
    return [device for device in found if device]


@apart()
def _count() -> int:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()


@apart()
def _device(index: int) -> Nvidia:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Nvidia(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        index=index,
        memory_bytes=_or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        capability=capability,
        numa_node=_numa_node(handle),
        sm_count=_sm_count(handle, capability),
        bus=_bus(handle),
    )


def _sm_count(handle, capability: tuple[int, int]) -> int | None:
    """SMs of the whole card, from its CUDA cores; None where NVML or the table does not tell."""
    each = CORES_PER_SM.get(capability)
    cores = _or_none(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle))
    return cores // each if cores and each and cores % each == 0 else None


def _numa_node(handle) -> int | None:
    """The NUMA node that the card hangs on, from sysfs; None where there is no such thing."""
    domain, rest = _bus(handle).split(":", 1)
    path = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _bus(handle) -> str:
    """Such as 00000000:3b:00.0."""
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return (bus.decode() if isinstance(bus, bytes) else bus).lower()


def too_many(device: Device, processes: int) -> str | None:
    """Why the card's compute mode does not let so many processes compute at once; None if it does.

    The mode is an administrator's. A process counts if CUDA has made a context on the card for it.
    """
    mode, most = MOST.get(_compute_mode(device.uuid), ("", processes))
    if processes <= most:
        return None
    return (
        f"compute mode {mode} of {device.name} lets "
        f"{'one process compute, not several' if most else 'nobody compute'}; "
        f"an administrator changes it with 'nvidia-smi -i {device.uuid} -c DEFAULT'"
    )


@apart()
def _compute_mode(uuid: str) -> int | None:
    return _read(uuid, pynvml.nvmlDeviceGetComputeMode)


@apart()
def memory_free(uuid: str) -> int | None:
    """Bytes that nobody uses of a GPU or a MIG device; None where NVML does not tell."""
    return _read(uuid, lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).free)


@apart()
def card_of(mig_uuid: str) -> str | None:
    """The UUID of the card that a MIG device is part of; None where NVML does not know it."""
    card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    return _read(mig_uuid, lambda part: pynvml.nvmlDeviceGetUUID(card(part)))


@apart()
def mig_enabled(device: Device) -> bool | None:
    """Whether MIG mode is on; None on a card that has no MIG."""
    return _read(device.uuid, lambda h: bool(pynvml.nvmlDeviceGetMigMode(h)[0]))


def _read(uuid: str, read):
    """A reading of a GPU or a MIG device, or None where it does not give it, or is lost."""
    return _or_none(lambda: read(pynvml.nvmlDeviceGetHandleByUUID(uuid)))


def _or_none(read):
    """What `read` gives, or None where NVML refuses."""
    try:
        return read()
    except pynvml.NVMLError:
        return None
