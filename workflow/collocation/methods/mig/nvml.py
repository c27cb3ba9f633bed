"""MIG as NVML has it: the mode, the profiles, the instances that are there, and changing them; and
what is said of these.

Every function may raise pynvml.NVMLError, which `in_words` turns into the sentences that cells end
with. Handles are asked for anew each time: a changed mode, or an instance that went, makes them
void.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pynvml
from pydantic import Field

from workflow.collocation.gpu import Device
from workflow.collocation.methods.evidence import NotInForce, Unsupported

Place = tuple[int, int, int]  # profile id, start, size: no two GPU instances have the same
Handle = Annotated[object, Field(exclude=True)]  # means nothing in a journal
HOPPER = (9, 0)  # the compute capability from which on MIG mode is switched without a reset
# Who may read the device file that this names may create instances.
CAPABILITY = Path("/proc/driver/nvidia/capabilities/mig/config")
CAPABILITY_DEVICES = Path("/dev/nvidia-caps")
NOT_THERE = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
)


@dataclass(frozen=True)
class Compute:
    """A compute instance: profile id, place in compute slices, SM slices; whatever its id.

    uuid, sm_count, memory_mib: of the MIG device that it makes; that is memory of the GPU instance.
    """

    profile: int
    start: int
    size: int
    slices: int
    id: int = field(default=-1, compare=False)
    handle: Handle = field(default=None, compare=False)
    uuid: str | None = field(default=None, compare=False)
    sm_count: int | None = field(default=None, compare=False)
    memory_mib: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Instance:
    """A GPU instance: profile id, place in memory slices, compute instances from the lowest on;
    whatever its id. name: of its profile.
    """

    profile: int
    start: int
    size: int
    compute: tuple[Compute, ...]
    name: str = field(default="", compare=False)
    id: int = field(default=-1, compare=False)
    handle: Handle = field(default=None, compare=False)

    @property
    def place(self) -> Place:
        return self.profile, self.start, self.size

    @property
    def uuids(self) -> set[str]:
        """Of the MIG devices in it."""
        return {one.uuid for one in self.compute if one.uuid}

    def __str__(self) -> str:
        return f"{self.name} at {self.start}:{self.size}"


@dataclass(frozen=True)
class State:
    """MIG mode now and after the next reset, and the GPU instances, in the order of their ids."""

    mode: bool
    pending: bool
    instances: tuple[Instance, ...]

    def __str__(self) -> str:
        """Such as "MIG mode on and 2g.10gb at 0:2, 3g.20gb at 4:4"."""
        if not self.mode:
            return "MIG mode off"
        return f"MIG mode on and {', '.join(map(str, self.instances)) or 'no instances'}"


def handle(device: Device):
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


def mode(device: Device) -> tuple[bool, bool] | None:
    """MIG mode (now, after the next reset); None on a card that has no MIG."""
    try:
        now, pending = pynvml.nvmlDeviceGetMigMode(handle(device))
    except pynvml.NVMLError_NotSupported:
        return None
    return bool(now), bool(pending)


def state(device: Device) -> State:
    now, pending = mode(device) or (False, False)
    return State(now, pending, tuple(instances(device) if now else ()))


def _known(ask, of, count: int, *more) -> Iterator[tuple[int, object]]:
    """(index, NVML's answer) for every index that there is of something with a handle."""
    for index in range(count):
        with suppress(*NOT_THERE):
            yield index, ask(of, index, *more)


def profiles(device: Device) -> Iterator[tuple[int, object]]:
    """(index, NVML's info) of every GPU-instance profile; answered with MIG disabled, too."""
    ask, most = pynvml.nvmlDeviceGetGpuInstanceProfileInfo, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    return _known(ask, handle(device), most)


def name(profile) -> str:
    """Of NVML's info on a GPU-instance profile: "3g.71gb"."""
    text = profile.name.decode() if isinstance(profile.name, bytes) else profile.name
    return text.removeprefix("MIG ")


def placements(device: Device, profile: int) -> list[tuple[int, int]]:
    """(start, size) in memory slices where a profile may lie; answered with MIG disabled, too."""
    ask, count = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, c_uint()
    ask(handle(device), profile, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(handle(device), profile, places, byref(count))
    return sorted((place.start, place.size) for place in places[: count.value])


def instances(device: Device) -> list[Instance]:
    """The GPU instances that are there, by their ids."""
    devices, found = _mig_devices(device), []
    for _, profile in profiles(device):
        ask, kind = pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t
        for one in _all(ask, handle(device), profile, kind):
            info = pynvml.nvmlGpuInstanceGetInfo(one)
            place, inside = info.placement, _compute_instances(one, info.id, devices)
            there = (info.profileId, place.start, place.size, inside)
            found.append(Instance(*there, name(profile), info.id, one))
    return sorted(found, key=lambda one: one.id)


def _compute_instances(gpu_instance, number: int, devices: dict) -> tuple[Compute, ...]:
    found = []
    for profile in _compute_profiles(gpu_instance):
        ask, kind = pynvml.nvmlGpuInstanceGetComputeInstances, pynvml.c_nvmlComputeInstance_t
        for one in _all(ask, gpu_instance, profile, kind):
            info = pynvml.nvmlComputeInstanceGetInfo(one)
            place, about = info.placement, devices.get((number, info.id), ())
            there = (info.profileId, place.start, place.size, profile.sliceCount)
            found.append(Compute(*there, info.id, one, *about))
    return tuple(sorted(found, key=lambda one: one.start))


def _all(ask, parent, profile, kind) -> list:
    """All instances of a profile; the buffer has to hold as many as there can be."""
    there, count = (kind * profile.instanceCount)(), c_uint(profile.instanceCount)
    ask(parent, profile.id, there, byref(count))
    # Copies: an element is but a view into the buffer.
    return [ctypes.cast(one, kind) for one in there[: count.value]]


def _compute_profiles(gpu_instance) -> list:
    ask, most = (
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
        pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    )
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    return [info for _, info in _known(ask, gpu_instance, most, shared)]


def _mig_devices(device: Device) -> dict[tuple[int, int], tuple]:
    """(GPU instance id, compute instance id) → UUID, SMs and MiB of the MIG device of the two."""
    ask, found = pynvml.nvmlDeviceGetMigDeviceHandleByIndex, {}
    most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(device))
    for _, one in _known(ask, handle(device), most):  # the numbers have gaps
        ids = pynvml.nvmlDeviceGetGpuInstanceId(one), pynvml.nvmlDeviceGetComputeInstanceId(one)
        about = pynvml.nvmlDeviceGetAttributes(one)
        uuid = pynvml.nvmlDeviceGetUUID(one)
        found[ids] = uuid, about.multiprocessorCount, about.memorySizeMB
    return found


def residents(device: Device) -> dict[int, tuple[int, int]]:
    """PID → (GPU instance id, compute instance id) of what computes on the card."""
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(device))
    return {one.pid: (one.gpuInstanceId, one.computeInstanceId) for one in listed}


