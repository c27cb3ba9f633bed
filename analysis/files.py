"""Reading and writing files, and telling on one line what somebody else may have put into them."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from workflow.collocation.study.regular_files import open_regular


def require(path: Path) -> None:
    """Raises FileNotFoundError where a study lacks a table that is made of its records."""
    if not path.exists():
        if path.parent.is_dir():
            raise FileNotFoundError(f"{path}: not made yet; the study was measured, and not drawn")
        raise FileNotFoundError(no_study(path.parent, path.name))


def no_study(folder: Path, holds: str) -> str:
    """That a folder is none of a study, and which are beside it: those that hold this."""
    others = sorted(other.parent.name for other in folder.parent.glob(f"*/{holds}"))
    known = f"; there are: {', '.join(others)}" * bool(others)
    return f"{folder}: no results of a study{known}"


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Raises ValueError with the file's name."""
    try:
        with open_regular(path) as file:
            return pa.parquet.ParquetFile(file).read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no table that can be read: {one_line(error)}") from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder that appears whole, or not at all, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    remove(partial)  # of a command that was killed
    try:
        yield partial
        for written in (*partial.rglob("*"), partial):
            _to_disk(written)
        partial.replace(path)
        with suppress(OSError):  # some file systems do it for files alone
            _to_disk(path.parent)
    except OSError as error:  # of a full disk it does not name the file
        raise OSError(f"{path}: {error}") from error
    finally:
        remove(partial)


def _to_disk(path: Path) -> None:
    """Have the disk hold what was written to a file or, of a folder, its names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def write_table(table: pa.Table, output: Path, only_parquet: Sequence[str] = ()) -> None:
    """Write parquet (zstd), and beside it a CSV without some columns."""
    with whole(output) as path:
        pa.parquet.write_table(table, path, compression="zstd")
    with whole(output.with_suffix(".csv")) as path:
        pa.csv.write_csv(table.drop_columns(list(only_parquet)), path)


def update(path: Path, text: str) -> None:
    """Write a file only if its content changes: what depends on it is then not made anew."""
    if not path.is_file() or path.read_bytes() != text.encode():
        with whole(path) as partial:
            partial.write_bytes(text.encode())


def printable(text: object) -> str:
    """On one line, without what a terminal would obey: a file's name may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
