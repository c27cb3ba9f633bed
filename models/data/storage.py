"""Files and folders that are either whole or absent: locks, atomic folders, JSON, growing .npy."""

import contextlib
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
    """Hold an flock beside `target`; a second process waits, a dead holder's lock is free."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling that becomes `target`, replacing it, when the block succeeds.

    Call it under `locked(target)`: leftovers of a killed builder are then known to be dead.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
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


def write_json(path: Path, value: dict, *, replace: bool = True) -> bool:
    """Write `value` at once; with `replace` false an existing file stays and False comes back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
        Path(name).chmod(0o644)
        if replace:
            Path(name).replace(path)
        else:
            path.hardlink_to(name)
    except FileExistsError:
        return False
    finally:
        Path(name).unlink(missing_ok=True)
    return True


def read_json(path: Path) -> dict:
    """The JSON object in `path`; FileNotFoundError where absent, DataError where damaged."""
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return value


class NpyWriter:
    """Write an .npy file row block by row block; its length is settled on leaving.

    Plain writes: a full disk raises OSError, where a memory map would end the process (SIGBUS).
    """

    def __init__(self, path: Path, dtype: type, row_shape: tuple[int, ...]):
        self._descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        self._dtype, self._row_shape, self.rows = np.dtype(dtype), row_shape, 0
        self._file = path.open("wb")
        self._header()

    def _header(self) -> None:
        # numpy pads the header so that its first axis can grow in place.
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": self._descr, "fortran_order": False, "shape": (self.rows, *self._row_shape)},
        )

    def append(self, block: np.ndarray) -> None:
        """Add [k, *row_shape] rows."""
        assert block.shape[1:] == self._row_shape
        self._file.write(np.ascontiguousarray(block, self._dtype).data)
        self.rows += len(block)

    def __enter__(self) -> "NpyWriter":
        return self

    def __exit__(self, *error) -> None:
        with self._file:
            self._file.seek(0)
            self._header()


def folder_bytes(folder: Path, ignore: tuple[str, ...] = ()) -> int:
    """Bytes of the files under `folder`, leaving out top-level names that start so."""
    total = 0
    for entry in os.scandir(folder):
        if not entry.name.startswith(ignore or ("\0",)):
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
