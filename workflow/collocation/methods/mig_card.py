"""A card's MIG state read, and changed for a cell: mode and instances.

On every way out the state found is there again (mig_restore): same mode, profiles and placements,
though the instances bear new ids. No GPU is ever reset here: on cards before Hopper, where another
mode may take that, the mode is an administrator's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from workflow.collocation.gpu import Device, nvidia
from workflow.collocation.methods import mig_journal, mig_nvml
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.methods.mig_journal import Note
from workflow.collocation.methods.mig_layout import Card, Layout, Profile
from workflow.collocation.methods.mig_nvml import Found, Place
from workflow.collocation.methods.mig_restore import (
    clear,
    put_back,
    require_nobody,
    settle,
    touch,
)
from workflow.collocation.methods.mig_words import (
    described,
    hint_of,
    in_words,
    left_by_others,
    mode_is_wrong,
    not_switched,
    not_to_be_touched,
    word,
)


@dataclass(frozen=True)
class MigDevice:
    """A compute instance in force. part, compute: its place in the layout. profile: the name of
    its GPU instance; start, size: where that lies, in memory slices; memory_mib: MiB of that.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    part: int
    compute: int
    profile: str
    start: int
    size: int
    sm_count: int
    memory_mib: int


# -- reading --------------------------------------------------------------------------------------


def read(device: Device) -> Card | None:
    """The card's table of GPU-instance profiles, MIG mode on or off; None on a card without MIG.

    Changes nothing. Raises Unsupported where the user may not see it, NotInForce where NVML fails.
    """
    with in_words(device, "reading its profiles"):
        if mig_nvml.mode(device) is None:
            return None
        found = [
            Profile(
                index=index,
                id=info.id,
                name=mig_nvml.name(info),
                slices=info.sliceCount,
                sm_count=info.multiprocessorCount,
                memory_mib=info.memorySizeMB,
                most=info.instanceCount,
                placements=tuple(mig_nvml.placements(device, info.id)),
            )
            for index, info in mig_nvml.profiles(device)
        ]
    return Card(name=device.name, profiles=tuple(found))


def wrong_mode(device: Device, on: bool, switch: bool, why: str = "") -> str | None:
    """The sentence for a card whose MIG mode is not as wanted; None if it is, or may become so.

    Says nothing while a journal is there: then the mode that is seen is not the one that a cell
    will find.
    """
    if nvidia.mig_enabled(device) in (None, on) or mig_journal.is_there(device):
        return None
    return mode_is_wrong(device, on, switch, why)


