"""The cells' gpu.parquet files → one file: what the GPU did over time, in every cell of a study.

python -m analysis telemetry --study smoke --output telemetry.parquet CELL/run.json ...

Columns: analysis.records.schema. A study's readings do not fit into memory: files are read one
after the other, and each is a row group or more.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analysis.records.attempts import select_attempts
from analysis.records.records import (
    Problems,
    input_paths,
    note_left_out,
    of_study,
    one_line,
    read_records,
)
from analysis.records.safe import read_table
from analysis.records.schema import TELEMETRY

FILE = "gpu.parquet"
TIME = "t_ns"  # its time: since the cell's first window opened, as in TELEMETRY, but in ns
ROWS = 2**17  # of a row group; all columns of one take some 20 MB


def readings(record: dict) -> pa.Table:
    """The rows of a cell's gpu.parquet in the columns of TELEMETRY, null where the file has none.

    Raises OSError, LookupError, ValueError or TypeError where it cannot be read as such a file.
    """
    found = read_table(record["folder"] / FILE, [TIME, *TELEMETRY.names])
    rows = len(found)
    columns = {name: found[name] for name in found.schema.names} | {
        "cell": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [record["cell"]["id"]]),
        "attempt": pa.array(np.full(rows, record["cell"]["attempt"], np.int16)),
        "t": pa.array(found[TIME].to_numpy() / 1e9),
    }
    # Unsafe: a narrower type may round.
    cast = [
        columns[field.name].cast(field.type, safe=False)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in TELEMETRY
    ]
    return pa.Table.from_arrays(cast, schema=TELEMETRY)


def tables(records: list[dict], problems: Problems) -> Iterator[pa.Table]:
    """The readings of each record that has some; what cannot be read is added to `problems`."""
    for record in records:
        if FILE not in (record.get("files") or {}):
            continue
        try:
            yield readings(record)
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            problems.append((str(record["folder"] / FILE), one_line(error)))


def write(output: Path, found: Iterator[pa.Table]) -> None:
    """Write the tables one after the other (zstd), as a file that is there whole or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(output.name + ".partial")
    with pa.parquet.ParquetWriter(
        partial, TELEMETRY, compression="zstd", use_dictionary=["cell", "entity", "phase"]
    ) as writer:
        for table in found:
            writer.write_table(table, row_group_size=ROWS)
    partial.replace(output)


def run(given: Namespace) -> None:
    """The command: readings of `given.study` → `given.output`, and a note of what was left out."""
    found, problems = read_records(input_paths(given), ("files",))
    records, foreign = of_study(found, given.study)
    current = [record for record, is_current in select_attempts(records) if is_current]
    current.sort(key=lambda record: record["cell"]["id"])
    problems += foreign
    write(given.output, tables(current, problems))
    note_left_out(given.output, problems)
