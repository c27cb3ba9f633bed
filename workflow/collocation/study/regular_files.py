"""Reads regular files only: reading a pipe would wait, and reading a device may never end.

Writes a file whole or not at all.
"""

import errno
import json
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(
    path: Path, text: str, opener: Callable | None = None, durable: bool = True
) -> None:
    """Write a UTF-8 file whole or not at all. Raises OSError.

    opener: as of `open`. durable: wait until the disk has it.
    """
    # Machines that share a folder may write the same file.
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_descriptor(path: Path, flags: int) -> int:
    """Open a regular file with these flags. Raises OSError, also for any other kind of file."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return descriptor


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes. Raises OSError, also for any other kind of file."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """The text of a regular UTF-8 file. Raises OSError, or ValueError."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> object:
    """The value in a JSON file. Raises OSError, or ValueError with the file's name."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
