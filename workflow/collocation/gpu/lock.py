"""Locks that outlive no process: one for each device of the machine, one for a results folder."""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from workflow.collocation.study.errors import printable
from workflow.collocation.study.regular_files import open_descriptor, read_json

POLL_S = 0.2
# Options of mounted file systems (NFS, Lustre) whose locks other machines do not see.
LOCAL = {"nolock", "local_lock=all", "local_lock=flock", "localflock"}
FLAGS = os.O_RDWR | os.O_NOFOLLOW


class LockHeld(RuntimeError):
    """Another process holds the lock of `path`; holder: what it wrote of itself."""

    def __init__(self, path: Path, holder: dict):
        super().__init__(f"{path} is in use by {holder_text(holder) or 'an unnamed process'}")


def holder_text(holder: dict) -> str:
    """What the holder of a lock wrote of itself, in words; empty if nothing is known."""
    return ", ".join(f"{key} {value}" for key, value in holder.items() if value)


def lock_folder() -> Path:
    """The folder of the machine's device locks: $COLLOCATION_LOCK_DIR, or one for all users.

    Not tempfile's folder: with a TMPDIR each, two users would not see each other's locks.
    """
    return Path(os.environ.get("COLLOCATION_LOCK_DIR") or "/tmp/gpu-collocation-locks")


@contextmanager
def device_lock(key: str, holder: dict, on_wait: Callable[[dict], None]) -> Iterator[int]:
    """Hold the lock of a device (GPU UUID or "cpu"), after a wait of any length.

    Yields the lock's file descriptor; the device is free once all copies of it are closed, also in
    other processes. holder: who we are (pid, user, study, cell), for those who then wait. on_wait:
    gets the present holder, {} if unknown, every POLL_S, and may raise to end the wait. Not
    reentrant.
    """
    folder = lock_folder()
    with suppress(FileExistsError):  # cells on other GPUs begin at once
        folder.mkdir()
        folder.chmod(0o1777)
    path = folder / (re.sub(r"[^A-Za-z0-9._-]", "_", key) + ".lock")
    while (fd := _try_lock(path, holder)) is None:
        on_wait(_read_holder(path))
        time.sleep(POLL_S)
    try:
        yield fd
    finally:
        # A process that we started may keep a copy of the descriptor; waiters are told so.
        if "stuck" not in _read_holder(path):
            _write_holder(fd, holder | {"stuck": "a process that it started lives on"})
        os.close(fd)


@contextmanager
def folder_lock(path: Path, holder: dict, setting: str = "results") -> Iterator[None]:
    """Hold a folder (made if need be) by its file `.lock`. Raises LockHeld if another has it.

    setting: what chooses the folder, for those to whom it cannot be locked.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    fd = _try_lock(path / ".lock", holder, setting)
    if fd is None:
        raise LockHeld(path, _read_holder(path / ".lock"))
    try:
        yield
    finally:
        os.ftruncate(fd, 0)
        os.close(fd)


def local_locks(folder: Path) -> str | None:
    """The option by which a folder is mounted so that its locks hold on this machine only."""
    path = folder.resolve()
    above = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    nearest = sorted(above, key=lambda mount: len(mount.mountpoint))[-1:]
    options = {option for mount in nearest for option in mount.opts.split(",")}
    return min(options & LOCAL, default=None)


def _try_lock(path: Path, holder: dict, setting: str = "COLLOCATION_LOCK_DIR") -> int | None:
    """The locked descriptor (close-on-exec), or None while another process has the lock."""
    fd = None
    try:
        fd = _open(path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:  # no regular file, or a network's file system without locks
        if fd is not None:
            os.close(fd)
        raise OSError(
            f"{path} cannot be locked: {error.strerror}; remove it, or set {setting} to another "
            "folder, on a local disk"
        ) from None
    _write_holder(fd, holder)
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


def _write_holder(fd: int, holder: dict) -> None:
    os.ftruncate(fd, 0)  # first, so that a dead holder is never read as us
    with suppress(OSError):  # a full disk costs the name, not the lock
        os.pwrite(fd, json.dumps(holder).encode(), 0)


def _read_holder(path: Path) -> dict:
    """What the holder wrote of itself; {} if it is still writing, or wrote nothing."""
    try:
        holder = read_json(path)
        return {
            printable(key): printable(value) if isinstance(value, str) else value
            for key, value in holder.items()
        }
    except (OSError, ValueError, AttributeError):
        return {}
