"""gpu.parquet, member.parquet, host.parquet: the sampler's readings over time, as it took them.

A row for each time (and entity, or member), a typed column for each metric, null where missing.
Columns that are null throughout stay; a table without rows is not written. A column's metadata hold
its unit and kind.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column, text_column
from workflow.collocation.record.series import Series
from workflow.collocation.record.values import FileDigest, Window
from workflow.collocation.telemetry.base import Metric
from workflow.collocation.telemetry.host import HOST_METRICS, MEMBER_METRICS
from workflow.collocation.telemetry.lines import SamplerOutput
from workflow.collocation.telemetry.sources import GPU_METRICS


def write_tables(
    folder: Path, output: SamplerOutput, windows: list[Window]
) -> dict[str, FileDigest]:
    """Write the tables that have rows; returns size and hash by file name.

    Times are ns since the first window's start, or since the first row where there is no window.
    """
    groups = {
        "gpu": (output.gpu, GPU_METRICS),
        "member": (output.members, MEMBER_METRICS),
        "host": (output.host, HOST_METRICS),
    }
    groups = {name: (rows, metrics) for name, (rows, metrics) in groups.items() if rows}
    first_row_ns = min((rows[0]["t"] for rows, _ in groups.values()), default=0)
    origin_ns = windows[0].start_ns if windows else first_row_ns
    # Nothing is written before all tables could be made.
    tables = {
        name: _table(rows, metrics, output.phases, origin_ns)
        for name, (rows, metrics) in groups.items()
    }
    for name, table in tables.items():
        pq.write_table(
            table,
            folder / f"{name}.parquet",
            compression="zstd",
            use_dictionary=[n for n in ("phase", "entity", "member") if n in table.schema.names],
            write_statistics=False,  # they would be a third of so short a file
            column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
        )
    return {f"{name}.parquet": FileDigest.of(folder / f"{name}.parquet") for name in tables}


def _table(
    rows: list[dict], metrics: tuple[Metric, ...], phases: list[tuple[int, str]], origin_ns: int
) -> pa.Table:
    series = Series.of_rows(rows, [metric.name for metric in metrics])
    starts = [start_ns for start_ns, _ in phases]
    phase_of_row = np.searchsorted(starts, series.t, side="right") - 1
    names = [phases[index][1] if index >= 0 else None for index in phase_of_row]
    columns = {
        "t_ns": numeric_column(series.t - origin_ns, pa.int64()),
        "phase": text_column(names),
    }
    if "e" in rows[0]:
        columns["entity"] = text_column([row["e"] for row in rows])
    elif "m" in rows[0]:
        columns["member"] = numeric_column(np.array([row["m"] for row in rows]), pa.int16())
    metadata = {"t_ns": {"unit": "ns"}}
    for metric in metrics:
        metadata[metric.name] = {"unit": metric.unit, "kind": metric.kind}
        columns[metric.name] = numeric_column(series.columns[metric.name], _type(metric))
    fields = [
        pa.field(name, column.type, metadata=metadata.get(name)) for name, column in columns.items()
    ]
    schema = pa.schema(fields, metadata={"origin_ns": str(origin_ns)})
    return pa.Table.from_arrays(list(columns.values()), schema=schema)


def _type(metric: Metric) -> pa.DataType:
    if metric.unit in ("B", "bitmask"):
        return pa.int64()
    return pa.float64() if metric.kind == "counter" else pa.float32()
