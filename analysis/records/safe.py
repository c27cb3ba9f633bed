"""Reading files that somebody else may have made: plain ones only, and none that fills the memory.

A FIFO would hang whoever opens it, a link may lead anywhere, and a table or a list may be far
larger in memory than on disk.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MOST_TEXT, MOST_TABLE = 200_000_000, 2_000_000_000  # bytes that are read of a file
MOST_ROWS = 200_000_000  # of a table whose rows become Python objects, ten times as large


def read_bytes(path: Path, most: int = MOST_TEXT) -> bytes:
    """A plain file's content. Raises OSError, or ValueError for anything else or too large."""
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link: it is not opened")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as content:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise ValueError(f"{path.name} is no plain file of at most {most} bytes")
        return content.read()


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> object:
    """Raises OSError, or ValueError with the file's name."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def read_table(path: Path, columns: Sequence[str] | None = None, most: int = 0):
    """A pyarrow.Table of at most so many bytes (MOST_TABLE). Raises OSError, ValueError."""
    most = most or MOST_TABLE
    return table(read_bytes(path, most), path.name, columns, most)


def table(content: bytes, name: str, columns: Sequence[str] | None = None, most: int = 0):
    """As `read_table`, of a file's content."""
    import pyarrow as pa  # noqa: PLC0415, the Snakefile reads names only
    import pyarrow.parquet  # noqa: PLC0415

    most, content = most or MOST_TABLE, pa.BufferReader(content)
    try:
        about = pa.parquet.read_metadata(content)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        parts = [group.column(i) for group in groups for i in range(group.num_columns)]
        # A column that repeats one value is small however many rows it has.
        size = sum(max(8 * part.num_values, part.total_uncompressed_size) for part in parts)
        size = max(size, 8 * about.num_rows * about.num_columns)
        texts = {part.path_in_schema for part in parts if part.physical_type == "BYTE_ARRAY"}
        if size <= most and texts:  # a long text may be repeated, too
            short = pa.parquet.ParquetFile(content, read_dictionary=sorted(texts))
            read = short.read(columns, use_threads=False)
            size += sum(_spelt(chunk) for column in read.columns for chunk in column.chunks)
        if size > most:
            raise ValueError(f"{name} would take more than {most} bytes of memory")
        return pa.parquet.ParquetFile(content).read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} is no table that can be read: {one_line(error)}") from error


def _spelt(array) -> int:
    """How many bytes the texts in an array take once each stands where it is used."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if pa.types.is_struct(array.type):
        return sum(map(_spelt, array.flatten()))
    return _spelt(array.values) if pa.types.is_nested(array.type) else 0


def printable(text: object) -> str:
    """On one line, without what a terminal would obey: a file's name may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
