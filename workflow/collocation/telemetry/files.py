"""gpu.parquet, member.parquet, host.parquet: what the sampler saw over time, as it saw it.

Wide: a row a time (and entity, or member), a typed column a metric, null where missing. Columns
that are null throughout stay; a table without rows is not written. A column's metadata hold its
unit, kind and source; vocabulary.py says what it is.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import arrow, dictionary
from workflow.collocation.record.values import File, Window
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.series import Series
from workflow.collocation.telemetry.vocabulary import HOST_METRICS, MEMBER_METRICS, METRICS, Metric

METRICS_OF = {"gpu": METRICS, "member": MEMBER_METRICS, "host": HOST_METRICS}
# Column → key of a row.
KEYS = {"gpu": {"entity": "e"}, "member": {"member": "m"}, "host": {}}


def write(folder: Path, lines: Lines, windows: list[Window]) -> dict[str, File]:
    """Write the tables that have rows; gives their names with size and hash.

    Times are ns since the first window's start, or since the first row where there is no window.
    """
    rows = {"gpu": lines.gpu, "member": lines.members, "host": lines.host}
    there = {name: found for name, found in rows.items() if found}
    starts = [window.start_ns for window in windows[:1]] or [r[0]["t"] for r in there.values()]
    ready = {name: _table(name, found, lines, min(starts)) for name, found in there.items()}
    files = {}
    for name, table in ready.items():  # nothing is written before all could be made
        path = folder / f"{name}.parquet"
        pq.write_table(
            table,
            path,
            compression="zstd",
            use_dictionary=["phase", *KEYS[name]],
            write_statistics=False,  # a third of so short a file would say what is in it
            column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
        )
        files[path.name] = File.of(path)
    return files


def _table(name: str, rows: list[dict], lines: Lines, origin_ns: int) -> pa.Table:
    series, phases = Series(rows), lines.phases
    began = np.searchsorted([t for t, _ in phases], series.t, side="right") - 1
    labels = {"phase": [phases[i][1] if i >= 0 else None for i in began]}
    labels |= {label: [row.get(key) for row in rows] for label, key in KEYS[name].items()}
    unit = {"unit": "ns", "source": "monotonic clock"}
    fields = [pa.field("t_ns", pa.int64(), nullable=False, metadata=unit)]
    columns = [arrow(series.t - origin_ns, pa.int64())]
    for label, values in labels.items():
        numbers = label == "member"
        columns.append(arrow(np.array(values), pa.int16()) if numbers else dictionary(values))
        fields.append(pa.field(label, columns[-1].type))
    for metric in METRICS_OF[name]:
        about = {"unit": metric.unit, "kind": metric.kind, "source": _source(name, metric, lines)}
        fields.append(pa.field(metric.name, _type(metric), metadata=about))
        columns.append(arrow(series.column(metric.name), _type(metric)))
    schema = pa.schema(fields, metadata={"origin_ns": str(origin_ns)})
    return pa.Table.from_arrays(columns, schema=schema)


def _source(table: str, metric: Metric, lines: Lines) -> str:
    if table == "gpu" and metric.kind == "rate":
        return (lines.head or {}).get("source") or "nvml"
    return "nvml" if table == "gpu" or metric.name == "gpu_memory" else "psutil"


def _type(metric: Metric) -> pa.DataType:
    if metric.unit in ("B", "bitmask"):
        return pa.int64()
    return pa.float64() if metric.kind == "counter" else pa.float32()
