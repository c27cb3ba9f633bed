"""MIG as NVML has it: the profiles, the mode, the instances that are there, and changing these.

Handles are asked for anew each time: a changed mode, or an instance that went, makes them void, and
they mean nothing outside the process that asks (gpu/nvml_subprocess.py).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.nvidia import NVML_ERRORS
from workflow.collocation.gpu.nvml_subprocess import in_subprocess
from workflow.collocation.sharing.evidence import NotInForce, Unsupported
from workflow.collocation.sharing.mig_layout import Card, Layout, Part, Profile

ROOM = 16  # for instances of one profile: more than fit on any card, for drivers may count too few
NOT_THERE = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
)
CHANGE_S = 120.0  # for the driver to change instances
WORD = {False: "off", True: "on"}


@dataclass(frozen=True)
class Compute:
    """A compute instance, which makes a MIG device."""

    id: int
    slices: int
    uuid: str
    sm_count: int


@dataclass(frozen=True)
class Instance:
    """A GPU instance that is there, and its compute instances, largest first."""

    id: int
    part: Part
    compute: tuple[Compute, ...]

    def __str__(self) -> str:
        return f"{self.part.profile.name} at {self.part.start}:{self.part.size}"


@dataclass(frozen=True)
class State:
    """MIG mode, and the GPU instances, in the order of their ids."""

    mode: bool
    instances: tuple[Instance, ...]

    def __str__(self) -> str:
        there = ", ".join(map(str, self.instances)) or "no instances"
        return f"MIG mode {WORD[self.mode]} and {there}"


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """NVML's errors as the sentences that a cell ends with. doing: what fails, in words."""
    try:
        yield
    except pynvml.NVMLError_NoPermission:
        raise Unsupported(
            f"MIG: no permission for {doing}; it takes root, in a container with "
            "NVIDIA_MIG_CONFIG_DEVICES=all"
        ) from None
    except NVML_ERRORS as error:
        raise NotInForce(f"MIG: {doing} failed: {error}") from error


# -- reading --------------------------------------------------------------------------------------


def _handle(device: Device):
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


@in_subprocess()
@in_words("reading the instances of the card")
def state(device: Device) -> State | None:
    """None on a card that has no MIG."""
    try:
        now = bool(pynvml.nvmlDeviceGetMigMode(_handle(device))[0])
    except pynvml.NVMLError_NotSupported:
        return None
    return State(now, tuple(_instances(device)) if now else ())


@in_subprocess()
@in_words("reading the profiles of the card")
def read(device: Device) -> Card | None:
    """The card's GPU-instance profiles, MIG mode on or off; None on a card that has no MIG."""
    if state(device) is None:
        return None
    return Card(device.name, tuple(_profiles(device)))


def _profiles(device: Device) -> Iterator[Profile]:
    card, most = _handle(device), pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    where = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    for info in _known(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, card, most):
        where(card, info.id, None, byref(count := c_uint()))
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        where(card, info.id, places, byref(count))
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        yield Profile(
            id=info.id,
            name=name.removeprefix("MIG "),
            slices=info.sliceCount,
            sm_count=info.multiprocessorCount,
            most=info.instanceCount,
            placements=tuple(sorted((at.start, at.size) for at in places[: count.value])),
        )


def _known(ask, of, count: int, *more) -> Iterator:
    """NVML's answer for every index that there is of something with a handle."""
    for index in range(count):
        with suppress(*NOT_THERE):
            yield ask(of, index, *more)


def _instances(device: Device) -> list[Instance]:
    card, kind, found = _handle(device), pynvml.c_nvmlGpuInstance_t, []
    inside = _compute_instances(card)
    for profile in _profiles(device):
        # NVML writes them without asking how long the buffer is.
        there, count = (kind * ROOM)(), c_uint(ROOM)
        pynvml.nvmlDeviceGetGpuInstances(card, profile.id, there, byref(count))
        for one in there[: count.value]:
            # A copy, for an element is but a view into the buffer.
            info = pynvml.nvmlGpuInstanceGetInfo(ctypes.cast(one, kind))
            compute = sorted(inside.get(info.id, []), key=lambda its: (-its.slices, its.id))
            place, slices = info.placement, tuple(its.slices for its in compute)
            part = Part(profile, place.start, place.size, slices)
            found.append(Instance(info.id, part, tuple(compute)))
    return sorted(found, key=lambda one: one.id)


def _compute_instances(card) -> dict[int, list[Compute]]:
    """By GPU instance, of whose each makes a MIG device."""
    found: dict[int, list[Compute]] = {}
    most = pynvml.nvmlDeviceGetMaxMigDeviceCount(card)
    for one in _known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card, most):  # it has gaps
        about = pynvml.nvmlDeviceGetAttributes(one)
        its = Compute(
            id=pynvml.nvmlDeviceGetComputeInstanceId(one),
            slices=about.computeInstanceSliceCount,
            uuid=pynvml.nvmlDeviceGetUUID(one),
            sm_count=about.multiprocessorCount,
        )
        found.setdefault(pynvml.nvmlDeviceGetGpuInstanceId(one), []).append(its)
    return found


# -- changes --------------------------------------------------------------------------------------


@in_subprocess(CHANGE_S)
def create(device: Device, layout: Layout) -> None:
    """Make the layout's GPU instances in their places, and the compute instances in them.

    Raises Unsupported if the driver finds no place, or offers no compute instance of a size.
    """
    with in_words(f"creating {layout} on {device.name}"):
        try:
            for part in layout.parts:
                _make(device, part)
        except pynvml.NVMLError_InsufficientResources:
            unfit = f"the driver finds no place for {layout} on {device.name}"
            raise Unsupported(f"MIG: {unfit}") from None


def _make(device: Device, part: Part) -> None:
    """A GPU instance in its place, and compute instances in it where the driver likes them.

    A 1g with double memory offers two compute instances of 1 slice: one with the SMs of a plain 1g,
    and one with all that it has. In a 2g that would take the second slice's place. So one that
    fills the GPU instance gets most SMs.
    """
    place = byref(pynvml.c_nvmlGpuInstancePlacement_t(part.start, part.size))
    new = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    gpu_instance = new(_handle(device), part.profile.id, place)
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    most = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
    engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for slices in part.compute:
        offers = list(_known(ask, gpu_instance, most, engines))
        fitting = [offer for offer in offers if offer.sliceCount == slices]
        if not fitting:
            raise Unsupported(f"MIG: {device.name} offers no {slices}c in {part.profile.name}")
        largest = max(fitting, key=lambda offer: offer.multiprocessorCount)
        profile = (largest if part.whole else fitting[0]).id
        pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, profile)


@in_subprocess(CHANGE_S)
@in_words("removing instances of the card")
def destroy(device: Device, one: Instance) -> None:
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceById(_handle(device), one.id)
    for compute in one.compute:
        found = pynvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, compute.id)
        pynvml.nvmlComputeInstanceDestroy(found)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)


def how_to_switch(device: Device, on: bool) -> str:
    """Who gives the card another MIG mode, and how."""
    command = f"nvidia-smi -i {device.index}"
    return (
        f"an administrator switches it {WORD[on]} with '{command} -mig {on:d}' and, where it stays "
        f"pending, '{command} --gpu-reset'"
    )
