"""Reading regular files only: a pipe in place of one would be waited for, a device never ends."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_descriptor(path: Path, flags: int) -> int:
    """A file's, opened with these flags. Raises OSError, also for what is no regular file."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return fd


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes. Raises OSError, also for what is no regular file."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def read_bytes(path: Path) -> bytes:
    """Raises OSError, also for what is no regular file."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """UTF-8. Raises OSError, or ValueError."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> object:
    """Raises OSError, or ValueError with the file's name."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
