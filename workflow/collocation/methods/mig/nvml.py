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
from dataclasses import dataclass
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.methods.evidence import NotInForce, Unsupported

Place = tuple[int, int, int]  # profile id, start, size: no two GPU instances have the same
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
    """A compute instance: profile id, place in compute slices, SM slices."""

    profile: int
    start: int
    size: int
    slices: int


@dataclass(frozen=True)
class Instance:
    """A GPU instance: profile id, place in memory slices, compute instances from the lowest on."""

    profile: int
    start: int
    size: int
    compute: tuple[Compute, ...]

    @property
    def place(self) -> Place:
        return self.profile, self.start, self.size


@dataclass(frozen=True)
class State:
    """MIG mode now and after the next reset, and the GPU instances, in the order of their ids."""

    mode: bool
    pending: bool
    instances: tuple[Instance, ...]

    def same(self, other: "State") -> bool:
        """Whatever the ids."""
        mine, others = set(self.instances), set(other.instances)
        return (self.mode, self.pending, mine) == (other.mode, other.pending, others)


@dataclass(frozen=True)
class Found:
    """A GPU instance that is there. compute: (handle, id, Compute), from the lowest on."""

    handle: object
    id: int
    instance: Instance
    compute: tuple[tuple[object, int, Compute], ...]


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
    there = instances(device) if now else []
    return State(now, pending, tuple(found.instance for found in there))


def profiles(device: Device) -> Iterator[tuple[int, object]]:
    """(index, NVML's info) of every GPU-instance profile; answered with MIG disabled, too."""
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(device), index)
        except NOT_THERE:
            continue
        yield index, profile


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


def instances(device: Device) -> list[Found]:
    """The GPU instances that are there, by their ids."""
    found = []
    for _, profile in profiles(device):
        gpu_instances = _all(
            pynvml.nvmlDeviceGetGpuInstances,
            handle(device),
            profile,
            pynvml.c_nvmlGpuInstance_t,
        )
        found += [_found(gpu_instance) for gpu_instance in gpu_instances]
    return sorted(found, key=lambda one: one.id)


def _found(gpu_instance) -> Found:
    info = pynvml.nvmlGpuInstanceGetInfo(gpu_instance)
    compute = []
    for profile in _compute_profiles(gpu_instance):
        ask = pynvml.nvmlGpuInstanceGetComputeInstances
        for one in _all(ask, gpu_instance, profile, pynvml.c_nvmlComputeInstance_t):
            its = pynvml.nvmlComputeInstanceGetInfo(one)
            place = its.placement
            what = Compute(its.profileId, place.start, place.size, profile.sliceCount)
            compute.append((one, its.id, what))
    compute.sort(key=lambda one: one[2].start)
    place = info.placement
    what = tuple(one for _, _, one in compute)
    instance = Instance(info.profileId, place.start, place.size, what)
    return Found(gpu_instance, info.id, instance, tuple(compute))


def _all(ask, parent, profile, kind) -> list:
    """All instances of a profile; the buffer has to hold as many as there can be."""
    there, count = (kind * profile.instanceCount)(), c_uint(profile.instanceCount)
    ask(parent, profile.id, there, byref(count))
    # Copies: an element is but a view into the buffer.
    return [ctypes.cast(one, kind) for one in there[: count.value]]


def _compute_profiles(gpu_instance) -> Iterator:
    ask, engines = (
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
    )
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            profile = ask(gpu_instance, index, engines)
        except NOT_THERE:
            continue
        yield profile


# -- changes --------------------------------------------------------------------------------------


def set_mode(device: Device, on: bool) -> int | None:
    """Ask for a MIG mode; gives NVML's error code if it is not in force at once."""
    status = pynvml.nvmlDeviceSetMigMode(handle(device), int(on))
    if mode(device) == (on, on):
        return None
    return status or pynvml.NVML_ERROR_RESET_REQUIRED


def create(device: Device, instance: Instance) -> None:
    """An instance just as described."""
    gpu_instance = create_gpu_instance(device, instance.profile, instance.start, instance.size)
    for compute in instance.compute:
        create_compute(gpu_instance, compute)


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


# -- MIG devices ----------------------------------------------------------------------------------


def mig_devices(device: Device) -> dict[tuple[int, int], object]:
    """(GPU instance id, compute instance id) → handle of the MIG device that they make."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(device))):
        with suppress(*NOT_THERE):  # the numbers have gaps
            one = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(device), index)
            gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(one)
            found[gpu_instance, pynvml.nvmlDeviceGetComputeInstanceId(one)] = one
    return found


def uuids(device: Device) -> dict[Place, set[str]]:
    """Where a GPU instance is → the UUIDs of the MIG devices in it; none with MIG mode off."""
    if not state(device).mode:
        return {}
    handles = mig_devices(device)
    return {
        found.instance.place: {
            pynvml.nvmlDeviceGetUUID(handles[found.id, compute])
            for _, compute, _ in found.compute
            if (found.id, compute) in handles
        }
        for found in instances(device)
    }


def residents(device: Device) -> dict[int, tuple[int, int]]:
    """PID → (GPU instance id, compute instance id) of what computes on the card."""
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(device))
    return {one.pid: (one.gpuInstanceId, one.computeInstanceId) for one in listed}


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
        raise Unsupported(
            f"MIG: no permission on {device.name} for {doing}; "
            + (
                hint
                or missing_rights()
                or "it takes root, in a container with NVIDIA_MIG_CONFIG_DEVICES=all"
            )
        ) from None
    except pynvml.NVMLError as error:
        raise NotInForce(f"MIG: {doing} failed on {device.name}: {error}") from error


def described(state: State) -> str:
    """Such as "MIG mode on and 14 at 0:2, 9 at 4:4"; ids of profiles, as nvidia-smi takes them."""
    if not state.mode:
        return "MIG mode off"
    return f"MIG mode on and {', '.join(map(named, state.instances)) or 'no instances'}"


def named(instance: Instance) -> str:
    return f"profile {instance.profile} at {instance.start}:{instance.size}"


def how_to_switch(device: Device, on: bool) -> str:
    """What gives the card another MIG mode, to be read after a semicolon."""
    remedy = f"an administrator switches it {word(on)} with {_commands(device, on)}"
    if device.capability >= HOPPER:
        return f"{remedy}, or allow it with mig_mode=switch"
    return f"{remedy}; mig_mode=switch does not, for that may reset such a card"


def hint_of(device: Device, on: bool, pending: bool = False) -> str:
    return f"an administrator does it with {_commands(device, on, pending)}"


def _commands(device: Device, on: bool, pending: bool = False) -> str:
    """What an administrator runs. pending: the new mode may wait for a reset, on any card."""
    switch = f"'nvidia-smi -i {device.index} -mig {int(on)}'"
    if pending or device.capability < HOPPER:
        return f"{switch} and, where it stays pending, '{how_to_reset(device)}'"
    return switch


def not_switched(device: Device, on: bool) -> str:
    return f"the MIG mode of {device.name} cannot be switched {word(on)}"


def word(on: bool) -> str:
    return "on" if on else "off"


def how_to_reset(device: Device) -> str:
    return f"nvidia-smi -i {device.index} --gpu-reset"
