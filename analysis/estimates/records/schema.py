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
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    about = [{key: row[key] for key in ("unit", "description")} for row in rows]
    fields = [pa.field(row["name"], _TYPES[row["type"]]) for row in rows]
    return pa.schema([f.with_metadata(a) for f, a in zip(fields, about, strict=True)])


SCHEMA = _schema()
