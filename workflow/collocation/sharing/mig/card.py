"""A card's MIG state read, and made what a cell needs; afterwards it is as it was found (restore).

No GPU is ever reset here: on cards before Hopper, where another mode may take that, the mode is an
administrator's. Nor is an instance taken down that is in use, or that compute instances divide, for
where they lie not every driver can be told.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from workflow.collocation.gpu import Device, nvidia
from workflow.collocation.sharing.evidence import NotInForce, Unsupported
from workflow.collocation.sharing.mig import nvml, restore
from workflow.collocation.sharing.mig.layout import Card, Layout, Part
from workflow.collocation.sharing.mig.nvml import Compute, Instance, State, in_words


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
        return Card(name=device.name, profiles=tuple(nvml.profiles(device)))


def wrong_mode(device: Device, on: bool, switch: bool) -> str | None:
    """The sentence for a card whose MIG mode is not as wanted; None if it is, or may become so.

    Says nothing while a killed run's note is there: the mode seen is not what a cell will find.
    """
    if nvidia.mig_enabled(device) in (None, on) or restore.note_path(device).exists():
        return None
    why = "" if on else ", and this method needs the whole card"
    wrong = f"MIG mode is {nvml.word(not on)} on {device.name}{why}"
    now, pending = nvml.mode(device) or (on, on)
    if now != pending:
        wrong += ", and a change of it waits for a GPU reset"
    elif switch and device.capability >= nvml.HOPPER:
        return None
    return f"{wrong}; {nvml.how_to_switch(device, on)}"


def occupied(device: Device, layout: Layout | None, switch: bool) -> str | None:
    """The sentence for a card with instances that are not to be touched, and are not this layout;
    None where a cell may run. Says nothing while a killed run's note is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with in_words(device, "reading its instances"):
        there = nvml.state(device).instances
    if not there or restore.note_path(device).exists() or (layout and _seats(layout, there)):
        return None
    names = ", ".join(map(str, there))
    wrong = f"MIG instances that are there on {device.name} would have to go: {names}"
    if not switch:
        return (
            f"{wrong}; mig_mode=switch allows the workflow to take them down and put them back "
            "(their UUIDs may change)"
        )
    if parts := [str(one) for one in there if one.divided]:
        return (
            f"{wrong}; the workflow does not take down what compute instances divide, "
            f"{', '.join(parts)}: an administrator removes that"
        )
    return None


@contextmanager
def divided(device: Device, layout: Layout | None, switch: bool = False) -> Iterator[Seats]:
    """The card with MIG mode on and this layout, by the MIG device of each of its seats; without a
    layout, with the mode off. Afterwards the mode and the instances found are there again.

    Only if `switch`, and NVML says that nobody computes on the card, are the mode or instances that
    were found changed. Raises Unsupported if they must not be, if the driver does not take the
    layout, or the user has no rights; GpuBusy if somebody is on the card; NotInForce if NVML fails,
    or what was found could not be put back.
    """
    on = layout is not None
    if not on and not nvidia.mig_enabled(device):
        yield {}
        return
    with in_words(device, "reading its instances"):
        if reason := wrong_mode(device, on, switch) or occupied(device, layout, switch):
            raise Unsupported(reason)
        found = nvml.state(device)
    if on and (seats := _seats(layout, found.instances)):
        yield seats
        return
    if found.instances or found.mode != on:
        restore.require_nobody(device, "its MIG mode and its instances stay")
    made = State(on, on, tuple(map(_planned, layout.parts if on else ())))
    with restore.put_back(device, found, made):
        switching = f"switching MIG mode {nvml.word(on)}"
        with in_words(device, f"creating {layout}" if found.mode == on else switching):
            restore.clear(device, found.instances)
            if found.mode != on:
                nvml.set_mode(device, on)
        yield _create(device, layout, made.instances) if on else {}


def _create(device: Device, layout: Layout, made: Iterable[Instance]) -> Seats:
    with in_words(device, f"creating {layout}"):
        try:
            for one in made:
                nvml.create(device, one)
        except pynvml.NVMLError_InsufficientResources:
            raise Unsupported(
                f"MIG: the driver finds no place for {layout} on {device.name}"
            ) from None
        now = nvml.state(device)
    if seats := _seats(layout, now.instances):
        return seats
    sms = ", ".join(str(one.sm_count) for instance in now.instances for one in instance.compute)
    raise NotInForce(
        f"MIG: {layout} was created on {device.name}, but there is {now}, with compute instances "
        f"of {sms} SMs"
    )


def _planned(part: Part) -> Instance:
    compute = tuple(Compute(None, slices) for slices in part.compute)
    return Instance(*part.place, compute, part.profile.name)


def _seats(layout: Layout, there: Iterable[Instance]) -> Seats | None:
    """The MIG devices, if what is there is exactly this layout, wherever it lies; else None."""
    left, seats = list(there), {}
    for index, part in enumerate(layout.parts):
        one = next((one for one in left if _is(part, one)), None)
        if one is None:
            return None
        left.remove(one)
        seats |= {(index, n): Seat(one, compute) for n, compute in enumerate(one.compute)}
    return None if left else seats


def _is(part: Part, one: Instance) -> bool:
    """Whether that is there, with the SMs that were planned for who fills it."""
    planned = part.profile.sm_count if part.whole else None
    return (one.profile, one.slices) == (part.profile.id, part.compute) and all(
        compute.uuid and planned in (None, compute.sm_count) for compute in one.compute
    )


def require_unchanged(device: Device, layout: Layout, seats: Seats) -> None:
    """Raise NotInForce unless the card has the layout as it was applied, and nothing else."""
    with in_words(device, "reading its instances"):
        state = nvml.state(device)
    now = _seats(layout, state.instances)
    if not now or any(now[at].compute.uuid != seats[at].compute.uuid for at in seats):
        raise NotInForce(
            f"MIG: {layout} was applied on {device.name}, and somebody has changed that: there is "
            f"{state}"
        )
