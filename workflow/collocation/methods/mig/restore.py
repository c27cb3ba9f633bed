"""Putting a card's MIG state back as it was found, on every way out, and after a run was killed.

What is there is noted in a journal before the first change: one file per card and user beside the
device locks. It is there while a change is; whoever holds the device's lock and finds it knows that
its writer is dead, and puts the card back by it.
"""

import os
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
from workflow.collocation.methods.mig.nvml import Instance, Place, State, in_words
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

    Gives what the journal says. Of blocks in each other it is the outermost that puts back.
    """
    if note := noted(device):
        yield note
        return
    with in_words(device, "reading its instances"):
        note = Note(nvml.state(device), switched, boot())
    keep(device, note)
    try:
        yield note
    finally:
        with undisturbed():
            with suppress(NotInForce):  # then it is as far as this block knows
                note = noted(device) or note
            _restore(device, note)


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
        rebooted = note.boot != boot()
        if rebooted:  # then only a mode still unused is ours
            note.found, note.touched = replace(note.found, instances=()), []
        if (rebooted and now.instances) or _is_back(note, now):
            forget(device)
            return
        ours = _ours(note, now)
    if any(one.place not in ours and one not in note.found.instances for one in now.instances):
        raise NotInForce(
            f"MIG: a killed run had found {found} on {device.name}, but somebody "
            f"has changed that since: there is {now}; once the card is as it "
            f"should be, remove {note_path(device)}"
        )
    require_nobody(device, "what a killed run changed is not put back yet")
    with undisturbed():
        _restore(device, note)


def _restore(device: Device, note: Note) -> None:
    """Raises NotInForce if the state found cannot be had; then the journal stays.

    What others made meanwhile is theirs, and stays.
    """
    until, problem = time.monotonic() + PATIENCE_S, "NVML shows it otherwise"
    for left in reversed(range(ATTEMPTS + 1)):
        try:
            now = nvml.state(device)
            if _is_back(note, now):
                forget(device)
                return
            if left:
                _bring(device, note, now, until)
        except (pynvml.NVMLError, NotInForce) as error:
            problem = str(error)
    with suppress(pynvml.NVMLError, OSError):
        settle(device, note)
    raise NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with {note.found}: "
        f"{problem}; 'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run "
        f"tries again, unless {note_path(device)} is removed"
    )


def _is_back(note: Note, now: State) -> bool:
    """Whether nothing that we did is left. Who changed the mode has removed all instances."""
    found = note.found
    if note.switched and (now.mode, now.pending) != (found.mode, found.pending):
        return False
    if now.mode != found.mode:
        return True
    ours = _ours(note, now)
    there = {one.place: one for one in now.instances}
    wanted = {one.place: one for one in found.instances}
    return all(
        there.get(place) == wanted.get(place) or (place not in ours and place not in wanted)
        for place in note.places
    )


def _ours(note: Note, now: State) -> set[Place]:
    """The places that the note names, but those where by now something else is."""
    there = {one.place: one.uuids for one in now.instances}
    return {
        one.place
        for one in note.touched
        if one.uuids is None
        or one.place not in there
        or (there[one.place] <= set(one.uuids) and bool(there[one.place]) == bool(one.uuids))
    }


def _bring(device: Device, note: Note, now: State, until: float) -> None:
    """The shortest way from what is there to the state found."""
    found, ours = note.found, _ours(note, now)
    with suppress(OSError):  # a full disk is no reason to leave the card as it is
        touch(device, note, ours)
    if note.switched and (now.mode, now.pending) != (found.mode, found.pending):
        clear(device, ours, until)
        if theirs := nvml.state(device).instances:
            raise NotInForce(f"somebody has made {', '.join(map(str, theirs))} meanwhile")
        _set_mode(device, found.mode, until)
    if not found.mode:
        return
    wanted = {one.place: one for one in found.instances}
    clear(device, ours, until, keep=wanted)
    there = {one.place: one for one in nvml.instances(device)}
    for place, one in wanted.items():
        has = there.get(place)
        if has is None or place in ours:
            gpu_instance = has.handle if has else nvml.create_gpu_instance(device, *place)
            for compute in one.compute:
                if has is None or compute not in has.compute:
                    nvml.create_compute(gpu_instance, compute)


def _set_mode(device: Device, on: bool, until: float) -> None:
    while error := nvml.set_mode(device, on):
        if error == pynvml.NVML_ERROR_RESET_REQUIRED or time.monotonic() > until:
            raise NotInForce(nvml.not_switched(device, on, error))
        time.sleep(0.1)


def clear(
    device: Device,
    ours: set[Place],
    until: float | None = None,
    keep: dict[Place, Instance] | None = None,
) -> None:
    """Destroy the instances in these places, those in use once they no longer are; `keep` says
    where one stays, with which compute instances.

    Raises NotInForce if one still is at `until`, by default PATIENCE_S from now.
    """
    until = time.monotonic() + PATIENCE_S if until is None else until
    for instance in nvml.state(device).instances:
        if instance.place not in ours:
            continue
        kept = (keep or {}).get(instance.place)
        for compute in instance.compute:
            if kept is None or compute not in kept.compute:
                destroy = partial(pynvml.nvmlComputeInstanceDestroy, compute.handle)
                _patiently(device, instance, until, destroy)
        if kept is None:
            destroy = partial(pynvml.nvmlGpuInstanceDestroy, instance.handle)
            _patiently(device, instance, until, destroy)


def _patiently(device: Device, instance: Instance, until: float, destroy: Callable) -> None:
    while True:
        try:
            return destroy()
        except pynvml.NVMLError_InUse:
            if time.monotonic() > until:
                raise NotInForce(
                    f"MIG: a cell needs the GPU to itself, and the instance of {instance} on "
                    f"{device.name} is in use"
                ) from None
        time.sleep(0.1)


def require_nobody(device: Device, so: str) -> None:
    """Raise NotInForce unless NVML says that nobody computes on the card."""
    try:
        refuse_company(device)
    except NotInForce as error:
        raise NotInForce(f"{error}; so {so}") from None
    if device.processes()["compute"] is None:
        raise NotInForce(f"MIG: NVML does not tell who computes on {device.name}, so {so}")


# -- the journal ----------------------------------------------------------------------------------


def touch(device: Device, note: Note, places: set[Place]) -> None:
    """Note that instances come and go in these places from now on."""
    others = [one for one in note.touched if one.place not in places]
    note.touched = [*others, *(Touched(place, None) for place in sorted(places))]
    keep(device, note)


def settle(device: Device, note: Note) -> None:
    """Note what came to be in the places where instances came and went."""
    there = {one.place: one for one in nvml.state(device).instances}
    for one in note.touched:
        if one.uuids is None:
            one.uuids = sorted(there[one.place].uuids) if one.place in there else []
    keep(device, note)


def note_path(device: Device) -> Path:
    return lock_folder() / f"{_stem(device)}{os.getuid()}.json"


def is_noted(device: Device) -> bool:
    """Whether anybody's run has, or had when it was killed, changed the card."""
    return any(_all(device))


def others(device: Device) -> list[Path]:
    """What other users' runs noted of the card."""
    return [file for file in _all(device) if file != note_path(device)]


def boot() -> str:
    """An id that changes when the machine starts anew."""
    return BOOT.read_text().strip()


def noted(device: Device) -> Note | None:
    """What was written last; None if nothing is noted. Raises NotInForce if it is not readable."""
    file = note_path(device)
    try:
        found = file.lstat()
        # In a folder that all may write to, others could have planted it.
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            return None
        return _NOTE.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it found {device.name}, cannot be read: "
            f"{first}; once the card is as it should be, remove it"
        ) from None


def keep(device: Device, note: Note) -> None:
    """Whole or not at all. Raises OSError."""
    file = note_path(device)
    fd, partial = tempfile.mkstemp(dir=file.parent, prefix=".")
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(_NOTE.dump_json(note))
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).replace(file)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def forget(device: Device) -> None:
    note_path(device).unlink(missing_ok=True)


def _stem(device: Device) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid) + ".mig-"


def _all(device: Device) -> Iterator[Path]:
    return lock_folder().glob(f"{_stem(device)}*.json")
