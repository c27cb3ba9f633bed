"""MIG as NVML has it: the mode, the profiles, the instances that are there, and changing them; and
what is said of these.

Every function may raise pynvml.NVMLError, which `in_words` turns into the sentences that cells end
with. Handles are asked for anew each time: a changed mode, or an instance that went, makes them
void, and they mean nothing outside the process that asks (nvml_subprocess).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass, field
from typing import Annotated

import pynvml
from pydantic import Field

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.nvml_subprocess import in_subprocess
from workflow.collocation.sharing.evidence import NotInForce, Unsupported
from workflow.collocation.sharing.mig.layout import Profile

Place = tuple[int, int, int]  # profile id, start, size: no two GPU instances have the same
HOPPER = (9, 0)  # the compute capability from which on MIG mode is switched without a reset
ROOM = 16  # for instances of one profile: more than fit on any card, for drivers may count too few
NOT_THERE = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
)
CHANGE_S = 120.0  # for the driver to change mode or instances


@dataclass(frozen=True)
class Compute:
    """A compute instance: profile id, None while it is but planned, and SM slices; whatever its id.

    uuid, sm_count, memory_mib: of the MIG device that it makes; that is memory of the GPU instance.
    """

    profile: int | None
    slices: int
    id: int = field(default=-1, compare=False)
    uuid: str | None = field(default=None, compare=False)
    sm_count: int | None = field(default=None, compare=False)
    memory_mib: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Instance:
    """A GPU instance: profile id, place in memory slices, compute instances with the largest first;
    whatever its id. name: of its profile. offers: what compute instances it could have.
    """

    profile: int
    start: int
    size: int
    compute: tuple[Compute, ...]
    name: str = field(default="", compare=False)
    id: int = field(default=-1, compare=False)
    offers: Annotated[tuple, Field(exclude=True)] = field(default=(), compare=False)

    @property
    def place(self) -> Place:
        return self.profile, self.start, self.size

    @property
    def slices(self) -> tuple[int, ...]:
        return tuple(one.slices for one in self.compute)

    @property
    def divided(self) -> bool:
        """There are compute instances, and not one that fills it."""
        return self.slices not in ((), (int(self.name[0]),))

    def __str__(self) -> str:
        return f"{self.name} at {self.start}:{self.size}"


@dataclass(frozen=True)
class State:
    """MIG mode now and after the next reset, and the GPU instances, in the order of their ids."""

    mode: bool
    pending: bool
    instances: tuple[Instance, ...]

    def __str__(self) -> str:
        if not self.mode:
            return "MIG mode off"
        return f"MIG mode on and {', '.join(map(str, self.instances)) or 'no instances'}"


def handle(device: Device):
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


@in_subprocess()
def mode(device: Device) -> tuple[bool, bool] | None:
    """MIG mode (now, after the next reset); None on a card that has no MIG."""
    try:
        now, pending = pynvml.nvmlDeviceGetMigMode(handle(device))
    except pynvml.NVMLError_NotSupported:
        return None
    return bool(now), bool(pending)


@in_subprocess()
def state(device: Device) -> State:
    now, pending = mode(device) or (False, False)
    return State(now, pending, tuple(instances(device) if now else ()))


def _known(ask, of, count: int, *more) -> Iterator[tuple[int, object]]:
    """(index, NVML's answer) for every index that there is of something with a handle."""
    for index in range(count):
        with suppress(*NOT_THERE):
            yield index, ask(of, index, *more)


@in_subprocess()
def profiles(device: Device) -> list[Profile]:
    """Every GPU-instance profile; answered with MIG disabled, too."""
    return list(_profiles(device))


def _profiles(device: Device) -> Iterator[Profile]:
    card, most = handle(device), pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    where = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    for index, info in _known(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, card, most):
        where(card, info.id, None, byref(count := c_uint()))
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        where(card, info.id, places, byref(count))
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        yield Profile(
            index=index,
            id=info.id,
            name=name.removeprefix("MIG "),
            slices=info.sliceCount,
            sm_count=info.multiprocessorCount,
            memory_mib=info.memorySizeMB,
            most=info.instanceCount,
            placements=tuple(sorted((at.start, at.size) for at in places[: count.value])),
        )


@in_subprocess()
def instances(device: Device) -> list[Instance]:
    """The GPU instances that are there, by their ids."""
    devices, found = _mig_devices(device), []
    ask, kind = pynvml.nvmlDeviceGetGpuInstances, pynvml.c_nvmlGpuInstance_t
    for profile in _profiles(device):
        for one in _all(ask, handle(device), profile.id, kind):
            info, offers = pynvml.nvmlGpuInstanceGetInfo(one), _compute_profiles(one)
            place, inside = info.placement, _compute_instances(one, info.id, offers, devices)
            there = (profile.id, place.start, place.size, inside)
            found.append(Instance(*there, profile.name, info.id, tuple(offers)))
    return sorted(found, key=lambda one: one.id)


def _compute_instances(gpu_instance, number, offers, devices: dict) -> tuple[Compute, ...]:
    """The largest first, and then by their ids."""
    found = []
    ask, kind = pynvml.nvmlGpuInstanceGetComputeInstances, pynvml.c_nvmlComputeInstance_t
    for profile, slices, *_ in offers:
        for one in _all(ask, gpu_instance, profile, kind):
            ident = pynvml.nvmlComputeInstanceGetInfo(one).id
            about = devices.get((number, ident), ())
            found.append(Compute(profile, slices, ident, *about))
    return tuple(sorted(found, key=lambda one: (-one.slices, one.id)))


def _all(ask, parent, profile: int, kind) -> list:
    """All instances of a profile. NVML writes them without asking how long the buffer is."""
    there, count = (kind * ROOM)(), c_uint(ROOM)
    ask(parent, profile, there, byref(count))
    # Copies: an element is but a view into the buffer.
    return [ctypes.cast(one, kind) for one in there[: count.value]]


def _compute_profiles(gpu_instance) -> list[tuple[int, int, int, int]]:
    """Of each its id, its slices, how many there can be, and its SMs."""
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    most = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    found = _known(ask, gpu_instance, most, shared)
    return [(i.id, i.sliceCount, i.instanceCount, i.multiprocessorCount) for _, i in found]


def _mig_devices(device: Device) -> dict[tuple[int, int], tuple]:
    """(GPU instance id, compute instance id) → UUID, SMs and MiB of the MIG device of the two."""
    ask, found = pynvml.nvmlDeviceGetMigDeviceHandleByIndex, {}
    most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(device))
    for _, one in _known(ask, handle(device), most):  # the numbers have gaps
        ids = pynvml.nvmlDeviceGetGpuInstanceId(one), pynvml.nvmlDeviceGetComputeInstanceId(one)
        about, uuid = pynvml.nvmlDeviceGetAttributes(one), pynvml.nvmlDeviceGetUUID(one)
        found[ids] = uuid, about.multiprocessorCount, about.memorySizeMB
    return found


