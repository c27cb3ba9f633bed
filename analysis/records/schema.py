"""The columns of runs.parquet, in columns.csv beside this.

Type, unit and description of each are kept in the field metadata.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "real": pa.float64(),
    "boolean": pa.bool_(),
    "reals": pa.list_(pa.float64()),
}


def _schema() -> pa.Schema:
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as rows:
        return pa.schema(
            pa.field(
                row["name"],
                _TYPES[row["type"]],
                metadata={"unit": row["unit"], "description": row["description"]},
            )
            for row in csv.DictReader(rows)
        )


SCHEMA = _schema()


def write(table: pa.Table, output: Path, only_parquet: Sequence[str] = ()) -> None:
    """Write parquet (zstd), and beside it a CSV without some columns, each atomically."""
    output.parent.mkdir(parents=True, exist_ok=True)
    plain = table.drop_columns(list(only_parquet))
    for path, write_to in (
        (output, lambda p: pa.parquet.write_table(table, p, compression="zstd")),
        (output.with_suffix(".csv"), lambda p: pa.csv.write_csv(plain, p)),
    ):
        partial = path.with_name(path.name + ".partial")
        write_to(partial)
        partial.replace(path)
