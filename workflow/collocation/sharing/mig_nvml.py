"""MIG through NVML: reading profiles, mode and instances, and creating and removing instances.

NVML handles are looked up each time: a changed mode or a removed instance makes them void, and they
mean nothing outside the process that asks (gpu/nvml_subprocess.py).
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.nvidia import NVML_ERRORS
from workflow.collocation.gpu.nvml_subprocess import in_subprocess
from workflow.collocation.sharing.evidence import NotInForce, Unsupported
from workflow.collocation.sharing.mig_layout import Layout, MigCard, Partition, Profile

# Entries of a buffer for instances of one profile: more than fit on any card, because drivers may
# count too few.
BUFFER_LENGTH = 16
ABSENT = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
)
CHANGE_S = 120.0  # for the driver to change instances
MODE_NAMES = {False: "off", True: "on"}


@dataclass(frozen=True)
class ComputeInstance:
    """A compute instance, which is a MIG device; slices: its SM slices."""

    id: int
    slices: int
    uuid: str
    sm_count: int


@dataclass(frozen=True)
class GpuInstance:
    """A GPU instance on the card, and its compute instances, largest first."""

    id: int
    partition: Partition
    compute: tuple[ComputeInstance, ...]

    def __str__(self) -> str:
        return f"{self.partition.profile.name} at {self.partition.start}:{self.partition.size}"


@dataclass(frozen=True)
class MigState:
    """Whether MIG mode is on, and the card's GPU instances, in the order of their ids."""

    mode: bool
    instances: tuple[GpuInstance, ...]

    def __str__(self) -> str:
        instances = ", ".join(map(str, self.instances)) or "no instances"
        return f"MIG mode {MODE_NAMES[self.mode]} and {instances}"


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Turn NVML's errors into the sentences that a cell ends with; action: what failed."""
    try:
        yield
    except pynvml.NVMLError_NoPermission:
        raise Unsupported(
            f"MIG: no permission for {action}; it takes root, in a container with "
            "NVIDIA_MIG_CONFIG_DEVICES=all"
        ) from None
    except NVML_ERRORS as error:
        raise NotInForce(f"MIG: {action} failed: {error}") from error


# -- reading --------------------------------------------------------------------------------------


def _handle(device: Device):
    return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)


@in_subprocess()
@explained("reading the instances of the card")
def read_state(device: Device) -> MigState | None:
    """MIG mode and instances; None on a card that has no MIG."""
    try:
        mode = bool(pynvml.nvmlDeviceGetMigMode(_handle(device))[0])
    except pynvml.NVMLError_NotSupported:
        return None
    return MigState(mode, tuple(_gpu_instances(device)) if mode else ())


@in_subprocess()
@explained("reading the profiles of the card")
def read_card(device: Device) -> MigCard | None:
    """The card's profiles, whether MIG mode is on or off; None on a card that has no MIG."""
    if read_state(device) is None:
        return None
    return MigCard(device.name, tuple(_profiles(device)))


def _profiles(device: Device) -> Iterator[Profile]:
    card = _handle(device)
    get_placements = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    for info in _present(
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo, card, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
    ):
        get_placements(card, info.id, None, byref(count := c_uint()))
        buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        get_placements(card, info.id, buffer, byref(count))
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        yield Profile(
            id=info.id,
            name=name.removeprefix("MIG "),
            slices=info.sliceCount,
            sm_count=info.multiprocessorCount,
            max_count=info.instanceCount,
            placements=tuple(sorted((entry.start, entry.size) for entry in buffer[: count.value])),
        )


def _present(query: Callable, handle, count: int, *arguments) -> Iterator:
    """NVML's answer for each index below `count` that exists; indices may have gaps."""
    for index in range(count):
        with suppress(*ABSENT):
            yield query(handle, index, *arguments)


