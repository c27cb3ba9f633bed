"""A card divided as a cell needs it, and put back as it was found: on every way out, after a kill.

No GPU is ever reset here: on cards before Hopper, where another mode may take that, the mode is an
administrator's. What others made is never taken down. Before the first change a note of the mode
found, and of the instances that are to be made, is left beside the device locks; it is there as
long as a change is. Whoever holds the device's lock and finds it knows that its writer is dead.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.gpu.nvidia import NVML_ERRORS, mig_enabled
from workflow.collocation.sharing import mig_nvml as nvml
from workflow.collocation.sharing.defer_signals import defer_signals
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Unsupported, require_free
from workflow.collocation.sharing.mig_layout import Card, Layout, Part
from workflow.collocation.sharing.mig_nvml import Compute, Instance, State, in_words

BOOT = Path("/proc/sys/kernel/random/boot_id")
# Before each new try at putting back, for the driver to see that the members have ended.
PAUSES_S = (0, 0.2, 0.8, 2, 3, 4)


@dataclass(frozen=True)
class Seat:
    """Where a member runs: a compute instance, which makes a MIG device, in a GPU instance."""

    instance: Instance
    compute: Compute


Seats = dict[tuple[int, int], Seat]  # (part, compute instance) of a layout → what is there


# -- reading --------------------------------------------------------------------------------------


def read(device: Device) -> Card | None:
    """The card's table of GPU-instance profiles, MIG mode on or off; None on a card without MIG.

    Changes nothing. Raises Unsupported where the user may not see it, NotInForce where NVML fails.
    """
    with in_words(device, "reading its profiles"):
        if nvml.mode(device) is None:
            return None
        return Card(device.name, tuple(nvml.profiles(device)))


def wrong_mode(device: Device, on: bool, switch: bool) -> str | None:
    """The sentence for a card whose MIG mode is not as wanted; None if it is, or may become so.

    Says nothing while a killed run's note is there: the mode seen is not what a cell will find.
    """
    if mig_enabled(device) in (None, on) or note_path(device).exists():
        return None
    why = "" if on else ", and this method needs the whole card"
    wrong = f"MIG mode is {nvml.word(not on)} on {device.name}{why}"
    now, pending = nvml.mode(device) or (on, on)
    if now != pending:
        wrong += ", and a change of it waits for a GPU reset"
    elif switch and device.capability >= nvml.HOPPER:
        return None
    return f"{wrong}; {nvml.how_to_switch(device, on)}"


def occupied(device: Device, layout: Layout | None) -> str | None:
    """The sentence for a card with instances that are not this layout; None where a cell may run.
    Says nothing while a killed run's note is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with in_words(device, "reading its instances"):
        there = nvml.state(device).instances
    if not there or note_path(device).exists() or (layout and _seats(layout, there)):
        return None
    command = f"nvidia-smi mig -i {device.index}"
    return (
        f"MIG instances that are there on {device.name} would have to go: "
        f"{', '.join(map(str, there))}; an administrator removes them with '{command} -dci' and "
        f"'{command} -dgi'"
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


def _seats(layout: Layout, there: tuple[Instance, ...]) -> Seats | None:
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
    slices = tuple(compute.slices for compute in one.compute)
    planned = part.profile.sm_count if part.whole else None
    return (one.profile, slices) == (part.profile.id, part.compute) and all(
        planned in (None, compute.sm_count) for compute in one.compute
    )


# -- dividing -------------------------------------------------------------------------------------


@contextmanager
def divided(device: Device, layout: Layout | None, switch: bool = False) -> Iterator[Seats]:
    """The card with MIG mode on and this layout, by the MIG device of each of its seats; without a
    layout, with the mode off. Afterwards the mode found is there again, and no instance of ours.

    Only if `switch` is the mode changed. Raises Unsupported if something would have to change that
    must not, if the driver does not take the layout, or the user has no rights; GpuBusy if somebody
    is on the card; NotInForce if NVML fails, or what was found could not be put back.
    """
    on = layout is not None
    if not on and not mig_enabled(device):
        yield {}
        return
    if reason := wrong_mode(device, on, switch) or occupied(device, layout):
        raise Unsupported(reason)
    with in_words(device, "reading its instances"):
        found = nvml.state(device)
    if on and (seats := _seats(layout, found.instances)):
        yield seats
        return
    require_nobody(device)
    note = Note(_boot(), found.mode, on, tuple(part.place for part in layout.parts) if on else ())
    _keep(device, note)
    try:
        if found.mode != on:
            with in_words(device, f"switching MIG mode {nvml.word(on)}"):
                nvml.set_mode(device, on)
        yield _create(device, layout) if on else {}
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
    if seats := _seats(layout, now.instances):
        return seats
    sms = ", ".join(str(one.sm_count) for instance in now.instances for one in instance.compute)
    raise NotInForce(
        f"MIG: {layout} was created on {device.name}, but there is {now}, with compute instances "
        f"of {sms} SMs"
    )


def require_nobody(device: Device) -> None:
    """Raise GpuBusy, or NotInForce if NVML does not tell, unless nobody computes on the card."""
    try:
        require_free(device)
    except GpuBusy as busy:
        raise GpuBusy(f"{busy}; so its MIG mode and its instances stay") from None
    if device.processes()["compute"] is None:
        raise NotInForce(
            f"MIG: NVML does not tell who computes on {device.name}, so its MIG mode and its "
            "instances stay"
        )


# -- putting back ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """boot: the machine's start, which no instance survives. found: the MIG mode to put back.
    mode: what a cell makes of it. made: places of the GPU instances that the cell makes.
    """

    boot: str
    found: bool
    mode: bool
    made: tuple[tuple[int, int, int], ...]

    def ours(self, state: State) -> list[Instance]:
        """NVML has no better mark: UUIDs come from card and place."""
        return [one for one in state.instances if one.place in self.made]

    def undone(self, state: State) -> bool:
        """Whether nothing that we did is left."""
        switched = self.found != self.mode
        return not self.ours(state) and not (
            switched and (state.mode, state.pending) != (self.found, self.found)
        )


def recover(device: Device) -> None:
    """Put back what a killed run of this user found, as its note says; nothing without one.

    To be called by who holds the device's lock. Raises GpuBusy if others compute on the card;
    NotInForce, and keeps the note, if it does not succeed. An equal instance that others made
    instead, and left idle, goes with it.
    """
    note = _noted(device)
    if note is None:
        return
    with in_words(device, "reading its instances"):
        undone = note.boot != _boot() or note.undone(nvml.state(device))
    if undone:
        note_path(device).unlink()
        return
    require_nobody(device)
    _restore(device, note)


@defer_signals()
def _restore(device: Device, note: Note) -> None:
    """Raises NotInForce if the state found cannot be had; then the note stays."""
    problem = "NVML shows it otherwise"
    for pause in PAUSES_S:
        time.sleep(pause)
        try:
            for one in note.ours(nvml.state(device)):
                nvml.destroy(device, one)
            now = nvml.state(device)
            if not note.undone(now):
                if now.instances and not note.found:
                    there = ", ".join(map(str, now.instances))
                    raise NotInForce(f"somebody has made {there} meanwhile")
                nvml.set_mode(device, note.found)
            if note.undone(nvml.state(device)):
                note_path(device).unlink(missing_ok=True)
                return
        except (*NVML_ERRORS, NotInForce) as error:
            problem = str(error)
    raise NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with MIG mode "
        f"{nvml.word(note.found)} and no instance of ours: {problem}; 'nvidia-smi mig -i "
        f"{device.index} -lgi' shows what is there, and the next run tries again, unless "
        f"{note_path(device)} is removed"
    )


def note_path(device: Device) -> Path:
    """Where this user's run notes how it found the card; there while, or since, it changes it."""
    card = re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid)
    return lock_folder() / f"{card}.mig-{os.getuid()}.json"


def _boot() -> str:
    return BOOT.read_text(encoding="utf-8").strip()


def _noted(device: Device) -> Note | None:
    """What a killed run noted. Raises NotInForce if that is not readable, or not this user's: in a
    folder that all may write to, others could have planted it.
    """
    file = note_path(device)
    try:
        if file.lstat().st_uid != os.getuid():
            raise OSError("it is another user's")
        boot, found, mode, made = json.loads(file.read_bytes())
        return Note(boot, found, mode, tuple(map(tuple, made)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it found {device.name}, cannot be read: "
            f"{error}; once the card is as it should be, remove it"
        ) from None


def _keep(device: Device, note: Note) -> None:
    """Whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=lock_folder(), prefix=".", delete=False) as stream:
        json.dump([note.boot, note.found, note.mode, note.made], stream)
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).replace(note_path(device))
