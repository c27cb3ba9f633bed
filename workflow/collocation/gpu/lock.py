"""Locks that outlive no process: one per device for the whole machine, one per results folder."""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workflow.collocation.study.errors import printable
from workflow.collocation.study.regular_files import open_descriptor, read_json

POLL_S = 0.2
FLAGS = os.O_RDWR | os.O_NOFOLLOW


class Busy(RuntimeError):
    """Somebody else holds the lock; holder: what they said of themselves, {} if nothing."""

    def __init__(self, path: Path, holder: dict):
        who = ", ".join(f"{key} {value}" for key, value in holder.items()) or "an unnamed process"
        super().__init__(f"{path} is in use by {who}")


def lock_folder() -> Path:
    """Where the machine's device locks live: $COLLOCATION_LOCK_DIR, or one place for all users.

    Not tempfile's folder: with a TMPDIR each, two users would not see each other's locks.
    """
    return Path(os.environ.get("COLLOCATION_LOCK_DIR") or "/tmp/gpu-collocation-locks")


@contextmanager
def device_lock(key: str, holder: dict, on_wait: Callable[[dict], None]) -> Iterator[int]:
    """Hold the device `key` (GPU UUID or "cpu"), however long the wait; gives the descriptor of
    which all copies, other processes' too, have to be closed for the device to be free.

    `holder` says who we are (pid, user, study, cell) to those who then wait. `on_wait` gets the
    present holder's words, {} if unknown, at every look, and may raise to end that. Not reentrant.
    """
    folder = lock_folder()
    with suppress(FileExistsError):  # cells on other GPUs begin at once
        folder.mkdir()
        folder.chmod(0o1777)
    path = folder / (re.sub(r"[^A-Za-z0-9._-]", "_", key) + ".lock")
    while (fd := _try(path, holder)) is None:
        on_wait(_words(path))
        time.sleep(POLL_S)
    try:
        yield fd
    finally:
        # A process of ours may hold it yet, and then the words tell of it.
        if "stuck" not in _words(path):
            _say(fd, holder | {"stuck": "a process that it started lives on"})
        os.close(fd)


@contextmanager
def folder_lock(path: Path, holder: dict) -> Iterator[None]:
    """Hold the folder `path` (made if need be) by its file `.lock`; raises Busy if it is held."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    fd = _try(path / ".lock", holder)
    if fd is None:
        raise Busy(path, _words(path / ".lock"))
    try:
        yield
    finally:
        os.ftruncate(fd, 0)
        os.close(fd)


def _try(path: Path, holder: dict) -> int | None:
    """The locked descriptor (close-on-exec), or None while somebody else has it."""
    fd = None
    try:
        fd = _open(path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:  # no file of ours, or a network's file system that has no locks
        if fd is not None:
            os.close(fd)
        key = "results" if path.name == ".lock" else "COLLOCATION_LOCK_DIR"
        raise OSError(
            f"{path} cannot be locked: {error.strerror}; remove it, or set {key} to another "
            "folder, on a local disk"
        ) from None
    _say(fd, holder)
    return fd


def _open(path: Path) -> int:
    """Open or make the file, writable for all.

    First without O_CREAT, which the kernel refuses for another user's file in a sticky folder
    (fs.protected_regular).
    """
    try:
        return open_descriptor(path, FLAGS)
    except FileNotFoundError:
        fd = open_descriptor(path, FLAGS | os.O_CREAT)
    with suppress(PermissionError):  # another user was first
        os.fchmod(fd, 0o666)
    return fd


def _say(fd: int, holder: dict) -> None:
    os.ftruncate(fd, 0)  # first: a dead holder's words are never read as ours
    with suppress(OSError):  # a full disk costs the name, not the lock
        os.pwrite(fd, json.dumps(holder).encode(), 0)


def _words(path: Path) -> dict:
    """What the present holder wrote; {} if it is still writing, or wrote nothing."""
    try:
        words = read_json(path)
        return {
            printable(key): printable(value) if isinstance(value, str) else value
            for key, value in words.items()
        }
    except (OSError, ValueError, AttributeError):
        return {}
