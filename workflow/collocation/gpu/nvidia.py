"""NVIDIA GPUs as NVML sees them: which cards a study uses, their state, who computes on them.

A driver that fails is reported in NVML's own words, and never taken for a machine without a GPU.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from workflow.collocation.gpu.nvml_subprocess import DriverError, in_subprocess
from workflow.collocation.study.errors import ConfigError

# What pynvml raises; the second where a driver is older than a call, and is no NVMLError.
NVML_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
# By compute capability, as CUDA's own samples have it (helper_cuda.h).
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128}
CORES_PER_SM |= dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], 128)
VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDING = ("", "-1", "NoDevFiles", "none", "void")  # entries that show no GPU; Slurm has NoDevFiles

_FAILING: dict[int, DriverError] = {}  # cards that fail, by index


@dataclass(frozen=True)
class Device:
    """One physical GPU.

    index: NVML's. capability: the CUDA compute capability. sm_count: of the whole card.
    memory_bytes: None in MIG mode, where NVML tells it to administrators only, and of a card that
    shares the CPU's memory. bus: the card's place on the PCI bus, by which CUDA may count. Every
    None is: not known.
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
        """PIDs on the card: of all processes ("compute"), and of MPS clients ("mps"); None where
        not readable. In a container they may be the host's PIDs; one may stand there twice.
        """
        lists = _query(self.uuid, process_entries) or {"compute": None, "mps": None}
        return {
            kind: None if entries is None else sorted(entry.pid for entry in entries)
            for kind, entries in lists.items()
        }

    @in_subprocess()
    def process_memory(self) -> dict[int, int]:
        """Bytes of device memory by PID, of all processes on the card; 0 where not given."""
        lists = _query(self.uuid, process_entries) or {}
        memory: dict[int, int] = Counter()
        clients = {entry.pid for entry in lists.get("mps") or ()}
        for kind in ("mps", "compute"):
            for entry in lists.get(kind) or ():  # a process is listed for each part of a card
                if kind == "mps" or entry.pid not in clients:
                    memory[entry.pid] += entry.usedGpuMemory or 0
        return dict(memory)

    @in_subprocess()
    def memory_free(self) -> int | None:
        """Bytes that nobody uses; None where not readable."""
        memory = _query(self.uuid, pynvml.nvmlDeviceGetMemoryInfo)
        return memory.free if memory and memory.total else None

    def too_many(self, processes: int) -> str | None:
        """Why the card's compute mode forbids so many processes at once, or None."""
        mode = _compute_mode(self.uuid)
        if mode in (None, pynvml.NVML_COMPUTEMODE_DEFAULT):
            return None
        limit = 0 if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else 1
        if processes <= limit:
            return None
        return (
            f"the compute mode of {self.name} lets "
            f"{'one process compute, not several' if limit else 'nobody compute'}; "
            f"an administrator changes it with 'nvidia-smi -i {self.uuid} -c DEFAULT'"
        )

    def cuda_name(self) -> str:
        """How CUDA_VISIBLE_DEVICES names the card where CUDA_DEVICE_ORDER is PCI_BUS_ID.

        Its index, because trackers of energy know no other name (zeus ends at a UUID, codecarbon
        reads 0 J) and ask NVML by it. Its UUID where NVML and CUDA may count differently: a card
        fails or is in MIG mode, or NVML does not count along the bus.
        """
        cards = _in_bus_order(_devices())
        counted_alike = [card.index for card in cards] == [*range(len(cards))] and not _FAILING
        if not counted_alike or self.uuid not in {card.uuid for card in cards}:
            return self.uuid
        return self.uuid if any(map(mig_enabled, cards)) else str(self.index)

    def shown_to(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment certainly sees the card."""
        try:
            return self in visible(environment, _devices())
        except ConfigError:
            return False


# -- which cards ----------------------------------------------------------------------------------


def find(wanted: str | int | None = "auto") -> list[Device]:
    """The GPUs that may be used. A card that fails is left out.

    wanted: indices or UUIDs (or their beginnings), with commas in between; "auto" for those that
    CUDA_VISIBLE_DEVICES shows, all if it is not set; None for all of this machine, in the order of
    the bus, whether or not they may be used. Raises ConfigError for a name that means no GPU, or
    several; DriverError if the driver fails, or none of its cards works.
    """
    devices = _devices()
    if wanted is None:
        return _in_bus_order(devices)
    if wanted == "auto":
        return visible(os.environ, devices)
    chosen = []
    for name in map(str.strip, str(wanted).split(",")):
        matches = [d for d in devices if name == str(d.index) or name and d.uuid.startswith(name)]
        if len(matches) != 1:
            problem = "names several GPUs" if matches else "is no GPU of this machine"
            raise _no_gpu("gpu", name, problem, devices)
        chosen += matches
    return [*dict.fromkeys(chosen)]


def visible(environment: Mapping[str, str], devices: list[Device]) -> list[Device]:
    """The devices that CUDA shows to a process with this environment.

    As for CUDA, an entry that means nothing ends the list, and a UUID may be cut short. Raises
    ConfigError where the first entry means nothing, and at an index where cards are of several
    models: CUDA counts along the bus only where CUDA_DEVICE_ORDER says so, else the fastest first.
    """
    if not devices or VISIBLE not in environment:
        return devices
    bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    one_model = len({device.name for device in devices}) == 1
    index_is_clear = not _FAILING and (bus_order or one_model)
    chosen = []
    for name in map(str.strip, environment[VISIBLE].split(",")):
        if name.isdecimal() and not index_is_clear:
            raise _no_gpu(VISIBLE, name, "may be any GPU (CUDA_DEVICE_ORDER)", devices)
        if name.isdecimal():
            matches = _in_bus_order(devices)[int(name) :][:1]
        else:
            matches = [d for d in devices if name.startswith("GPU-") and d.uuid.startswith(name)]
        if len(matches) != 1:
            if chosen or name in HIDING:
                break
            raise _no_gpu(VISIBLE, name, "is no GPU of this machine", devices)
        chosen += matches
    return [*dict.fromkeys(chosen)]


def _in_bus_order(devices: list[Device]) -> list[Device]:
    return sorted(devices, key=lambda device: device.bus)


def _no_gpu(source: str, name: str, problem: str, devices: list[Device]) -> ConfigError:
    names = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
    allowed = f"allowed: {names or 'auto, cpu, for there is none'}"
    sentences = f"{source}: {name!r} {problem}", failing_cards(), allowed
    return ConfigError("; ".join(filter(None, sentences)))


def failing_cards() -> str:
    """A sentence that names the cards that fail; empty if there are none."""
    return "; ".join(f"GPU {index} is left out: {error}" for index, error in _FAILING.items())


def _devices() -> list[Device]:
    """All cards that work; none without NVIDIA's library. Raises DriverError."""
    try:
        count = _count()
    except pynvml.NVMLError_LibraryNotFound:
        return []
    except NVML_ERRORS as error:
        raise _driver_error(error) from None
    devices = []
    for index in range(count):
        try:
            if index not in _FAILING:
                devices.append(_device(index))
        except NVML_ERRORS as error:
            _FAILING[index] = _driver_error(error)
    if _FAILING and not devices:
        raise next(iter(_FAILING.values()))
    return devices


def _driver_error(error: Exception) -> DriverError:
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
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(card))
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(card),
        name=pynvml.nvmlDeviceGetName(card),
        index=index,
        memory_bytes=_or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(card).total) or None,
        driver=pynvml.nvmlSystemGetDriverVersion(),
        capability=capability,
        numa_node=_numa_node(card),
        sm_count=_sm_count(card, capability),
        bus=_bus(card),
    )


