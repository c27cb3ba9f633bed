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
from workflow.collocation.methods.mig import nvml, restore
from workflow.collocation.methods.mig.layout import Card, Layout, Profile
from workflow.collocation.methods.mig.nvml import Compute, Instance, in_words


@dataclass(frozen=True)
class Seat:
    """Where a member runs: a compute instance, which makes a MIG device, in a GPU instance."""

    instance: Instance
    compute: Compute


Seats = dict[tuple[int, int], Seat]  # (part, compute instance) of a layout → what is there


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


def wrong_mode(device: Device, on: bool, switch: bool) -> str | None:
    """The sentence for a card whose MIG mode is not as wanted; None if it is, or may become so.

    Says nothing while a journal is there: then the mode that is seen is not the one that a cell
    will find.
    """
    if nvidia.mig_enabled(device) in (None, on) or restore.is_noted(device):
        return None
    return _mode_is_wrong(device, on, switch)


def _mode_is_wrong(device: Device, on: bool, switch: bool) -> str | None:
    why = "" if on else ", and this method needs the whole card"
    wrong = f"MIG mode is {nvml.word(not on)} on {device.name}{why}"
    now, pending = nvml.mode(device) or (on, on)
    if now != pending:
        return (
            f"{wrong}, and a change of it waits for a GPU reset; an administrator gives it with "
            f"'nvidia-smi -i {device.index} --gpu-reset'"
        )
    if switch and device.capability >= nvml.HOPPER:
        return None
    return f"{wrong}; {nvml.how_to_switch(device, on)}"


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
        reason = _mode_is_wrong(device, on, switch)
    if reason:
        raise Unsupported(reason + _left_by_others(device))
    restore.require_nobody(device, "its MIG mode stays")
    with restore.put_back(device, switched=True) as note:
        doing = f"switching MIG mode {nvml.word(on)}"
        with in_words(device, doing, nvml.by_hand(device, on)):
            restore.touch(device, note, {instance.place for instance in note.found.instances})
            restore.clear(device, note.places)
            if error := nvml.set_mode(device, on):
                lasting = error == pynvml.NVML_ERROR_RESET_REQUIRED
                kind = Unsupported if lasting else NotInForce
                raise kind(nvml.not_switched(device, on, error))
            restore.settle(device, note)
        yield


def occupied(device: Device, layouts: list[Layout]) -> str | None:
    """The sentence for a card with instances that are not to be touched, and are none of these
    layouts; None where a cell may run. Says nothing while a journal is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with in_words(device, "reading its instances"):
        there = nvml.state(device).instances
        if not there or restore.is_noted(device) or _found(layouts, there):
            return None
        return _not_to_be_touched(device, there)


@contextmanager
def applied(
    device: Device, layouts: list[Layout], switch: bool = False
) -> Iterator[tuple[Layout, Seats]]:
    """The first of the layouts that is there or that the driver takes, with the MIG device of each
    of its seats. Afterwards the instances found are there again.

    To be entered with MIG mode on. Only if `switch`, and NVML says that nobody computes on the
    card, are instances that were found taken down. Raises Unsupported if they must not be, if the
    driver takes no layout, or the user has no rights; NotInForce if an instance is in use, NVML
    fails, or what was found could not be put back.
    """
    with in_words(device, "reading its instances"):
        there = nvml.instances(device)
        found = _found(layouts, there)
        if there and not found and not switch:
            raise Unsupported(_not_to_be_touched(device, there) + _left_by_others(device))
    if found:
        yield found
        return
    if there:
        restore.require_nobody(device, "its instances stay")
    with restore.put_back(device) as note:
        yield _apply(device, layouts, note)


def _found(layouts: list[Layout], there: list[Instance]) -> tuple[Layout, Seats] | None:
    """The layout that is exactly what is there."""
    for layout in layouts:
        seats = _seats(layout, there)
        if seats and not _too_small(layout, seats):
            return layout, seats
    return None


def _apply(device: Device, layouts: list[Layout], note: restore.Note) -> tuple[Layout, Seats]:
    old = {instance.place for instance in note.found.instances}
    for layout in layouts:
        with in_words(device, f"creating {layout}"):
            restore.touch(device, note, old | note.places | {part.place for part in layout.parts})
            restore.clear(device, note.places)
            try:
                for part in layout.parts:
                    gpu_instance = nvml.create_gpu_instance(device, *part.place)
                    for slices in part.compute:
                        nvml.create_slices(gpu_instance, slices, whole=part.whole)
            except pynvml.NVMLError_InsufficientResources:
                continue
            seats = _seats(layout, nvml.instances(device))
            wrong = _too_small(layout, seats) if seats else f"there is {nvml.state(device)}"
            if wrong:
                raise NotInForce(f"MIG: {layout} was created on {device.name}, but {wrong}")
            restore.settle(device, note)
            return layout, seats
    raise Unsupported(f"MIG: the driver finds no place for {layouts[0]} on {device.name}")


def _seats(layout: Layout, there: list[Instance]) -> Seats | None:
    """The MIG devices, if what is there is exactly this layout, else None."""
    at, seats = {instance.place: instance for instance in there}, {}
    if at.keys() != {part.place for part in layout.parts}:
        return None
    for index, part in enumerate(layout.parts):
        left = list(at[part.place].compute)
        if Counter(one.slices for one in left) != Counter(part.compute):
            return None
        for number, slices in enumerate(part.compute):
            one = left.pop(next(i for i, one in enumerate(left) if one.slices == slices))
            if one.uuid is None:
                return None
            seats[index, number] = Seat(at[part.place], one)
    return seats


def _too_small(layout: Layout, seats: Seats) -> str | None:
    """How a compute instance that should fill its GPU instance does not; None if all do."""
    for (index, _), seat in seats.items():
        part = layout.parts[index]
        planned, has = part.profile.sm_count, seat.compute.sm_count
        if part.whole and planned not in (None, has):
            return f"its compute instance in {seat.instance} has {has} SMs, not {planned}"
    return None


def require_unchanged(device: Device, layout: Layout, seats: Seats) -> None:
    """Raise NotInForce unless the card has the layout as it was applied, and nothing else."""
    with in_words(device, "reading its instances"):
        now = _seats(layout, nvml.instances(device))
        if not now or any(now[at].compute.uuid != seats[at].compute.uuid for at in seats):
            raise NotInForce(
                f"MIG: {layout} was applied on {device.name}, and somebody has changed that: "
                f"there is {nvml.state(device)}"
            )


def _not_to_be_touched(device: Device, there: Iterable[Instance]) -> str:
    return (
        f"MIG instances that are there on {device.name} would have to go: "
        f"{', '.join(map(str, there))}; mig_mode=switch allows the workflow to take them down and "
        "put them back (their UUIDs may change)"
    )


def _left_by_others(device: Device) -> str:
    return "".join(
        "; a killed run of another user may have left it so, and that user's next run puts back "
        f"what {file} says"
        for file in restore.others(device)
    )
