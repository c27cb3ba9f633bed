"""Reading and writing files, and telling on one line what somebody else may have put into them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from workflow.collocation.spec.regular import open_regular
from workflow.collocation.spec.regular import read_json as read_json


def require(path: Path) -> None:
    """Raises FileNotFoundError where a study lacks a table that is made of its records."""
    if not path.exists():
        if path.parent.is_dir():
            raise FileNotFoundError(f"{path}: 'make figures STUDY={path.parent.name}' makes it")
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
    """Where to write a file, so that readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    yield partial
    partial.replace(path)


def write_table(table: pa.Table, output: Path, only_parquet: Sequence[str] = ()) -> None:
    """Write parquet (zstd), and beside it a CSV without some columns."""
    with whole(output) as path:
        pa.parquet.write_table(table, path, compression="zstd")
    with whole(output.with_suffix(".csv")) as path:
        pa.csv.write_csv(table.drop_columns(list(only_parquet)), path)


def update(path: Path, text: str) -> None:
    """Write a file only if its content changes: what depends on it is then not made anew."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with whole(path) as partial:
            partial.write_text(text, encoding="utf-8")


def printable(text: object) -> str:
    """On one line, without what a terminal would obey: a file's name may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))
