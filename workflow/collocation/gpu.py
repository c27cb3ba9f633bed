"""The GPU as NVML sees it: which card a study uses, its state, and who computes on it.

Everything here only reads. On a machine without an NVIDIA driver `find` returns None.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import pynvml

from workflow.collocation.settings import ConfigError


@dataclass(frozen=True)
class Device:
    """One physical GPU. `index` is NVML's, `capability` the CUDA compute capability."""

    uuid: str
    name: str
    index: int
    memory_bytes: int
    driver: str
    capability: tuple[int, int]
    numa_node: int | None

    def record(self) -> dict:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "driver": self.driver,
        }


def torch_has_cuda() -> bool:
    """Whether the installed torch is a CUDA build, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    library = Path(spec.origin).parent / "lib"
    return (library / "libtorch_cuda.so").exists()


def find(wanted: str | int = "auto") -> Device | None:
    """The GPU to use: an index, a UUID (or its beginning), or 'auto', the first one visible.

    'auto' gives None without a driver or a GPU, or where CUDA_VISIBLE_DEVICES hides them all.
    Raises ConfigError where `wanted` names none that is there, or several.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        if wanted != "auto":
            raise ConfigError(
                f"gpu: {wanted!r} was asked for, but there is no NVIDIA driver here; allowed: auto"
            ) from None
        return None
    devices = [_device(index) for index in range(pynvml.nvmlDeviceGetCount())]
    source, name = "gpu", str(wanted)
    if wanted == "auto":
        source = "CUDA_VISIBLE_DEVICES"
        name = os.environ.get(source, "0").split(",")[0].strip()
        if not devices or name in ("", "-1"):
            return None
    found = [d for d in devices if name == str(d.index) or (name and d.uuid.startswith(name))]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{device.index} ({device.uuid})" for device in devices) or "none is there"
    what = "names several GPUs" if found else "is no GPU of this machine"
    raise ConfigError(f"{source}: {name!r} {what}; allowed: {known}")


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        index=index,
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        driver=pynvml.nvmlSystemGetDriverVersion(),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        numa_node=_numa_node(handle),
    )


def _numa_node(handle) -> int | None:
    """The NUMA node that the card hangs on, from sysfs; None where there is no such thing."""
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId.lower()
    bus = bus.decode() if isinstance(bus, bytes) else bus
    domain, rest = bus.split(":", 1)
    path = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def state(device: Device) -> dict:
    """Temperature (C), power (W), clocks (MHz), memory in use (bytes); null where not readable."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    readings = {
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(
            handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "memory_used_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "throttle_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    }
    return {name: _or_none(read) for name, read in readings.items()}


def processes(device: Device) -> dict[str, list[int] | None]:
    """PIDs that NVML lists on the card: plain compute processes and MPS clients.

    In a container they may be the host's PIDs.
    """
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    lists = {
        "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
        "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    }
    return {
        name: _or_none(lambda read=read: sorted(entry.pid for entry in read(handle)))
        for name, read in lists.items()
    }


def mig_enabled(device: Device) -> bool | None:
    """Whether MIG mode is on; None on a card that has no MIG."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    mode = _or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
    return None if mode is None else bool(mode)


def _or_none(read):
    """A reading, or None where this card or driver does not give it."""
    try:
        return read()
    except pynvml.NVMLError:
        return None
