"""NVIDIA GPUs as NVML sees them: which cards a study uses, their state, who computes on them.

A driver that fails is told in NVML's own words, and never taken for a machine without a GPU.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from workflow.collocation.gpu.nvml_subprocess import DriverError, in_subprocess
from workflow.collocation.study.errors import ConfigError

# What pynvml raises: where a driver is older than a call of it, that is no NVMLError.
NVML_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
# By compute capability, as CUDA's own samples have it (helper_cuda.h).
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128}
CORES_PER_SM |= dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], 128)
VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = ("", "-1", "NoDevFiles", "none", "void")  # entries that show no GPU; Slurm has NoDevFiles

_LEFT_OUT: dict[int, DriverError] = {}  # cards that fail, by index


@dataclass(frozen=True)
class Device:
    """One physical GPU. `index` is NVML's, `capability` the CUDA compute capability, `bus` the
    card's place on the PCI bus, by which CUDA may count.

    `sm_count` (of the whole card) and `memory_bytes` are None where unknown: in MIG mode NVML tells
    the card's memory to administrators only, and a card that shares the CPU's memory has none.
    """

    uuid: str
    name: str
    index: int
    memory_bytes: int | None
    driver: str
    capability: tuple[int, int]
    numa_node: int | None
    sm_count: int | None = None
    bus: str = field(default="", compare=False)

    @in_subprocess()
    def processes(self) -> dict[str, list[int] | None]:
        """PIDs on the card: all that "compute", and those that are "mps" clients; None where not
        readable. In a container they may be the host's PIDs.
        """

        def pids(ask) -> list[int] | None:
            return _read(self.uuid, lambda h: sorted(entry.pid for entry in ask(h)))

        return {
            "compute": pids(pynvml.nvmlDeviceGetComputeRunningProcesses),
            "mps": pids(pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
        }

    @in_subprocess()
    def memory_free(self) -> int | None:
        """Bytes that nobody uses; None where not readable."""
        memory = _read(self.uuid, pynvml.nvmlDeviceGetMemoryInfo)
        return memory.free if memory and memory.total else None

    def too_many(self, processes: int) -> str | None:
        """Why the card does not let so many processes compute at once; None if it does. It is the
        compute mode that says so, which is an administrator's.
        """
        mode = _compute_mode(self.uuid)
        most = 0 if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else 1  # where a mode limits it
        if mode in (None, pynvml.NVML_COMPUTEMODE_DEFAULT) or processes <= most:
            return None
        return (
            f"the compute mode of {self.name} lets "
            f"{'one process compute, not several' if most else 'nobody compute'}; "
            f"an administrator changes it with 'nvidia-smi -i {self.uuid} -c DEFAULT'"
        )

    def shown_to(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment certainly sees the card."""
        try:
            return self in visible(environment, _devices())
        except ConfigError:
            return False


# -- which ----------------------------------------------------------------------------------------


def find(wanted: str | int | None = "auto") -> list[Device]:
    """The GPUs that may be used: those named, by index or UUID (or its beginning), with commas in
    between; or with 'auto' those that CUDA_VISIBLE_DEVICES shows, all if it is not set. None: all
    of this machine, along the bus, whether or not they may be used.

    A card that fails is left out. Raises ConfigError at a name that means no GPU, or several;
    DriverError if the driver fails, or none of its cards works.
    """
    devices = _devices()
    if wanted is None:
        return _along_the_bus(devices)
    if wanted == "auto":
        return visible(os.environ, devices)
    given = []
    for name in map(str.strip, str(wanted).split(",")):
        found = [d for d in devices if name == str(d.index) or name and d.uuid.startswith(name)]
        if len(found) != 1:
            what = "names several GPUs" if found else "is no GPU of this machine"
            raise _no_gpu("gpu", name, what, devices)
        given += found
    return [*dict.fromkeys(given)]


