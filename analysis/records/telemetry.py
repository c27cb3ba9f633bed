"""The cells' gpu.parquet files → one file: what the GPU did over time, in every cell of a study.

python -m analysis telemetry --study smoke --output telemetry.parquet CELL/run.json ...

Columns: analysis.records.schema. A study's readings do not fit into memory: files are read one
after the other, and each is a row group or more.
"""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analysis.records.read import Attempt, note_left_out, read_study
from analysis.records.schema import TELEMETRY
from analysis.records.untrusted_files import one_line, read_table

FILE = "gpu.parquet"
TIME = "t_ns"  # its time: since the cell's first window opened, as in TELEMETRY, but in ns
ROWS = 2**17  # of a row group; all columns of one take some 20 MB


def readings(attempt: Attempt) -> pa.Table:
    """Rows of a cell's gpu.parquet in the columns of TELEMETRY, null where the file has none."""
    found = read_table(attempt.path.with_name(FILE), [TIME, *TELEMETRY.names])
    cell, rows = attempt.record.cell, len(found)
    columns = {name: found[name] for name in found.schema.names} | {
        "cell": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [cell.id]),
        "attempt": pa.array(np.full(rows, cell.attempt, np.int16)),
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


def run(given: Namespace) -> None:
    """The command: readings of `given.study` → `given.output`, and a note of what was left out."""
    attempts, problems = read_study(given)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    partial = given.output.with_name(given.output.name + ".partial")
    with pa.parquet.ParquetWriter(
        partial, TELEMETRY, compression="zstd", use_dictionary=["cell", "entity", "phase"]
    ) as writer:
        for attempt in sorted(attempts, key=lambda attempt: attempt.record.cell.id):
            if not attempt.current or FILE not in attempt.record.files:
                continue
            try:
                writer.write_table(readings(attempt), row_group_size=ROWS)
            except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
                problems.append((str(attempt.path.with_name(FILE)), one_line(error)))
    partial.replace(given.output)
    note_left_out(given.output, problems)
