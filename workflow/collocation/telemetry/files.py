"""gpu.parquet, member.parquet, host.parquet: what the sampler saw over time, as it saw it.

Wide: a row a time (and entity, or member), a typed column a metric, null where missing. Columns
that are null throughout stay; a table without rows is not written. A column's metadata hold its
unit, kind and source; vocabulary.py says what it is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.series import Series
from workflow.collocation.telemetry.values import File, Window
from workflow.collocation.telemetry.vocabulary import HOST_METRICS, MEMBER_METRICS, METRICS, Metric


@dataclass(frozen=True)
class Table:
    """rows: of Lines. keys: column → what a row has there: a number, or a text or None."""

    name: str
    rows: list[dict]
    keys: dict[str, Callable[[dict], int | str | None]]
    metrics: tuple[Metric, ...]
    source: Callable[[Metric], str]


def write(folder: Path, lines: Lines, windows: list[Window]) -> dict[str, File]:
    """Write the tables that have rows; gives their names with size and hash.

    Times are ns since the first window's start, or since the first row where there is no window.
    """
    head = lines.head or {}

    def gpu_source(metric: Metric) -> str:
        return (head.get("source") or "nvml") if metric.kind == "rate" else "nvml"

    def member_source(metric: Metric) -> str:
        return "nvml" if metric.name == "gpu_memory" else "/proc"

    tables = (
        Table("gpu", lines.gpu, {"entity": lambda row: row["e"]}, METRICS, gpu_source),
        Table(
            "member",
            lines.members,
            {"member": lambda row: row["m"], "window": lambda row: row.get("w")},
            MEMBER_METRICS,
            member_source,
        ),
        Table("host", lines.host, {}, HOST_METRICS, lambda metric: "psutil"),
    )
    there = [table for table in tables if table.rows]
    starts = [window.start_ns for window in windows[:1]] or [table.rows[0]["t"] for table in there]
    ready = [(table, _arrow(table, min(starts), lines.phases())) for table in there]
    files = {}
    for table, content in ready:  # nothing is written before all could be made
        path = folder / f"{table.name}.parquet"
        pq.write_table(
            content,
            path,
            compression="zstd",
            use_dictionary=["phase", *table.keys],
            write_statistics=False,  # a third of so short a file would say what is in it
            column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
        )
        files[path.name] = File.of(path)
    return files


def _arrow(table: Table, origin_ns: int, changes: list[tuple[int, str]]) -> pa.Table:
    series = Series(table.rows)
    began = np.searchsorted([t for t, _ in changes], series.t, side="right") - 1
    labels = {"phase": [changes[i][1] if i >= 0 else None for i in began]}
    labels |= {name: [of(row) for row in table.rows] for name, of in table.keys.items()}
    unit = {"unit": "ns", "source": "monotonic clock"}
    fields = [pa.field("t_ns", pa.int64(), nullable=False, metadata=unit)]
    columns = [arrow(series.t - origin_ns, pa.int64())]
    for name, values in labels.items():
        numbers = isinstance(values[0], int)
        columns.append(arrow(np.array(values), pa.int16()) if numbers else _labelled(values))
        fields.append(pa.field(name, columns[-1].type))
    for metric in table.metrics:
        kind = _type(metric)
        about = {"unit": metric.unit, "kind": metric.kind, "source": table.source(metric)}
        fields.append(pa.field(metric.name, kind, metadata=about))
        columns.append(arrow(series.column(metric.name), kind))
    schema = pa.schema(fields, metadata={"origin_ns": str(origin_ns)})
    return pa.Table.from_arrays(columns, schema=schema)


def _type(metric: Metric) -> pa.DataType:
    if metric.unit in ("B", "bitmask"):
        return pa.int64()
    return pa.float64() if metric.kind == "counter" else pa.float32()


def _labelled(values: list[str | None]) -> pa.DictionaryArray:
    """A dictionary column; from buffers for the reason that `arrow` gives."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    place = {value: index for index, value in enumerate(known)}
    codes = arrow(np.array([place.get(value, np.nan) for value in values], float), pa.int32())
    return pa.DictionaryArray.from_arrays(codes, _texts(known))


def _texts(values: Iterable[str]) -> pa.StringArray:
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), data)


def arrow(column: np.ndarray, kind: pa.DataType) -> pa.Array:
    """The column with null for NaN; pa.array would have every cell wait until it loaded pandas."""
    missing = np.isnan(column)
    there = np.packbits(~missing, bitorder="little")
    values = np.where(missing, 0, column)
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())  # numpy's, in spite of its name
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(there), pa.py_buffer(values)])
