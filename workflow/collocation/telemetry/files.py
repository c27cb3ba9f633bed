"""gpu.parquet, member.parquet, host.parquet: what the sampler saw over time, as it saw it.

Wide: a row a time (and entity, or member), a typed column a metric, null where missing. Columns
that are null throughout stay; a table without rows is not written. A column's metadata hold its
unit, kind and source.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import arrow, dictionary
from workflow.collocation.record.series import Series
from workflow.collocation.record.values import File, Window
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.metrics import HOST_METRICS, MEMBER_METRICS, METRICS, Metric


def write(folder: Path, lines: Lines, windows: list[Window]) -> dict[str, File]:
    """Write the tables that have rows; gives their names with size and hash.

    Times are ns since the first window's start, or since the first row where there is no window.
    """
    about = {
        "gpu": (lines.gpu, METRICS),
        "member": (lines.members, MEMBER_METRICS),
        "host": (lines.host, HOST_METRICS),
    }
    there = {name: found for name, found in about.items() if found[0]}
    origin = windows[0].start_ns if windows else min(r[0]["t"] for r, _ in there.values())
    # Nothing is written before all could be made.
    tables = {name: _table(name, *found, lines, origin) for name, found in there.items()}
    files = {}
    for name, table in tables.items():
        path = folder / f"{name}.parquet"
        pq.write_table(
            table,
            path,
            compression="zstd",
            use_dictionary=[n for n in ("phase", "entity", "member") if n in table.schema.names],
            write_statistics=False,  # a third of so short a file would say what is in it
            column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
        )
        files[path.name] = File.of(path)
    return files


def _table(name: str, rows: list[dict], metrics: tuple[Metric, ...], lines: Lines, origin_ns: int):
    series = Series.of_rows(rows, [metric.name for metric in metrics])
    began = np.searchsorted([t for t, _ in lines.phases], series.t, side="right") - 1
    phases = [lines.phases[i][1] if i >= 0 else None for i in began]
    columns = {"t_ns": arrow(series.t - origin_ns, pa.int64()), "phase": dictionary(phases)}
    if name == "gpu":
        columns["entity"] = dictionary([row["e"] for row in rows])
    elif name == "member":
        columns["member"] = arrow(np.array([row["m"] for row in rows]), pa.int16())
    fields = [pa.field(label, column.type) for label, column in columns.items()]
    fields[0] = pa.field(
        "t_ns", pa.int64(), nullable=False, metadata={"unit": "ns", "source": "monotonic clock"}
    )
    for metric in metrics:
        about = {"unit": metric.unit, "kind": metric.kind, "source": _source(name, metric, lines)}
        fields.append(pa.field(metric.name, _type(metric), metadata=about))
        columns[metric.name] = arrow(series.columns[metric.name], _type(metric))
    schema = pa.schema(fields, metadata={"origin_ns": str(origin_ns)})
    return pa.Table.from_arrays(list(columns.values()), schema=schema)


def _source(table: str, metric: Metric, lines: Lines) -> str:
    if table == "gpu" and metric.kind == "rate":
        return (lines.head or {}).get("source") or "nvml"
    return "nvml" if table == "gpu" or metric.name == "gpu_memory" else "psutil"


def _type(metric: Metric) -> pa.DataType:
    if metric.unit in ("B", "bitmask"):
        return pa.int64()
    return pa.float64() if metric.kind == "counter" else pa.float32()
