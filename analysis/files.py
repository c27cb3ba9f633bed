"""Reads and writes files of results, whole or not at all, and makes texts safe to print."""

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
    """Raises FileNotFoundError, which says what is missing, where a table is not there."""
    if path.exists():
        return
    if path.parent.is_dir():
        raise FileNotFoundError(f"{path}: not made yet; the study was measured, and not drawn")
    raise FileNotFoundError(no_study(path.parent, path.name))


def no_study(folder: Path, name: str) -> str:
    """Says that a folder is no study's, and which folders beside it are: those that hold `name`."""
    studies = sorted(path.parent.name for path in folder.parent.glob(f"*/{name}"))
    hint = f"; there are: {', '.join(studies)}" if studies else ""
    return f"{folder}: no results of a study{hint}"


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a parquet file. Raises ValueError with the file's name."""
    try:
        with open_regular(path) as file:
            return pa.parquet.ParquetFile(file).read(columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no table that can be read: {one_line(error)}") from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives a path to write to, and moves the file or folder from there to `path` at the end.

    So it appears whole or not at all, whatever happens. Raises OSError with the file's name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    _remove(partial)  # a command that was killed may have left it
    try:
        yield partial
        for written in (*partial.rglob("*"), partial):
            _sync(written)
        partial.replace(path)
        with suppress(OSError):  # some file systems cannot sync a folder
            _sync(path.parent)
    except OSError as error:  # that of a full disk does not name the file
        raise OSError(f"{path}: {error}") from error
    finally:
        _remove(partial)


def _sync(path: Path) -> None:
    """Makes the disk hold the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def write_table(table: pa.Table, output: Path, only_parquet: Sequence[str] = ()) -> None:
    """Writes a parquet file (zstd), and beside it a CSV without the columns `only_parquet`."""
    with written_whole(output) as path:
        pa.parquet.write_table(table, path, compression="zstd")
    with written_whole(output.with_suffix(".csv")) as path:
        pa.csv.write_csv(table.drop_columns(list(only_parquet)), path)


def write_if_changed(path: Path, text: str) -> None:
    """Writes a file only if its content changes, so that what depends on it is not made anew."""
    if not path.is_file() or path.read_bytes() != text.encode():
        with written_whole(path) as partial:
            partial.write_bytes(text.encode())


def printable(text: object) -> str:
    """Escapes what a terminal would obey: the name of a file may contain anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    """Puts a text on one line, and escapes what a terminal would obey."""
    return printable(" ".join(str(text).split()))
