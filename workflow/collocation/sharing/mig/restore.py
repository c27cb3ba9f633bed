"""Putting a card's MIG state back as it was found, on every way out, and after a run was killed.

The state found is noted before the first change (as by NVIDIA's mig-parted), and put back from
there. The note, a file per card and user beside the device locks, is there as long as a change is.
Whoever holds the device's lock and finds it knows that its writer is dead.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml
from pydantic import TypeAdapter, ValidationError

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.sharing.defer_signals import defer_signals
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, require_free
from workflow.collocation.sharing.mig import nvml
from workflow.collocation.sharing.mig.nvml import Instance, State, in_words

BOOT, MODULE = Path("/proc/sys/kernel/random/boot_id"), Path("/sys/module/nvidia")
# Before each new try at putting back, for the driver to see that the members have ended.
PAUSES_S = (0, 0.2, 0.8, 2, 3, 4)


@dataclass
class Note:
    """found: the state to put back. made: what a cell makes of it. boot: the driver's start, which
    neither instances nor, from Hopper on, the mode survive.
    """

    boot: str
    found: State
    made: State

    @property
    def switched(self) -> bool:
        return self.found.mode != self.made.mode

    def covers(self, one: Instance) -> bool:
        """Whether an instance is as one found or made, or on its way to or from that; else it is
        somebody else's. NVML has no better mark: UUIDs come from card and place.
        """
        so_far, place = len(one.compute), one.place
        found = [(known.place, known.compute[:so_far]) for known in self.found.instances]
        made = [(known.place, known.slices[:so_far]) for known in self.made.instances]
        return (place, one.compute) in found or (place, one.slices) in made

    def is_undone(self, now: State) -> bool:
        """Whether nothing that we did is left. Who changed the mode has removed all instances."""
        if not self.switched and now.mode != self.found.mode:
            return True
        if self.switched and (now.mode, now.pending) != (self.found.mode, self.found.pending):
            return False
        return {one for one in now.instances if self.covers(one)} == set(self.found.instances)


_NOTE = TypeAdapter(Note)


@contextmanager
def put_back(device: Device, found: State, made: State) -> Iterator[None]:
    """Whatever the block does to the card to make it `made`, afterwards it is as found again."""
    note = Note(_boot(), found, made)
    _keep(device, note)
    try:
        yield
    finally:
        _restore(device, note)


def recover(device: Device) -> None:
    """Put back what a killed run of this user found, as its note says; nothing without one.

    To be called by who holds the device's lock. Raises NotInForce, and keeps the note, if that does
    not succeed, if somebody has changed it since, or may have: there is another user's note.
    Raises GpuBusy if others compute on the card. An equal instance that others made instead, and
    left idle, goes with it.
    """
    note = _noted(device)
    if note is None:
        return
    with in_words(device, "reading its instances"):
        now = nvml.state(device)
    if note.boot != _boot() or note.is_undone(now):
        note_path(device).unlink()
        return
    own = note_path(device)
    for other in set(own.parent.glob(f"{own.name.rpartition('-')[0]}-*.json")) - {own}:
        raise _not_put_back(device, note, f"another user's run noted the card, too, in {other}")
    if not all(note.covers(one) for one in now.instances):
        raise _not_put_back(device, note, f"somebody has changed that since: there is {now}")
    require_nobody(device, "what a killed run changed is not put back yet")
    _restore(device, note)


@defer_signals()
def _restore(device: Device, note: Note) -> None:
    """Raises NotInForce if the state found cannot be had; then the note stays."""
    problem = "NVML shows it otherwise"
    for pause in PAUSES_S:
        time.sleep(pause)
        try:
            if not note.is_undone(nvml.state(device)):
                _undo(device, note)
            if note.is_undone(nvml.state(device)):
                note_path(device).unlink(missing_ok=True)
                return
        except (pynvml.NVMLError, NotInForce) as error:
            problem = str(error)
    raise _not_put_back(device, note, problem)


def _not_put_back(device: Device, note: Note, problem: str) -> NotInForce:
    return NotInForce(
        f"MIG: {device.name} could not be put back as it was found, with {note.found}: "
        f"{problem}; 'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run "
        f"tries again, unless {note_path(device)} is removed"
    )


def _undo(device: Device, note: Note) -> None:
    """What others made meanwhile is theirs, and stays."""
    found, there = note.found, nvml.state(device).instances
    clear(device, [one for one in there if note.covers(one) and one not in found.instances])
    now = nvml.state(device)
    if note.switched and (now.mode, now.pending) != (found.mode, found.pending):
        if now.instances and not found.mode:
            raise NotInForce(f"somebody has made {', '.join(map(str, now.instances))} meanwhile")
        nvml.set_mode(device, found.mode)
    for one in found.instances:
        if one not in now.instances:
            nvml.create(device, one)


def clear(device: Device, instances: Iterable[Instance]) -> None:
    """Destroy these instances. Raises NotInForce where one is in use."""
    for one in instances:
        try:
            nvml.destroy(device, one)
        except pynvml.NVMLError_InUse:
            raise NotInForce(
                f"MIG: a cell needs the GPU to itself, and the instance of {one} on {device.name} "
                "is in use; something such as DCGM may hold it"
            ) from None


def require_nobody(device: Device, so: str) -> None:
    """Raise GpuBusy, or NotInForce if NVML does not tell, unless nobody computes on the card."""
    try:
        require_free(device)
    except GpuBusy as error:
        raise GpuBusy(f"{error}; so {so}") from None
    if device.processes()["compute"] is None:
        raise NotInForce(f"MIG: NVML does not tell who computes on {device.name}, so {so}")


# -- the note -------------------------------------------------------------------------------------


def note_path(device: Device) -> Path:
    """Where this user's run notes how it found the card; there while, or since, it changes it."""
    card = re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid)
    return lock_folder() / f"{card}.mig-{os.getuid()}.json"


def _boot() -> str:
    """An id that changes when the machine starts anew, or its driver: sysfs reuses no number."""
    return f"{BOOT.read_text().strip()} {MODULE.stat().st_ino if MODULE.exists() else ''}"


def _noted(device: Device) -> Note | None:
    """What a killed run noted. Raises NotInForce if that is not readable, or not this user's: in a
    folder that all may write to, others could have planted it.
    """
    file = note_path(device)
    try:
        if file.lstat().st_uid != os.getuid():
            raise OSError("it is another user's")
        return _NOTE.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it found {device.name}, cannot be read: "
            f"{str(error).splitlines()[0]}; once the card is as it should be, remove it"
        ) from None


def _keep(device: Device, note: Note) -> None:
    """Whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=lock_folder(), prefix=".", delete=False) as stream:
        stream.write(_NOTE.dump_json(note))
        stream.flush()
        os.fsync(stream.fileno())
    Path(stream.name).replace(note_path(device))
