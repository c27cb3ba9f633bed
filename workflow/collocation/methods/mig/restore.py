"""Putting a card's MIG state back as it was found, on every way out, and after a run was killed.

What is there is noted in a journal before the first change: one file per card and user beside the
device locks. It is there while a change is; whoever holds the device's lock and finds it knows that
its writer is dead, and puts the card back by it.
"""

import os
import pwd
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pynvml
from pydantic import TypeAdapter, ValidationError

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.methods.evidence import NotInForce, refuse_company
from workflow.collocation.methods.mig import nvml
from workflow.collocation.methods.mig.nvml import (
    Found,
    Instance,
    Place,
    State,
    described,
    hint_of,
    in_words,
    named,
    not_switched,
)
from workflow.collocation.methods.undisturbed import undisturbed

BOOT = Path("/proc/sys/kernel/random/boot_id")
PATIENCE_S = 10.0  # for the driver to see that the processes on an instance have ended
ATTEMPTS = 3  # at putting back what was found


@dataclass
class Touched:
    """A place of which we destroyed or made the instance. uuids: of the MIG devices that we left
    there; None while that is being changed.
    """

    place: Place
    uuids: list[str] | None


@dataclass
class Note:
    """found: the state to put back. switched: whether we were to change the mode. boot: the id of
    the machine's boot, which no instance survives.
    """

    found: State
    switched: bool
    boot: str
    touched: list[Touched] = field(default_factory=list)

    @property
    def places(self) -> set[Place]:
        return {one.place for one in self.touched}


_NOTE = TypeAdapter(Note)


@contextmanager
def put_back(device: Device, switched: bool = False) -> Iterator[Note]:
    """Whatever the block does to the card, afterwards the state found is there again.

    Gives what the journal says. A block in the block has the journal of the outer one.
    """
    with in_words(device, "reading its instances"):
        found = nvml.state(device)
    note = noted(device)
    outermost = note is None
    if outermost:
        note = Note(found, switched, boot())
        keep(device, note)
    try:
        yield note
    finally:
        with undisturbed():
            with suppress(NotInForce):  # then it is as far as this block knows
                note = noted(device) or note  # an inner block may have failed
            _restore(device, found, note)
            if outermost:
                forget(device)


def recover(device: Device) -> None:
    """Put back what a killed run of this user found, as its journal says; nothing without one.

    To be called by who holds the device's lock. Raises NotInForce, and keeps the journal, if that
    does not succeed, if others compute on the card, or if somebody has changed it since.
    """
    note = noted(device)
    if note is None:
        return
    found = note.found
    with in_words(device, "reading its instances"):
        now = nvml.state(device)
        ours = _ours(device, note)
    if rebooted := note.boot != boot():  # then only a mode still unused is ours
        found, note.touched = State(found.mode, found.mode, ()), []
    anew = rebooted and now.instances
    if anew or not _is_open(note, now, found) or _is_back(now, found, ours):
        forget(device)
        return
    if _others(now, found, ours):
        raise NotInForce(
            f"MIG: a killed run had found {described(found)} on {device.name}, but somebody "
            f"has changed that since: there is {described(now)}; once the card is as it "
            f"should be, remove {note_path(device)}"
        )
    require_nobody(device, "what a killed run changed is not put back yet")
    with undisturbed():
        _restore(device, found, note)
        forget(device)


def _restore(device: Device, wanted: State, note: Note) -> None:
    """Raises NotInForce if the state wanted cannot be had; then the journal stays.

    What others made meanwhile is theirs, and stays.
    """
    until, problem = time.monotonic() + PATIENCE_S, "NVML shows it otherwise"
    try:
        for _ in range(ATTEMPTS):
            try:
                now = nvml.state(device)
                if not _is_open(note, now, wanted):
                    return
                if not note.switched:
                    wanted = replace(wanted, pending=now.pending)
                ours = _ours(device, note)
                places = {one.place for one in now.instances}
                free = {one.place for one in wanted.instances} - places
                with suppress(OSError):  # a full disk is no reason to leave the card as it is
                    touch(device, note, ours | free)
                _bring(device, wanted, ours, until)
                if _is_back(nvml.state(device), wanted, ours):
                    return
            except (pynvml.NVMLError, NotInForce) as error:
                problem = str(error)
    finally:
        with suppress(pynvml.NVMLError, OSError):
            settle(device, note)
    raise NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with {described(wanted)}: "
        f"{problem}; 'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run "
        f"tries again, unless {note_path(device)} is removed"
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
    there = nvml.uuids(device)
    return {
        one.place
        for one in note.touched
        if one.uuids is None
        or one.place not in there
        or (there[one.place] <= set(one.uuids) and bool(there[one.place]) == bool(one.uuids))
    }


