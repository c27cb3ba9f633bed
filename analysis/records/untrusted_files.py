"""Reading files that somebody else may have made: plain ones only, of a size that is no attack.

A FIFO would hang whoever opens it, and a link may lead anywhere.
"""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MOST = 2_000_000_000  # bytes of a file


def read_bytes(path: Path) -> bytes:
    """A plain file's content. Raises OSError, or ValueError for anything else or too large."""
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link: it is not opened")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as content:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST:
            raise ValueError(f"{path.name} is no plain file of at most {MOST} bytes")
        return content.read()


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> object:
    """Raises OSError, or ValueError with the file's name."""
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def read_table(path: Path, columns: Sequence[str] | None = None):
    """A pyarrow.Table. Raises OSError, or ValueError with the file's name."""
    import pyarrow as pa  # noqa: PLC0415, the Snakefile reads names only
    import pyarrow.parquet  # noqa: PLC0415

    content = pa.BufferReader(read_bytes(path))
    try:
        return pa.parquet.ParquetFile(content).read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} is no table that can be read: {one_line(error)}") from error


def printable(text: object) -> str:
    """On one line, without what a terminal would obey: a file's name may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