def visible(environment: Mapping[str, str], devices: list[Device]) -> list[Device]:
    """Those that CUDA shows to a process with this environment.

    As for CUDA, an entry that means nothing ends the list, and a UUID may be cut short. Raises
    ConfigError where the first one means nothing, and at an index where several models are there:
    CUDA counts along the bus only where CUDA_DEVICE_ORDER says so, and else the fastest first.
    """
    if not devices or VISIBLE not in environment:
        return devices
    told = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    counted = not _LEFT_OUT and (told or len({device.name for device in devices}) == 1)
    given = []
    for name in map(str.strip, environment[VISIBLE].split(",")):
        found = [d for d in devices if name.startswith("GPU-") and d.uuid.startswith(name)]
        if name.isdecimal() and not counted:
            raise _no_gpu(VISIBLE, name, "may be any GPU (CUDA_DEVICE_ORDER)", devices)
        if name.isdecimal():
            found = _along_the_bus(devices)[int(name) :][:1]
        if len(found) != 1:
            if given or name in HIDING:
                break
            raise _no_gpu(VISIBLE, name, "is no GPU of this machine", devices)
        given += found
    return [*dict.fromkeys(given)]


def _along_the_bus(devices: list[Device]) -> list[Device]:
    return sorted(devices, key=lambda device: device.bus)


def _no_gpu(source: str, name: str, what: str, devices: list[Device]) -> ConfigError:
    known = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
    allowed = f"allowed: {known or 'auto, cpu, for there is none'}"
    return ConfigError("; ".join(filter(None, (f"{source}: {name!r} {what}", left_out(), allowed))))


def left_out() -> str:
    """A sentence that names the cards that fail; empty if there are none."""
    return "; ".join(f"GPU {index} is left out: {why}" for index, why in _LEFT_OUT.items())


def _devices() -> list[Device]:
    """All cards that work; none without NVIDIA's library. Raises DriverError."""
    try:
        count = _count()
    except pynvml.NVMLError_LibraryNotFound:
        return []
    except NVML_ERRORS as error:
        raise _failure(error) from None
    found = []
    for index in range(count):
        try:
            if index not in _LEFT_OUT:
                found.append(_device(index))
        except NVML_ERRORS as error:
            _LEFT_OUT[index] = _failure(error)
    if _LEFT_OUT and not found:
        raise next(iter(_LEFT_OUT.values()))
    return found


def _failure(error: Exception) -> DriverError:
    """NVML's words, and what to do."""
    code = getattr(error, "value", None)
    number = "" if code is None else f" (NVML error {code})"
    return DriverError(
        f"the NVIDIA driver fails: {' '.join(str(error).split())}{number}; 'nvidia-smi' and "
        "'dmesg' may say more; after an update of the driver restart the machine, or the "
        "container; gpu=cpu measures on the CPU"
    )


# -- readings -------------------------------------------------------------------------------------


@in_subprocess()
def _count() -> int:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()


@in_subprocess()
def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        index=index,
        memory_bytes=_or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total) or None,
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
        node = int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _bus(handle) -> str:
    """Such as 00000000:3b:00.0."""
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return (bus.decode() if isinstance(bus, bytes) else bus).lower()


@in_subprocess()
def _compute_mode(uuid: str) -> int | None:
    return _read(uuid, pynvml.nvmlDeviceGetComputeMode)


@in_subprocess()
def mig_enabled(device: Device) -> bool | None:
    """Whether MIG mode is on; None on a card that has no MIG, or where NVML does not tell."""
    return _read(device.uuid, lambda h: bool(pynvml.nvmlDeviceGetMigMode(h)[0]))


def _read(uuid: str, read: Callable):
    """A reading of a GPU, or None where it does not give it, or is lost."""
    return _or_none(lambda: read(pynvml.nvmlDeviceGetHandleByUUID(uuid)))


def _or_none(read: Callable):
    """What `read` gives, or None where NVML refuses."""
    try:
        return read()
    except NVML_ERRORS:
        return None
