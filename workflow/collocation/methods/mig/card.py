"""A card's MIG state read, and changed for a cell: mode and instances.

On every way out the state found is there again (restore.py): same mode, profiles and placements,
though the instances bear new ids. No GPU is ever reset here: on cards before Hopper, where another
mode may take that, the mode is an administrator's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from workflow.collocation.gpu import Device, nvidia
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.methods.mig import nvml
from workflow.collocation.methods.mig.layout import Card, Layout, Profile
from workflow.collocation.methods.mig.nvml import (
    Found,
    Place,
    described,
    hint_of,
    how_to_reset,
    how_to_switch,
    in_words,
    not_switched,
    word,
)
from workflow.collocation.methods.mig.restore import (
    Note,
    clear,
    is_noted,
    others,
    put_back,
    require_nobody,
    settle,
    touch,
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
        if nvml.mode(device) is None:
            return None
        found = [
            Profile(
                index=index,
                id=info.id,
                name=nvml.name(info),
                slices=info.sliceCount,
                sm_count=info.multiprocessorCount,
                memory_mib=info.memorySizeMB,
                most=info.instanceCount,
                placements=tuple(nvml.placements(device, info.id)),
            )
            for index, info in nvml.profiles(device)
        ]
    return Card(name=device.name, profiles=tuple(found))


def wrong_mode(device: Device, on: bool, switch: bool, why: str = "") -> str | None:
    """The sentence for a card whose MIG mode is not as wanted; None if it is, or may become so.

    Says nothing while a journal is there: then the mode that is seen is not the one that a cell
    will find.
    """
    if nvidia.mig_enabled(device) in (None, on) or is_noted(device):
        return None
    return _mode_is_wrong(device, on, switch, why)


def occupied(device: Device, layouts: Iterable[Layout]) -> str | None:
    """The sentence for a card with instances that are not to be touched, and are none of these
    layouts; None where a cell may run. Says nothing while a journal is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with in_words(device, "reading its instances"):
        if is_noted(device) or not nvml.state(device).mode:
            return None
        there = nvml.instances(device)
        free = not there or _found(device, layouts, there)
        return None if free else _not_to_be_touched(device, there)


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
        mode = nvml.mode(device)
    if mode is None:
        raise Unsupported(f"{device.name} has no MIG")
    if reason := _mode_is_wrong(device, on, switch):
        raise Unsupported(reason + _left_by_others(device))
    require_nobody(device, "its MIG mode stays")
    with put_back(device, switched=True) as note:
        with in_words(device, f"switching MIG mode {word(on)}", hint_of(device, on)):
            touch(device, note, {instance.place for instance in note.found.instances})
            clear(device, note.places)
            error = nvml.set_mode(device, on)
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
        there = nvml.instances(device)
        found = _found(device, tries, there)
    if found:
        yield found
        return
    if there and not switch:
        raise Unsupported(_not_to_be_touched(device, there) + _left_by_others(device))
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
            if seats := _seats(device, layout, nvml.instances(device)):
                if wrong := _too_small(layout, seats):
                    raise NotInForce(f"MIG: {layout} was created on {device.name}, but {wrong}")
                settle(device, note)
                return layout, seats
            raise NotInForce(
                f"MIG: {layout} was created on {device.name}, but there is "
                f"{described(nvml.state(device))}"
            )
    raise Unsupported(f"MIG: the driver finds no place for {layout} on {device.name}")


def _create(device: Device, layout: Layout) -> None:
    for part in layout.parts:
        gpu_instance = nvml.create_gpu_instance(device, part.profile.id, part.start, part.size)
        for slices in part.compute:
            nvml.create_slices(gpu_instance, slices, whole=part.whole)


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
        handles = handles or nvml.mig_devices(device)
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
        if _seats(device, layout, nvml.instances(device)) != seats:
            there = described(nvml.state(device))
            raise NotInForce(
                f"MIG: {layout} was applied on {device.name}, and somebody has changed that: "
                f"there is {there}"
            )


def _places(layout: Layout) -> list[Place]:
    return [(part.profile.id, part.start, part.size) for part in layout.parts]


# -- words ----------------------------------------------------------------------------------------


def _not_to_be_touched(device: Device, there: list[Found]) -> str:
    names = {info.id: nvml.name(info) for _, info in nvml.profiles(device)}
    listed = ", ".join(
        f"{names[one.profile]} at {one.start}:{one.size}"
        for one in (found.instance for found in there)
    )
    return (
        f"MIG instances that are there on {device.name} would have to go: {listed}; "
        "mig_mode=switch allows the workflow to take them down and put them back (their UUIDs may "
        "change)"
    )


def _left_by_others(device: Device) -> str:
    return "".join(
        f"; a killed run of user {owner} may have left it so, and that user's next run puts back "
        f"what {file} says"
        for owner, file in others(device).items()
    )


def _mode_is_wrong(device: Device, on: bool, switch: bool, why: str = "") -> str | None:
    where = f"on {device.name}" if on else f"({device.name})"
    wrong = f"MIG mode is {word(not on)} {where}{why}"
    mode = nvml.mode(device)
    if mode and mode[0] != mode[1]:
        return (
            f"{wrong}, and a change of it waits for a GPU reset; an administrator gives it with "
            f"'{how_to_reset(device)}'"
        )
    if switch and device.capability >= nvml.HOPPER:
        return None
    return f"{wrong}; {how_to_switch(device, on)}"
