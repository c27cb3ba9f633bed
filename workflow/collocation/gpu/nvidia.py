"""An NVIDIA GPU as NVML sees it: which card a study uses, its state, and who computes on it.

Everything here only reads. On a machine without an NVIDIA driver `find` returns None.
"""

import os
from pathlib import Path

import pynvml

from workflow.collocation.errors import ConfigError
from workflow.collocation.gpu.device import Device

# By compute capability, as CUDA's own samples have it (helper_cuda.h).
CORES_PER_SM = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128}
CORES_PER_SM |= dict.fromkeys([(8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], 128)


class Nvidia(Device):
    def state(self) -> dict:
        nvml = pynvml
        held_down, clock = nvml.nvmlDeviceGetViolationStatus, nvml.nvmlDeviceGetClockInfo
        readings = {
            "temperature_c": lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
            "sm_clock_mhz": lambda h: clock(h, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda h: clock(h, nvml.NVML_CLOCK_MEM),
            "memory_used_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).used,
            "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons,
            "power_violation_s": lambda h: (
                held_down(h, nvml.NVML_PERF_POLICY_POWER).violationTime / 1e9
            ),
            "thermal_violation_s": lambda h: (
                held_down(h, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
            ),
        }
        return {name: _read(self.uuid, read) for name, read in readings.items()}

    def processes(self) -> dict[str, list[int] | None]:
        def pids(ask) -> list[int] | None:
            return _read(self.uuid, lambda h: sorted(entry.pid for entry in ask(h)))

        return {
            "compute": pids(pynvml.nvmlDeviceGetComputeRunningProcesses),
            "mps": pids(pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
        }


def find(wanted: str | int = "auto") -> Nvidia | None:
    """The GPU to use: an index, a UUID (or its beginning), or 'auto', the first one visible.

    'auto' gives None without a driver or a GPU, or where CUDA_VISIBLE_DEVICES hides them all.
    Raises ConfigError where `wanted` names none that is there, or several.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        if wanted != "auto":
            raise ConfigError(
                f"gpu: {wanted!r} was asked for, but there is no NVIDIA driver here; "
                "allowed: auto, cpu"
            ) from None
        return None
    readable = (_or_none(lambda i=i: _device(i)) for i in range(pynvml.nvmlDeviceGetCount()))
    devices = [device for device in readable if device]  # a lost card must not hide the others
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
    )


def _sm_count(handle, capability: tuple[int, int]) -> int | None:
    """SMs of the whole card, from its CUDA cores; None where NVML or the table does not tell."""
    each = CORES_PER_SM.get(capability)
    cores = _or_none(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle))
    return cores // each if cores and each and cores % each == 0 else None


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


def memory_free(uuid: str) -> int | None:
    """Bytes that nobody uses of a GPU or a MIG device; None where NVML does not tell."""
    return _read(uuid, lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).free)


def card_of(mig_uuid: str) -> str | None:
    """The UUID of the card that a MIG device is part of; None where NVML does not know it."""
    card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    return _read(mig_uuid, lambda part: pynvml.nvmlDeviceGetUUID(card(part)))


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
