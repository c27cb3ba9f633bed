"""A card's MIG state changed for a cell, and put back: mode and instances.

What is there is noted in a journal before the first change, and on every way out it is there again:
same mode, profiles and placements, though the instances bear new ids. A run that was killed leaves
its journal, by which the next one puts the card back. No GPU is ever reset here: on cards before
Hopper, where another mode may take that, the mode is an administrator's.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pynvml

from workflow.collocation import gpu
from workflow.collocation.gpu import Device
from workflow.collocation.methods import mig_journal, mig_nvml
from workflow.collocation.methods.evidence import NotInForce, Unsupported, refuse_company
from workflow.collocation.methods.mig_journal import Note, Touched
from workflow.collocation.methods.mig_layout import Card, Layout, Profile
from workflow.collocation.methods.mig_nvml import Found, Instance, Place, State
from workflow.collocation.methods.undisturbed import undisturbed

PATIENCE_S = 10.0  # for the driver to see that the processes on an instance have ended
ATTEMPTS = 3  # at putting back what was found
HOPPER = (9, 0)  # the compute capability from which on MIG mode is switched without a reset
# Who may read the device file that this names may create instances.
CAPABILITY = Path("/proc/driver/nvidia/capabilities/mig/config")
CAPABILITY_DEVICES = Path("/dev/nvidia-caps")


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
    with _in_words(device, "reading its profiles"):
        if mig_nvml.mode(device) is None:
            return None
        found = [
            Profile(
                index=index,
                id=info.id,
                name=_text(info.name).removeprefix("MIG "),
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
    if gpu.mig_enabled(device) in (None, on) or mig_journal.is_there(device):
        return None
    return _wrong_mode(device, on, switch, why)


def occupied(device: Device, layouts: Iterable[Layout]) -> str | None:
    """The sentence for a card with instances that are not to be touched, and are none of these
    layouts; None where a cell may run. Says nothing while a journal is there.

    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    with _in_words(device, "reading its instances"):
        if mig_journal.is_there(device) or not mig_nvml.state(device).mode:
            return None
        there = mig_nvml.instances(device)
        return _occupied(device, there) if there and not _found(device, layouts, there) else None


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


# -- the mode -------------------------------------------------------------------------------------