def _sm_count(card, capability: tuple[int, int]) -> int | None:
    """SMs of the whole card, from its CUDA cores; None where NVML or the table lacks it."""
    cores_per_sm = CORES_PER_SM.get(capability)
    cores = _or_none(lambda: pynvml.nvmlDeviceGetNumGpuCores(card))
    if not cores or not cores_per_sm or cores % cores_per_sm:
        return None
    return cores // cores_per_sm


def _numa_node(card) -> int | None:
    """The card's NUMA node, from sysfs; None where sysfs has none."""
    domain, address = _bus(card).split(":", 1)
    path = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{address}/numa_node")
    try:
        node = int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _bus(card) -> str:
    """PCI address, such as 00000000:3b:00.0."""
    bus = pynvml.nvmlDeviceGetPciInfo(card).busId
    return (bus.decode() if isinstance(bus, bytes) else bus).lower()


@in_subprocess()
def _compute_mode(uuid: str) -> int | None:
    return _query(uuid, pynvml.nvmlDeviceGetComputeMode)


@in_subprocess()
def mig_enabled(device: Device) -> bool | None:
    """Whether MIG mode is on; None on a card that has no MIG, or where NVML does not say."""
    return _query(device.uuid, lambda card: bool(pynvml.nvmlDeviceGetMigMode(card)[0]))


def process_entries(card) -> dict[str, list | None]:
    """NVML's entries of all processes ("compute") and of MPS clients ("mps") on a card's handle.

    None where NVML does not give the list.
    """
    return {
        "compute": _or_none(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(card)),
        "mps": _or_none(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(card)),
    }


def _query(uuid: str, query: Callable):
    """NVML's answer for a GPU, or None where it refuses, or the GPU is lost."""
    return _or_none(lambda: query(pynvml.nvmlDeviceGetHandleByUUID(uuid)))


def _or_none(call: Callable):
    """The call's result, or None where NVML refuses."""
    try:
        return call()
    except NVML_ERRORS:
        return None