# -- changes --------------------------------------------------------------------------------------


def set_mode(device: Device, on: bool) -> int | None:
    """Ask for a MIG mode; gives NVML's error code if it is not in force at once."""
    status = pynvml.nvmlDeviceSetMigMode(handle(device), int(on))
    if mode(device) == (on, on):
        return None
    return status or pynvml.NVML_ERROR_RESET_REQUIRED


def create_gpu_instance(device: Device, profile: int, start: int, size: int):
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle(device), profile, byref(place))


def create_compute(gpu_instance, compute: Compute) -> None:
    """A compute instance in its place; from a driver too old to be told, in the next that is free.

    So they are to be created from the lowest on.
    """
    place = pynvml.c_nvmlComputeInstancePlacement_t(compute.start, compute.size)
    try:
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
            gpu_instance, compute.profile, byref(place)
        )
    except pynvml.NVMLError_FunctionNotFound:
        pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, compute.profile)


def create_slices(gpu_instance, slices: int, whole: bool = False) -> None:
    """A compute instance of so many slices, where the driver likes it. whole: nothing is to lie
    beside it in its GPU instance.

    A 1g with double memory offers two of 1 slice: one with the SMs of a plain 1g, and one with all
    that it has. In a 2g the latter would take the place of the second slice.
    """
    fitting = [one for one in _compute_profiles(gpu_instance) if one.sliceCount == slices]
    if not fitting:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    best = max(fitting, key=lambda one: one.multiprocessorCount) if whole else fitting[0]
    pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, best.id)


# -- words ----------------------------------------------------------------------------------------


def missing_rights() -> str | None:
    """What this user lacks to create instances; None where nothing says so."""
    try:
        minor = re.search(r"DeviceFileMinor: *(\d+)", CAPABILITY.read_text())
    except OSError:
        return None
    file = CAPABILITY_DEVICES / f"nvidia-cap{minor[1]}" if minor else None
    if file is None or os.geteuid() == 0 or not file.exists() or os.access(file, os.R_OK):
        return None
    return (
        f"creating MIG instances needs root or the right to read {file}; an administrator grants "
        f"that with 'chmod a+r {file}'"
    )


@contextmanager
def in_words(device: Device, doing: str, hint: str | None = None) -> Iterator[None]:
    """NVML's errors as the sentences that a cell ends with. hint: who else can do it."""
    try:
        yield
    except pynvml.NVMLError_NoPermission:
        root = "it takes root, in a container with NVIDIA_MIG_CONFIG_DEVICES=all"
        raise Unsupported(
            f"MIG: no permission on {device.name} for {doing}; {hint or missing_rights() or root}"
        ) from None
    except pynvml.NVMLError as error:
        raise NotInForce(f"MIG: {doing} failed on {device.name}: {error}") from error


def word(on: bool) -> str:
    return "on" if on else "off"


def by_hand(device: Device, on: bool) -> str:
    """Who gives the card another MIG mode, and how."""
    command = f"nvidia-smi -i {device.index}"
    return (
        f"an administrator switches it {word(on)} with '{command} -mig {on:d}' and, where it stays "
        f"pending, '{command} --gpu-reset'"
    )


def how_to_switch(device: Device, on: bool) -> str:
    """The same, and whether the workflow may."""
    if device.capability >= HOPPER:
        return f"{by_hand(device, on)}, or allow it with mig_mode=switch"
    return f"{by_hand(device, on)}; mig_mode=switch does not, for that may reset such a card"


def not_switched(device: Device, on: bool, error: int) -> str:
    """error: NVML's, by number."""
    return (
        f"the MIG mode of {device.name} cannot be switched {word(on)}: {pynvml.NVMLError(error)}; "
        f"something such as DCGM may hold the card; {by_hand(device, on)}"
    )