@contextmanager
def in_mode(device: Device, on: bool, switch: bool) -> Iterator[None]:
    """The card with MIG mode on or off; as found afterwards, instances included.

    Only if `switch`, and NVML says that nobody computes on the card, is the mode changed. Raises
    Unsupported where it must not or cannot be, NotInForce where somebody is on the card.
    """
    if bool(gpu.mig_enabled(device)) == on:
        yield
        return
    with _in_words(device, "reading its MIG mode"):
        mode = mig_nvml.mode(device)
    if mode is None:
        raise Unsupported(f"{device.name} has no MIG")
    if reason := _wrong_mode(device, on, switch):
        raise Unsupported(reason + _left_by_others(device))
    _require_nobody(device, "its MIG mode stays")
    with _put_back(device, switched=True) as note:
        with _in_words(device, f"switching MIG mode {_word(on)}", _hint(device, on)):
            _touch(device, note, {instance.place for instance in note.found.instances})
            _clear(device, note.places, time.monotonic() + PATIENCE_S)
            error = mig_nvml.set_mode(device, on)
            if not error:
                _settle(device, note)
        if error == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise Unsupported(
                f"{_not_switched(device, on)} without a GPU reset; "
                + _hint(device, on, pending=True)
            )
        if error:
            raise NotInForce(
                f"{_not_switched(device, on)}: {pynvml.NVMLError(error)}; something such as DCGM "
                f"may hold the card; {_hint(device, on, pending=True)}"
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
    with _in_words(device, "reading its instances"):
        there = mig_nvml.instances(device)
        found = _found(device, tries, there)
    if found:
        yield found
        return
    if there and not switch:
        raise Unsupported(_occupied(device, there) + _left_by_others(device))
    if there:
        _require_nobody(device, "its instances stay")
    with _put_back(device) as note:
        yield _apply(device, tries, {one.instance.place for one in there}, note)


def _found(
    device: Device, layouts: Iterable[Layout], there: list[Found]
) -> tuple[Layout, dict[tuple[int, int], MigDevice]] | None:
    """The layout that is exactly what is there."""
    for layout in layouts if there else ():
        if seats := _seats(device, layout, there):
            return layout, seats
    return None


def _apply(
    device: Device, layouts: list[Layout], old: set[Place], note: Note
) -> tuple[Layout, dict[tuple[int, int], MigDevice]]:
    """old: where the instances are that have to go."""
    for layout in layouts:
        with _in_words(device, f"creating {layout}"):
            _touch(device, note, old | note.places | set(_places(layout)))
            _clear(device, note.places, time.monotonic() + PATIENCE_S)
            try:
                _create(device, layout)
            except pynvml.NVMLError_InsufficientResources:
                continue
            if seats := _seats(device, layout, mig_nvml.instances(device)):
                _settle(device, note)
                return layout, seats
            raise NotInForce(
                f"MIG: {layout} was created on {device.name}, but there is "
                f"{_described(mig_nvml.state(device))}"
            )
    raise Unsupported(f"MIG: the driver finds no place for {layout} on {device.name}")


def _create(device: Device, layout: Layout) -> None:
    for part in layout.parts:
        gpu_instance = mig_nvml.create_gpu_instance(device, part.profile.id, part.start, part.size)
        for slices in part.compute:
            mig_nvml.create_slices(gpu_instance, slices)


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


def require_unchanged(
    device: Device, layout: Layout, seats: dict[tuple[int, int], MigDevice]
) -> None:
    """Raise NotInForce unless the card has the layout as it was applied, and nothing else."""
    with _in_words(device, "reading its instances"):
        if _seats(device, layout, mig_nvml.instances(device)) != seats:
            there = _described(mig_nvml.state(device))
            raise NotInForce(
                f"MIG: {layout} was applied on {device.name}, and somebody has changed that: "
                f"there is {there}"
            )


def _places(layout: Layout) -> list[Place]:
    return [(part.profile.id, part.start, part.size) for part in layout.parts]


# -- putting back ---------------------------------------------------------------------------------


@contextmanager
def _put_back(device: Device, switched: bool = False) -> Iterator[Note]:
    """Whatever the block does to the card, afterwards the state found is there again.

    Gives what the journal says. A block in the block has the journal of the outer one.
    """
    with _in_words(device, "reading its instances"):
        found = mig_nvml.state(device)
    note = mig_journal.read(device)
    outermost = note is None
    if outermost:
        note = Note(found, switched, mig_journal.boot())
        mig_journal.write(device, note)
    try:
        yield note
    finally:
        with undisturbed():
            with suppress(NotInForce):  # then it is as far as this block knows
                note = mig_journal.read(device) or note  # an inner block may have failed
            _restore(device, found, note)
            if outermost:
                mig_journal.remove(device)


def recover(device: Device) -> None:
    """Put back what a killed run of this user found, as its journal says; nothing without one.

    To be called by who holds the device's lock. Raises NotInForce, and keeps the journal, if that
    does not succeed, if others compute on the card, or if somebody has changed it since.
    """
    note = mig_journal.read(device)
    if note is None:
        return
    found = note.found
    with _in_words(device, "reading its instances"):
        now = mig_nvml.state(device)
        ours = _ours(device, note)
    if rebooted := note.boot != mig_journal.boot():  # then only a mode still unused is ours
        found, note.touched = State(found.mode, found.mode, ()), []
    anew = rebooted and now.instances
    if anew or not _is_open(note, now, found) or _is_back(now, found, ours):
        mig_journal.remove(device)
        return
    if _others(now, found, ours):
        raise NotInForce(
            f"MIG: a killed run had found {_described(found)} on {device.name}, but somebody "
            f"has changed that since: there is {_described(now)}; once the card is as it "
            f"should be, remove {mig_journal.path(device)}"
        )
    _require_nobody(device, "what a killed run changed is not put back yet")
    with undisturbed():
        _restore(device, found, note)
        mig_journal.remove(device)


def _restore(device: Device, wanted: State, note: Note) -> None:
    """Raises NotInForce if the state wanted cannot be had; then the journal stays.

    What others made meanwhile is theirs, and stays.
    """
    until, problem = time.monotonic() + PATIENCE_S, "NVML shows it otherwise"
    try:
        for _ in range(ATTEMPTS):
            try:
                now = mig_nvml.state(device)
                if not _is_open(note, now, wanted):
                    return
                if not note.switched:
                    wanted = replace(wanted, pending=now.pending)
                ours = _ours(device, note)
                places = {one.place for one in now.instances}
                free = {one.place for one in wanted.instances} - places
                with suppress(OSError):  # a full disk is no reason to leave the card as it is
                    _touch(device, note, ours | free)
                _bring(device, wanted, ours, until)
                if _is_back(mig_nvml.state(device), wanted, ours):
                    return
            except (pynvml.NVMLError, NotInForce) as error:
                problem = str(error)
    finally:
        with suppress(pynvml.NVMLError, OSError):
            _settle(device, note)
    raise NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with {_described(wanted)}: "
        f"{problem}; 'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run "
        f"tries again, unless {mig_journal.path(device)} is removed"
    )


