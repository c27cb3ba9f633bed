"""Files and folders that are either whole or absent: locks, atomic folders, JSON."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np


class DataError(Exception):
    """A dataset cannot be made ready or read; the message is one line for the user."""


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold an flock beside `target`; a second process waits, a dead holder's lock is free.

    Where nobody can write, what is there is only read: no lock is needed.
    """
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((target.parent / f".{target.name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or not target.is_dir():
                raise
        yield


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling that becomes `target`, replacing it, when the block succeeds.

    Call it under `locked(target)`: leftovers of a killed builder are then known to be dead.
    """
    prefix = f".{target.name}.tmp-"
    for dead in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(dead)
    building = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield building
        building.chmod(0o755)
        if target.exists():
            # Renamed first, so that an interrupted removal leaves no half-empty target behind.
            shutil.rmtree(target.rename(f"{building}-old"))
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_json(path: Path, value: dict) -> None:
    """Write `value`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def read_json(path: Path) -> dict:
    """The JSON object in `path`; DataError where it is damaged."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error})") from error


def read_array(path: Path, mapped: bool = False) -> np.ndarray:
    """The array in a .npy file; DataError where it is damaged, or holds objects (a pickle)."""
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def folder_bytes(folder: Path, ignore: tuple[str, ...] = ()) -> int:
    """Bytes of the files under `folder`, leaving out top-level names that start so."""
    total = 0
    for entry in os.scandir(folder):
        if not entry.name.startswith(ignore):
            total += folder_bytes(entry.path) if entry.is_dir() else entry.stat().st_size
    return total


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of name, size and modification time: tells changed files without reading them."""
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        size = 0 if path.is_dir() else stat.st_size
        digest.update(f"{path.parent.name}/{path.name}\0{size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
