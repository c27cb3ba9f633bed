"""A card divided as a cell needs it, and put back as it was found: on every way out, after a kill.

No GPU is ever reset here: on cards before Hopper, where another mode may take that, the mode is an
administrator's. What others made is never taken down. Before the first change a note of the mode
found, and of the instances that are to be made, is left beside the device locks; it is there as
long as a change is. Whoever holds the device's lock and finds it knows that its writer is dead.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.gpu.nvidia import NVML_ERRORS, mig_enabled
from workflow.collocation.process_lifetime import defer_signals
from workflow.collocation.sharing import mig_nvml as nvml
from workflow.collocation.sharing.evidence import NotInForce, Unsupported, require_free
from workflow.collocation.sharing.mig_layout import Card, Layout, Part
from workflow.collocation.sharing.mig_nvml import WORD, Compute, Instance, State, in_words

# Before each new try at putting back, for the driver to see that the members have ended.
PAUSES_S = (0, 0.2, 0.8, 2, 3, 4)


@dataclass(frozen=True)
class Seat:
    """Where a member runs: a compute instance, which makes a MIG device, in a GPU instance."""

    instance: Instance
    compute: Compute


Seats = dict[tuple[int, int], Seat]  # (part, compute instance) of a layout → what is there


def read(device: Device) -> Card | None:
    """The card's table of GPU-instance profiles, MIG mode on or off; None on a card without MIG.

    Raises Unsupported where the user may not see it, NotInForce where NVML fails.
    """
    with in_words(device, "reading its profiles"):
        has_mig = nvml.state(device) is not None
        return Card(device.name, tuple(nvml.profiles(device))) if has_mig else None


def blocked(device: Device, layout: Layout | None, switch: bool = False) -> str | None:
    """Why a cell cannot have the card divided so (None: whole), with the commands that help; None
    if it can. Reads only.

    switch: the MIG mode may be changed. Says nothing while a killed run's note is there: what is
    seen is not what a cell will find. Raises Unsupported and NotInForce as `read`.
    """
    on = layout is not None
    if (not on and not mig_enabled(device)) or note_path(device).exists():
        return None
    with in_words(device, "reading its instances"):
        there = nvml.state(device)
    if there.mode != on and not (switch and device.capability >= nvml.HOPPER):
        why = "" if on else ", and this method needs the whole card"
        how = nvml.how_to_switch(device, on)
        return f"MIG mode is {WORD[not on]} on {device.name}{why}; {how}"
    if not there.instances or (on and _seats(layout, there)):
        return None
    command = f"nvidia-smi mig -i {device.index}"
    return (
        f"MIG instances that are there on {device.name} would have to go: "
        f"{', '.join(map(str, there.instances))}; an administrator removes them with "
        f"'{command} -dci' and '{command} -dgi'"
    )


def require_unchanged(device: Device, layout: Layout, seats: Seats) -> None:
    """Raise NotInForce unless the card has the layout as it was applied, and nothing else."""
    with in_words(device, "reading its instances"):
        there = nvml.state(device)
    now = _seats(layout, there)
    if not now or any(now[at].compute.uuid != seats[at].compute.uuid for at in seats):
        raise NotInForce(
            f"MIG: {layout} was applied on {device.name}, and somebody has changed that: there is "
            f"{there}"
        )


def _seats(layout: Layout, there: State) -> Seats | None:
    """The MIG devices, if what is there is exactly this layout, wherever it lies; else None."""
    left, seats = list(there.instances), {}
    for index, part in enumerate(layout.parts):
        one = next((one for one in left if _is(part, one)), None)
        if one is None:
            return None
        left.remove(one)
        seats |= {(index, n): Seat(one, compute) for n, compute in enumerate(one.compute)}
    return None if left else seats


def _is(part: Part, one: Instance) -> bool:
    """Whether that is there, with the SMs that were planned for who fills it."""
    slices = tuple(compute.slices for compute in one.compute)
    planned = part.profile.sm_count if part.whole else None
    return (one.profile.id, slices) == (part.profile.id, part.compute) and all(
        planned in (None, compute.sm_count) for compute in one.compute
    )


@contextmanager
def divided(device: Device, layout: Layout | None) -> Iterator[Seats]:
    """The card with MIG mode on and this layout, by the MIG device of each of its seats; without a
    layout, with the mode off. Afterwards the mode found is there again, and no instance of ours.

    To be entered where nothing is `blocked` and nobody is on the card. Raises Unsupported if the
    driver does not take the layout, or the user has no rights; NotInForce if NVML fails, or what
    was found could not be put back.
    """
    if layout is None and not mig_enabled(device):
        yield {}
        return
    with in_words(device, "reading its instances"):
        found = nvml.state(device)
    if layout and (seats := _seats(layout, found)):
        yield seats
        return
    note = Note(found.mode, tuple(part.place for part in layout.parts) if layout else ())
    new = note_path(device).with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps([note.found, note.made]), encoding="utf-8")
    new.replace(note_path(device))
    try:
        if found.mode != bool(layout):
            with in_words(device, f"switching MIG mode {WORD[not found.mode]}"):
                nvml.set_mode(device, not found.mode)
        yield _create(device, layout) if layout else {}
    finally:
        _restore(device, note)


def _create(device: Device, layout: Layout) -> Seats:
    with in_words(device, f"creating {layout}"):
        try:
            for part in layout.parts:
                nvml.create(device, part)
        except pynvml.NVMLError_InsufficientResources:
            raise Unsupported(
                f"MIG: the driver finds no place for {layout} on {device.name}"
            ) from None
        now = nvml.state(device)
    if seats := _seats(layout, now):
        return seats
    sms = ", ".join(str(one.sm_count) for instance in now.instances for one in instance.compute)
    raise NotInForce(
        f"MIG: {layout} was created on {device.name}, but there is {now}, with compute instances "
        f"of {sms} SMs"
    )


# -- putting back ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """found: the MIG mode to put back. made: places of the GPU instances that a cell makes."""

    found: bool
    made: tuple[tuple[int, int, int], ...]

    def ours(self, state: State) -> list[Instance]:
        """NVML has no better mark: UUIDs come from card and place."""
        return [one for one in state.instances if one.place in self.made]

    def undone(self, state: State) -> bool:
        """Whether nothing that we did is left."""
        return not self.ours(state) and (state.mode, state.pending) == (self.found, self.found)


def recover(device: Device) -> None:
    """Put back what a killed run of this user found, as its note says; nothing without one.

    To be called by who holds the device's lock. Raises GpuBusy if others compute on the card;
    NotInForce, and keeps the note, if it does not succeed. An equal instance that others made
    instead, and left idle, goes with it.
    """
    file = note_path(device)
    if not file.exists():
        return
    try:
        if file.lstat().st_uid != os.getuid():  # in a folder that all may write to
            raise OSError("it is another user's")
        found, made = json.loads(file.read_bytes())
        note = Note(found, tuple(map(tuple, made)))
    except (OSError, ValueError, TypeError) as error:
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it found {device.name}, cannot be read: "
            f"{error}; once the card is as it should be, remove it"
        ) from None
    with in_words(device, "reading its instances"):
        undone = note.undone(nvml.state(device))
    if not undone:
        require_free(device)
    _restore(device, note)


@defer_signals()
def _restore(device: Device, note: Note) -> None:
    """Raises NotInForce if the state found cannot be had; then the note stays."""
    for pause in PAUSES_S:
        time.sleep(pause)
        try:
            for one in note.ours(nvml.state(device)):
                nvml.destroy(device, one)
            now = nvml.state(device)
            if (
                not note.undone(now) and not now.instances
            ):  # else somebody has made others meanwhile
                nvml.set_mode(device, note.found)
                now = nvml.state(device)
            if note.undone(now):
                note_path(device).unlink()
                return
            problem = f"there is {now}"
        except (*NVML_ERRORS, NotInForce) as error:
            problem = str(error)
    raise NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with MIG mode "
        f"{WORD[note.found]} and no instance of ours: {problem}; 'nvidia-smi mig -i "
        f"{device.index} -lgi' shows what is there, and the next run tries again, unless "
        f"{note_path(device)} is removed"
    )


def note_path(device: Device) -> Path:
    """Where this user's run notes how it found the card; there while, or since, it changes it."""
    card = re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid)
    return lock_folder() / f"{card}.mig-{os.getuid()}.json"
