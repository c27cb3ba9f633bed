"""Reading files that somebody else may have made, and telling their words on one line."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def read_json(path: Path) -> object:
    """Raises OSError, or ValueError with the file's name."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Raises ValueError with the file's name."""
    try:
        return pq.ParquetFile(path).read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no table that can be read: {one_line(error)}") from error


def printable(text: object) -> str:
    """On one line, without what a terminal would obey: a file's name may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
