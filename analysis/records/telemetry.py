"""The cells' gpu.parquet files → one file: what the GPU did over time, in every cell of a study.

python -m analysis.records.telemetry --study smoke --output telemetry.parquet CELL/run.json ...

Columns: analysis.records.schema. A study's readings do not fit into memory: files are read one
after the other, and written as row groups of a few cells each. To open so many takes longest, so
what an earlier output holds of files that are still the same is taken from there.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analysis import code
from analysis.records.attempts import select_attempts
from analysis.records.records import (
    Problems,
    add_input_arguments,
    input_paths,
    note_left_out,
    of_study,
    one_line,
    read_records,
)
from analysis.records.schema import TELEMETRY

FILE = "gpu.parquet"
TIME = "t_ns"  # its time: since the cell's first window opened, as in TELEMETRY, but in ns
ROWS = 2**17  # of a row group; all columns of one take some 20 MB
ORIGIN = b"origin"  # metadata of the output: whose rows it holds, and what made them
Found = tuple[dict, pa.Table]  # a record and its readings


def readings(record: dict) -> pa.Table:
    """The rows of a cell's gpu.parquet in the columns of TELEMETRY, null where the file has none.

    Raises OSError, KeyError or pa.ArrowException where it cannot be read as such a file.
    """
    with pa.parquet.ParquetFile(record["folder"] / FILE) as file:
        there = set(file.schema_arrow.names)
        wanted = [TIME, *(name for name in TELEMETRY.names if name in there)]
        found = file.read(wanted, use_threads=False)  # a small file is read before they start
    rows = len(found)
    own = {
        "cell": _name(record, rows),
        "attempt": pa.array(np.full(rows, record["cell"]["attempt"], np.int16)),
        "t": pa.array(found[TIME].to_numpy() / 1e9),
        "entity": found["entity"],
        "phase": found["phase"],
    }
    columns = []
    for field in TELEMETRY:
        if field.name in own:
            column = own[field.name]
        elif field.name in there:
            column = found[field.name]
        else:
            column = pa.nulls(rows, field.type)
        # Unsafe: a narrower type may round.
        columns.append(column if column.type == field.type else column.cast(field.type, safe=False))
    return pa.Table.from_arrays(columns, schema=TELEMETRY)


class Earlier:
    """An earlier output: the readings in it of files that are still the same."""

    def __init__(self, output: Path):
        self._attempts: dict[str, list] = {}  # → SHA-256, first row, rows
        self._group, self._table = None, None
        with suppress(OSError, KeyError, TypeError, ValueError, pa.ArrowException):
            self._file = pa.parquet.ParquetFile(output)
            groups = range(self._file.num_row_groups)
            sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
            self._firsts = [0, *accumulate(sizes)]
            origin = json.loads(self._file.metadata.metadata[ORIGIN])
            if origin["code"] == code.digest():
                self._attempts = origin["attempts"]

    def readings(self, record: dict) -> pa.Table | None:
        """As `readings`; None where that has to be asked."""
        file = record["files"][FILE]
        digest, start, rows = self._attempts.get(_attempt(record), (None, 0, 0))
        if digest is None or digest != file.get("sha256"):
            return None
        if (record["folder"] / FILE).stat().st_size != file["bytes"]:
            return None
        try:
            own = self._rows(start, start + rows)
        except (OSError, ValueError, pa.ArrowException):  # damaged since: the cell's file is not
            return None
        # With the names of the group's other cells left behind.
        return own.set_column(0, TELEMETRY.field("cell"), _name(record, rows))

    def _rows(self, start: int, end: int) -> pa.Table:
        found = [TELEMETRY.empty_table()]
        while start < end:
            group = bisect_right(self._firsts, start) - 1
            found.append(self._read(group).slice(start - self._firsts[group], end - start))
            start += len(found[-1])
        return pa.concat_tables(found)

    def _read(self, group: int) -> pa.Table:
        if group != self._group:  # cells come in the order in which they were written
            self._group, self._table = group, self._file.read_row_group(group)
        return self._table


def _attempt(record: dict) -> str:
    return f"{record['cell']['id']}/a{record['cell']['attempt']}"


def _name(record: dict, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [record["cell"]["id"]])


def tables(records: list[dict], problems: Problems, earlier: Earlier) -> Iterator[Found]:
    """The readings of each record that has some; what cannot be read is added to `problems`."""
    for record in records:
        if FILE not in (record.get("files") or {}):
            continue
        try:
            known = earlier.readings(record)
            yield record, readings(record) if known is None else known
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            problems.append((str(record["folder"] / FILE), one_line(error)))


def write(output: Path, found: Iterator[Found]) -> None:
    """Write the tables one after the other (zstd), as a file that is there whole or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    with pa.parquet.ParquetWriter(
        partial, TELEMETRY, compression="zstd", use_dictionary=["cell", "entity", "phase"]
    ) as writer:
        waiting, rows, attempts, written = [], 0, {}, 0
        for record, table in found:
            digest = record["files"][FILE].get("sha256")
            attempts[_attempt(record)] = (digest, written, len(table))
            written += len(table)
            waiting.append(table)
            rows += len(table)
            if rows >= ROWS:
                _flush(writer, waiting)
                waiting, rows = [], 0
        if rows:
            _flush(writer, waiting)
        origin = json.dumps({"code": code.digest(), "attempts": attempts})
        writer.add_key_value_metadata({ORIGIN: origin.encode()})
    partial.replace(output)


def _flush(writer: pa.parquet.ParquetWriter, waiting: list[pa.Table]) -> None:
    writer.write_table(pa.concat_tables(waiting).unify_dictionaries(), row_group_size=ROWS)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.records.telemetry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--study", required=True)
    parser.add_argument("--output", required=True, type=Path, metavar="TELEMETRY.parquet")
    add_input_arguments(parser)
    arguments = parser.parse_args(argv)
    found, problems = read_records(input_paths(arguments), ("files",))
    records, foreign = of_study(found, arguments.study)
    current = [record for record, is_current in select_attempts(records) if is_current]
    current.sort(key=lambda record: record["cell"]["id"])
    problems += foreign
    write(arguments.output, tables(current, problems, Earlier(arguments.output)))
    note_left_out(arguments.output, problems)
    return 0


if __name__ == "__main__":
    sys.exit(main())
