"""The columns of runs.parquet, in columns.csv beside this.

Type, unit and description of each are kept in the field metadata.
"""

import csv
from pathlib import Path

import pyarrow as pa

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
