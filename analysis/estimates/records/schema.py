"""The columns of runs.parquet, from columns.csv; units and descriptions are in their metadata."""

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
    fields = []
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            metadata = {"unit": row["unit"], "description": row["description"]}
            fields.append(pa.field(row["name"], _TYPES[row["type"]], metadata=metadata))
    return pa.schema(fields)


SCHEMA = _schema()