def occupied(device: Device, layouts: Iterable[Layout]) -> str | None:
    """The sentence for a card with instances that are not to be touched, and are none of these
    layouts; None where a cell may run. Says nothing while a journal is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with in_words(device, "reading its instances"):
        if mig_journal.is_there(device) or not mig_nvml.state(device).mode:
            return None
        there = mig_nvml.instances(device)
        free = not there or _found(device, layouts, there)
        return None if free else not_to_be_touched(device, there)


# -- the mode -------------------------------------------------------------------------------------


@contextmanager
def in_mode(device: Device, on: bool, switch: bool) -> Iterator[None]:
    """The card with MIG mode on or off; as found afterwards, instances included.

    Only if `switch`, and NVML says that nobody computes on the card, is the mode changed. Raises
    Unsupported where it must not or cannot be, NotInForce where somebody is on the card.
    """
    if bool(nvidia.mig_enabled(device)) == on:
        yield
        return
    with in_words(device, "reading its MIG mode"):
        mode = mig_nvml.mode(device)
    if mode is None:
        raise Unsupported(f"{device.name} has no MIG")
    if reason := mode_is_wrong(device, on, switch):
        raise Unsupported(reason + left_by_others(device))
    require_nobody(device, "its MIG mode stays")
    with put_back(device, switched=True) as note:
        with in_words(device, f"switching MIG mode {word(on)}", hint_of(device, on)):
            touch(device, note, {instance.place for instance in note.found.instances})
            clear(device, note.places)
            error = mig_nvml.set_mode(device, on)
            if not error:
                settle(device, note)
        if error == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise Unsupported(
                f"{not_switched(device, on)} without a GPU reset; "
                + hint_of(device, on, pending=True)
            )
        if error:
            raise NotInForce(
                f"{not_switched(device, on)}: {pynvml.NVMLError(error)}; something such as DCGM "
                f"may hold the card; {hint_of(device, on, pending=True)}"
            )
        yield


# -- a layout -------------------------------------------------------------------------------------


@contextmanager
def applied(
    device: Device, layouts: Iterable[Layout], switch: bool = False
) -> Iterator[tuple[Layout, dict[tuple[int, int], MigDevice]]]:
    """The first of the layouts that is there or that the driver takes, with the MIG device of each
    of its seats (part, compute instance). Afterwards the instances found are there again.

    To be entered with MIG mode on. Only if `switch`, and NVML says that nobody computes on the
    card, are instances that were found taken down. Raises Unsupported if they must not be, if the
    driver takes no layout, or the user has no rights; NotInForce if an instance is in use, NVML
    fails, or what was found could not be put back.
    """
    tries = list(layouts)
    with in_words(device, "reading its instances"):
        there = mig_nvml.instances(device)
        found = _found(device, tries, there)
    if found:
        yield found
        return
    if there and not switch:
        raise Unsupported(not_to_be_touched(device, there) + left_by_others(device))
    if there:
        require_nobody(device, "its instances stay")
    with put_back(device) as note:
        yield _apply(device, tries, {one.instance.place for one in there}, note)


def _found(
    device: Device, layouts: Iterable[Layout], there: list[Found]
) -> tuple[Layout, dict[tuple[int, int], MigDevice]] | None:
    """The layout that is exactly what is there."""
    for layout in layouts if there else ():
        seats = _seats(device, layout, there)
        if seats and not _too_small(layout, seats):
            return layout, seats
    return None


def _apply(
    device: Device, layouts: list[Layout], old: set[Place], note: Note
) -> tuple[Layout, dict[tuple[int, int], MigDevice]]:
    """old: where the instances are that have to go."""
    for layout in layouts:
        with in_words(device, f"creating {layout}"):
            touch(device, note, old | note.places | set(_places(layout)))
            clear(device, note.places)
            try:
                _create(device, layout)
            except pynvml.NVMLError_InsufficientResources:
                continue
            if seats := _seats(device, layout, mig_nvml.instances(device)):
                if wrong := _too_small(layout, seats):
                    raise NotInForce(f"MIG: {layout} was created on {device.name}, but {wrong}")
                settle(device, note)
                return layout, seats
            raise NotInForce(
                f"MIG: {layout} was created on {device.name}, but there is "
                f"{described(mig_nvml.state(device))}"
            )
    raise Unsupported(f"MIG: the driver finds no place for {layout} on {device.name}")


def _create(device: Device, layout: Layout) -> None:
    for part in layout.parts:
        gpu_instance = mig_nvml.create_gpu_instance(device, part.profile.id, part.start, part.size)
        for slices in part.compute:
            mig_nvml.create_slices(gpu_instance, slices, whole=part.whole)


def _seats(
    device: Device, layout: Layout, there: list[Found]
) -> dict[tuple[int, int], MigDevice] | None:
    """The MIG devices, if what is there is exactly this layout, else None."""
    at = {found.instance.place: found for found in there}
    if at.keys() != set(_places(layout)):
        return None
    handles, seats = None, {}
    for index, part in enumerate(layout.parts):
        found = at[part.profile.id, part.start, part.size]
        if Counter(one.slices for one in found.instance.compute) != Counter(part.compute):
            return None
        handles = handles or mig_nvml.mig_devices(device)
        left = list(found.compute)
        for number, slices in enumerate(part.compute):
            chosen = next(one for one in left if one[2].slices == slices)
            left.remove(chosen)
            ids = found.id, chosen[1]
            if ids not in handles:
                return None
            about = pynvml.nvmlDeviceGetAttributes(handles[ids])
            seats[index, number] = MigDevice(
                uuid=pynvml.nvmlDeviceGetUUID(handles[ids]),
                gpu_instance=found.id,
                compute_instance=chosen[1],
                part=index,
                compute=number,
                profile=part.profile.name,
                start=part.start,
                size=part.size,
                sm_count=about.multiprocessorCount,
                memory_mib=about.memorySizeMB,
            )
    return seats


def _too_small(layout: Layout, seats: dict[tuple[int, int], MigDevice]) -> str | None:
    """How a compute instance that should fill its GPU instance does not; None if all do."""
    for seat in seats.values():
        part = layout.parts[seat.part]
        if part.whole and part.profile.sm_count not in (None, seat.sm_count):
            return (
                f"its compute instance in {part.profile.name} at {part.start}:{part.size} has "
                f"{seat.sm_count} SMs, not {part.profile.sm_count}"
            )
    return None


def require_unchanged(
    device: Device, layout: Layout, seats: dict[tuple[int, int], MigDevice]
) -> None:
    """Raise NotInForce unless the card has the layout as it was applied, and nothing else."""
    with in_words(device, "reading its instances"):
        if _seats(device, layout, mig_nvml.instances(device)) != seats:
            there = described(mig_nvml.state(device))
            raise NotInForce(
                f"MIG: {layout} was applied on {device.name}, and somebody has changed that: "
                f"there is {there}"
            )


def _places(layout: Layout) -> list[Place]:
    return [(part.profile.id, part.start, part.size) for part in layout.parts]