def _is_open(note: Note, now: State, wanted: State) -> bool:
    """Whether anything that we did may be left. Who changed the mode has removed all instances."""
    mode = (now.mode, now.pending) != (wanted.mode, wanted.pending)
    if not note.switched and now.mode != wanted.mode:
        return False
    return bool(note.touched) or (note.switched and mode)


def _is_back(now: State, wanted: State, ours: set[Place]) -> bool:
    theirs = tuple(_others(now, wanted, ours))
    return now.same(replace(wanted, instances=wanted.instances + theirs))


def _others(now: State, wanted: State, ours: set[Place]) -> list[Instance]:
    """Instances that are there, and neither ours nor wanted."""
    return [one for one in now.instances if one.place not in ours and one not in wanted.instances]


def _ours(device: Device, note: Note) -> set[Place]:
    """The places that the note names, but those where by now something else is."""
    there = mig_nvml.uuids(device)
    return {
        one.place
        for one in note.touched
        if one.uuids is None
        or one.place not in there
        or (there[one.place] <= set(one.uuids) and bool(there[one.place]) == bool(one.uuids))
    }


def _touch(device: Device, note: Note, places: set[Place]) -> None:
    """Note that instances come and go in these places from now on."""
    others = [one for one in note.touched if one.place not in places]
    note.touched = [*others, *(Touched(place, None) for place in sorted(places))]
    mig_journal.write(device, note)


def _settle(device: Device, note: Note) -> None:
    """Note what came to be in the places where instances came and went."""
    there = mig_nvml.uuids(device)
    for one in note.touched:
        if one.uuids is None:
            one.uuids = sorted(there.get(one.place, ()))
    mig_journal.write(device, note)


def _require_nobody(device: Device, so: str) -> None:
    """Raise NotInForce unless NVML says that nobody computes on the card."""
    try:
        refuse_company(device)
    except NotInForce as error:
        raise NotInForce(f"{error}; so {so}") from None
    if gpu.processes(device)["compute"] is None:
        raise NotInForce(f"MIG: NVML does not tell who computes on {device.name}, so {so}")


def _bring(device: Device, wanted: State, ours: set[Place], until: float) -> None:
    """The shortest way from what is there to the state wanted."""
    if mig_nvml.state(device).mode != wanted.mode:
        _clear(device, ours, until)
        if theirs := mig_nvml.state(device).instances:
            raise NotInForce(f"somebody has made {', '.join(map(_named, theirs))} meanwhile")
        _set_mode(device, wanted.mode, until)
    if mig_nvml.state(device).pending != wanted.pending:
        mig_nvml.set_mode(device, wanted.pending)
    if not wanted.mode:
        return
    missing = {instance.place: instance for instance in wanted.instances}
    incomplete = []
    for found in mig_nvml.instances(device):
        mine = found.instance.place in ours
        if instance := missing.pop(found.instance.place, None):
            if not mine:
                continue
            for handle, _, compute in found.compute:
                if compute not in instance.compute:
                    destroy = partial(pynvml.nvmlComputeInstanceDestroy, handle)
                    _patiently(device, found, until, destroy)
            there = [compute for _, _, compute in found.compute]
            incomplete += [(found, c) for c in instance.compute if c not in there]
        elif mine:
            _destroy(device, found, until)
    for found, compute in incomplete:
        mig_nvml.create_compute(found.handle, compute)
    for instance in missing.values():
        mig_nvml.create(device, instance)


