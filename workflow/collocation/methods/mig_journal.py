"""What a card's MIG state was before this user's runs changed it, kept where their death leaves it.

One file per card and user beside the device locks. It is there while a change is; whoever holds
the device's lock and finds it knows that its writer is dead.
"""

import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from workflow.collocation.gpu import Device
from workflow.collocation.lock import lock_folder
from workflow.collocation.methods.evidence import NotInForce
from workflow.collocation.methods.mig_nvml import Place, State

BOOT = Path("/proc/sys/kernel/random/boot_id")


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


def path(device: Device) -> Path:
    return lock_folder() / f"{_stem(device)}{os.getuid()}.json"


def is_there(device: Device) -> bool:
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


def read(device: Device) -> Note | None:
    """What was written last; None if nothing is noted. Raises NotInForce if it is not readable."""
    file = path(device)
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


def write(device: Device, note: Note) -> None:
    """Whole or not at all, and on the disk when this returns. Raises OSError."""
    file = path(device)
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


def remove(device: Device) -> None:
    path(device).unlink(missing_ok=True)


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