def _gpu_instances(device: Device) -> list[GpuInstance]:
    card, instance_type = _handle(device), pynvml.c_nvmlGpuInstance_t
    compute_by_instance = _compute_instances(card)
    instances = []
    for profile in _profiles(device):
        # NVML writes the instances without asking how long the buffer is.
        buffer, count = (instance_type * BUFFER_LENGTH)(), c_uint(BUFFER_LENGTH)
        pynvml.nvmlDeviceGetGpuInstances(card, profile.id, buffer, byref(count))
        for entry in buffer[: count.value]:
            # An element is but a view into the buffer: the cast copies it.
            info = pynvml.nvmlGpuInstanceGetInfo(ctypes.cast(entry, instance_type))
            compute = compute_by_instance.get(info.id, [])
            compute.sort(key=lambda instance: (-instance.slices, instance.id))
            slices = tuple(instance.slices for instance in compute)
            partition = Partition(profile, info.placement.start, info.placement.size, slices)
            instances.append(GpuInstance(info.id, partition, tuple(compute)))
    return sorted(instances, key=lambda instance: instance.id)


def _compute_instances(card) -> dict[int, list[ComputeInstance]]:
    """Compute instances by the id of their GPU instance. Each is a MIG device."""
    by_instance: dict[int, list[ComputeInstance]] = {}
    max_count = pynvml.nvmlDeviceGetMaxMigDeviceCount(card)
    for device in _present(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card, max_count):
        attributes = pynvml.nvmlDeviceGetAttributes(device)
        compute = ComputeInstance(
            id=pynvml.nvmlDeviceGetComputeInstanceId(device),
            slices=attributes.computeInstanceSliceCount,
            uuid=pynvml.nvmlDeviceGetUUID(device),
            sm_count=attributes.multiprocessorCount,
        )
        by_instance.setdefault(pynvml.nvmlDeviceGetGpuInstanceId(device), []).append(compute)
    return by_instance


# -- changes --------------------------------------------------------------------------------------


@in_subprocess(CHANGE_S)
def create_instances(device: Device, layout: Layout) -> None:
    """Create the layout's GPU instances in their places, and the compute instances in them.

    Raises Unsupported if the driver finds no place, or offers no compute instance of a size.
    """
    with explained(f"creating {layout} on {device.name}"):
        try:
            for partition in layout.partitions:
                _create_partition(device, partition)
        except pynvml.NVMLError_InsufficientResources:
            unfit = f"the driver finds no place for {layout} on {device.name}"
            raise Unsupported(f"MIG: {unfit}") from None


def _create_partition(device: Device, partition: Partition) -> None:
    """Create a GPU instance in its place, and compute instances where the driver puts them.

    A 1g with double memory offers two compute instances of 1 slice: one with the SMs of a plain 1g,
    and one with all that it has. In a 2g the latter would take the second slice's place. So a
    compute instance that fills its GPU instance gets most SMs.
    """
    profile = partition.profile
    placement = pynvml.c_nvmlGpuInstancePlacement_t(partition.start, partition.size)
    gpu_instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        _handle(device), profile.id, byref(placement)
    )
    for slices in partition.compute:
        offers = _present(
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
            gpu_instance,
            pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
            pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
        )
        fitting = [offer for offer in list(offers) if offer.sliceCount == slices]
        if not fitting:
            raise Unsupported(f"MIG: {device.name} offers no {slices}c in {profile.name}")
        largest = max(fitting, key=lambda offer: offer.multiprocessorCount)
        chosen = largest if partition.whole else fitting[0]
        pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, chosen.id)


@in_subprocess(CHANGE_S)
@explained("removing instances of the card")
def destroy_instance(device: Device, instance: GpuInstance) -> None:
    """Remove a GPU instance and the compute instances in it."""
    gpu_instance = pynvml.nvmlDeviceGetGpuInstanceById(_handle(device), instance.id)
    for compute in instance.compute:
        handle = pynvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, compute.id)
        pynvml.nvmlComputeInstanceDestroy(handle)
    pynvml.nvmlGpuInstanceDestroy(gpu_instance)


def how_to_switch(device: Device, on: bool) -> str:
    """Who gives the card another MIG mode, and how."""
    command = f"nvidia-smi -i {device.index}"
    return (
        f"an administrator switches it {MODE_NAMES[on]} with '{command} -mig {on:d}' and, where it "
        f"stays pending, '{command} --gpu-reset'"
    )