def _set_mode(device: Device, on: bool, until: float) -> None:
    while error := mig_nvml.set_mode(device, on):
        if error == pynvml.NVML_ERROR_RESET_REQUIRED or time.monotonic() > until:
            raise NotInForce(
                f"{_not_switched(device, on)}: {pynvml.NVMLError(error)}; "
                + _hint(device, on, pending=True)
            )
        time.sleep(0.1)


def _clear(device: Device, ours: set[Place], until: float) -> None:
    """Destroy the instances in these places."""
    for found in mig_nvml.instances(device) if mig_nvml.state(device).mode else []:
        if found.instance.place in ours:
            _destroy(device, found, until)


def _destroy(device: Device, found: Found, until: float) -> None:
    for compute, _, _ in found.compute:
        _patiently(device, found, until, partial(pynvml.nvmlComputeInstanceDestroy, compute))
    _patiently(device, found, until, partial(pynvml.nvmlGpuInstanceDestroy, found.handle))


def _patiently(device: Device, found: Found, until: float, destroy: Callable) -> None:
    """Raises NotInForce if the instance is in use until then."""
    while True:
        try:
            destroy()
            return
        except pynvml.NVMLError_InUse:
            if time.monotonic() > until:
                raise NotInForce(
                    f"MIG: a cell needs the GPU to itself, and the instance of "
                    f"{_named(found.instance)} on {device.name} is in use"
                ) from None
        time.sleep(0.1)


# -- words ----------------------------------------------------------------------------------------


@contextmanager
def _in_words(device: Device, doing: str, hint: str | None = None) -> Iterator[None]:
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


def _described(state: State) -> str:
    """Such as "MIG mode on and 14 at 0:2, 9 at 4:4"; ids of profiles, as nvidia-smi takes them."""
    if not state.mode:
        return "MIG mode off"
    return f"MIG mode on and {', '.join(map(_named, state.instances)) or 'no instances'}"


def _named(instance: Instance) -> str:
    return f"profile {instance.profile} at {instance.start}:{instance.size}"


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _occupied(device: Device, there: list[Found]) -> str:
    names = {info.id: _text(info.name) for _, info in mig_nvml.profiles(device)}
    listed = ", ".join(
        f"{names[one.profile].removeprefix('MIG ')} at {one.start}:{one.size}"
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
        for owner, file in mig_journal.others(device).items()
    )


def _wrong_mode(device: Device, on: bool, switch: bool, why: str = "") -> str | None:
    where = f"on {device.name}" if on else f"({device.name})"
    wrong = f"MIG mode is {_word(not on)} {where}{why}"
    mode = mig_nvml.mode(device)
    if mode and mode[0] != mode[1]:
        return (
            f"{wrong}, and a change of it waits for a GPU reset; an administrator gives it with "
            f"'{_reset(device)}'"
        )
    if switch and device.capability >= HOPPER:
        return None
    return f"{wrong}; {how_to_switch(device, on)}"


def how_to_switch(device: Device, on: bool) -> str:
    """What gives the card another MIG mode, to be read after a semicolon."""
    remedy = f"an administrator switches it {_word(on)} with {_commands(device, on)}"
    if device.capability >= HOPPER:
        return f"{remedy}, or allow it with mig_mode=switch"
    return f"{remedy}; mig_mode=switch does not, for that may reset such a card"


def _hint(device: Device, on: bool, pending: bool = False) -> str:
    return f"an administrator does it with {_commands(device, on, pending)}"


def _commands(device: Device, on: bool, pending: bool = False) -> str:
    """What an administrator runs. pending: the new mode may wait for a reset, on any card."""
    switch = f"'nvidia-smi -i {device.index} -mig {int(on)}'"
    if pending or device.capability < HOPPER:
        return f"{switch} and, where it stays pending, '{_reset(device)}'"
    return switch


def _not_switched(device: Device, on: bool) -> str:
    return f"the MIG mode of {device.name} cannot be switched {_word(on)}"


def _word(on: bool) -> str:
    return "on" if on else "off"


def _reset(device: Device) -> str:
    return f"nvidia-smi -i {device.index} --gpu-reset"
