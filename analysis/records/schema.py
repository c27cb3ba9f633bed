"""The columns of runs.parquet and telemetry.parquet, in columns.csv beside this.

Type, unit and description of each are kept in the field metadata.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa

_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "real": pa.float64(),
    "boolean": pa.bool_(),
    "single": pa.float32(),
    "short": pa.int16(),
    "name": pa.dictionary(pa.int32(), pa.string()),
}


def _schema(file: str) -> pa.Schema:
    with Path(__file__).with_name("columns.csv").open(encoding="utf-8", newline="") as found:
        rows = [row for row in csv.DictReader(found) if row["file"] == file]
    return pa.schema(
        [
            pa.field(
                row["name"],
                _TYPES[row["type"]],
                metadata={"unit": row["unit"], "description": row["description"]},
            )
            for row in rows
        ]
    )


SCHEMA, TELEMETRY = _schema("runs"), _schema("telemetry")