def touch(device: Device, note: Note, places: set[Place]) -> None:
    """Note that instances come and go in these places from now on."""
    others = [one for one in note.touched if one.place not in places]
    note.touched = [*others, *(Touched(place, None) for place in sorted(places))]
    keep(device, note)


def settle(device: Device, note: Note) -> None:
    """Note what came to be in the places where instances came and went."""
    there = nvml.uuids(device)
    for one in note.touched:
        if one.uuids is None:
            one.uuids = sorted(there.get(one.place, ()))
    keep(device, note)


def require_nobody(device: Device, so: str) -> None:
    """Raise NotInForce unless NVML says that nobody computes on the card."""
    try:
        refuse_company(device)
    except NotInForce as error:
        raise NotInForce(f"{error}; so {so}") from None
    if device.processes()["compute"] is None:
        raise NotInForce(f"MIG: NVML does not tell who computes on {device.name}, so {so}")


def _bring(device: Device, wanted: State, ours: set[Place], until: float) -> None:
    """The shortest way from what is there to the state wanted."""
    if nvml.state(device).mode != wanted.mode:
        clear(device, ours, until)
        if theirs := nvml.state(device).instances:
            raise NotInForce(f"somebody has made {', '.join(map(named, theirs))} meanwhile")
        _set_mode(device, wanted.mode, until)
    if nvml.state(device).pending != wanted.pending:
        nvml.set_mode(device, wanted.pending)
    if not wanted.mode:
        return
    missing = {instance.place: instance for instance in wanted.instances}
    incomplete = []
    for found in nvml.instances(device):
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
        nvml.create_compute(found.handle, compute)
    for instance in missing.values():
        nvml.create(device, instance)


def _set_mode(device: Device, on: bool, until: float) -> None:
    while error := nvml.set_mode(device, on):
        if error == pynvml.NVML_ERROR_RESET_REQUIRED or time.monotonic() > until:
            raise NotInForce(
                f"{not_switched(device, on)}: {pynvml.NVMLError(error)}; "
                + hint_of(device, on, pending=True)
            )
        time.sleep(0.1)


def clear(device: Device, ours: set[Place], until: float | None = None) -> None:
    """Destroy the instances in these places, those in use once they no longer are.

    Raises NotInForce if one still is at `until`, by default PATIENCE_S from now.
    """
    until = time.monotonic() + PATIENCE_S if until is None else until
    for found in nvml.instances(device) if nvml.state(device).mode else []:
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
                    f"{named(found.instance)} on {device.name} is in use"
                ) from None
        time.sleep(0.1)


# -- the journal ----------------------------------------------------------------------------------


def note_path(device: Device) -> Path:
    return lock_folder() / f"{_stem(device)}{os.getuid()}.json"


def is_noted(device: Device) -> bool:
    """Whether anybody's run has, or had when it was killed, changed the card."""
    return any(_all(device))


def others(device: Device) -> dict[str, Path]:
    """Name of another user whose run noted something of the card → the file."""
    owners = {}
    for file in _all(device):
        with suppress(OSError):
            if (uid := file.lstat().st_uid) != os.getuid():
                owners[_user(uid)] = file
    return owners


def boot() -> str:
    """An id that changes when the machine starts anew."""
    return BOOT.read_text().strip()


def noted(device: Device) -> Note | None:
    """What was written last; None if nothing is noted. Raises NotInForce if it is not readable."""
    file = note_path(device)
    if not _is_ours(file):
        return None
    try:
        return _NOTE.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it found {device.name}, cannot be read: "
            f"{first}; once the card is as it should be, remove it"
        ) from None


def keep(device: Device, note: Note) -> None:
    """Whole or not at all, and on the disk when this returns. Raises OSError."""
    file = note_path(device)
    fd, partial = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(_NOTE.dump_json(note))
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(partial).unlink()
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def forget(device: Device) -> None:
    note_path(device).unlink(missing_ok=True)


def _stem(device: Device) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid) + ".mig-"


def _all(device: Device) -> Iterator[Path]:
    return lock_folder().glob(f"{_stem(device)}*.json")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"with the id {uid}"


def _is_ours(file: Path) -> bool:
    """In a folder that all may write to, others could have planted it."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode)