@in_subprocess()
def residents(device: Device) -> dict[int, tuple[int, int]]:
    """PID → (GPU instance id, compute instance id) of what computes on the card."""
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle(device))
    return {one.pid: (one.gpuInstanceId, one.computeInstanceId) for one in listed}


# -- changes --------------------------------------------------------------------------------------


@in_subprocess(CHANGE_S)
def set_mode(device: Device, on: bool) -> None:
    """Raises NotInForce if the mode is not in force at once."""
    status = pynvml.nvmlDeviceSetMigMode(handle(device), int(on))
    if mode(device) != (on, on):
        error = pynvml.NVMLError(status or pynvml.NVML_ERROR_RESET_REQUIRED)
        raise NotInForce(
            f"the MIG mode of {device.name} cannot be switched {word(on)}: {error}; something such "
            f"as DCGM may hold the card, or 'nvidia-smi -i {device.index} --gpu-reset' be needed"
        )


@in_subprocess(CHANGE_S)
def create(device: Device, one: Instance) -> None:
    """Make a GPU instance in its place, and compute instances in it where the driver likes them.

    A 1g with double memory offers two compute instances of 1 slice: one with the SMs of a plain 1g,
    and one with all that it has. In a 2g that would take the second slice's place. So a planned one
    gets most SMs if it fills the GPU instance. Raises Unsupported if none has so many slices.
    """
    place = byref(pynvml.c_nvmlGpuInstancePlacement_t(one.start, one.size))
    new = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    gpu_instance = new(handle(device), one.profile, place)
    for compute in one.compute:
        profile = compute.profile
        if profile is None:
            fitting = [o for o in _compute_profiles(gpu_instance) if o[1] == compute.slices]
            if not fitting:
                raise Unsupported(f"MIG: {device.name} offers no {compute.slices}c in {one.name}")
            profile, *_ = fitting[0] if one.divided else max(fitting, key=lambda o: o[3])
        pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, profile)


@in_subprocess(CHANGE_S)
def destroy(device: Device, one: Instance) -> None:
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceById(handle(device), one.id)
    for compute in one.compute:
        found = pynvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, compute.id)
        pynvml.nvmlComputeInstanceDestroy(found)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)


# -- words ----------------------------------------------------------------------------------------


@contextmanager
def in_words(device: Device, doing: str) -> Iterator[None]:
    """NVML's errors as the sentences that a cell ends with."""
    try:
        yield
    except pynvml.NVMLError_NoPermission:
        raise Unsupported(
            f"MIG: no permission on {device.name} for {doing}; it takes root, in a container with "
            "NVIDIA_MIG_CONFIG_DEVICES=all"
        ) from None
    except pynvml.NVMLError as error:
        raise NotInForce(f"MIG: {doing} failed on {device.name}: {error}") from error


def word(on: bool) -> str:
    return "on" if on else "off"


def how_to_switch(device: Device, on: bool) -> str:
    """Who gives the card another MIG mode, how, and whether the workflow may."""
    command = f"nvidia-smi -i {device.index}"
    by_hand = (
        f"an administrator switches it {word(on)} with '{command} -mig {on:d}' and, where it stays "
        f"pending, '{command} --gpu-reset'"
    )
    if device.capability >= HOPPER:
        return f"{by_hand}, or allow it with mig_mode=switch"
    return f"{by_hand}; mig_mode=switch does not, for that may reset such a card"
