"""gpu.parquet, member.parquet, host.parquet: what the sampler saw over time, as it saw it.

Wide: a row a time (and entity, or member), a typed column a metric, null where missing. Columns
that are null throughout stay; a table without rows is not written. A column's metadata hold its
unit and kind.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column, text_column
from workflow.collocation.record.series import Series
from workflow.collocation.record.values import FileDigest, Window
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.metrics import HOST_METRICS, MEMBER_METRICS, METRICS, Metric


def write(folder: Path, lines: Lines, windows: list[Window]) -> dict[str, FileDigest]:
    """Write the tables that have rows; gives their names with size and hash.

    Times are ns since the first window's start, or since the first row where there is no window.
    """
    about = {"gpu": (lines.gpu, METRICS), "member": (lines.members, MEMBER_METRICS)}
    about["host"] = lines.host, HOST_METRICS
    there = {name: found for name, found in about.items() if found[0]}
    origin = windows[0].start_ns if windows else min(r[0]["t"] for r, _ in there.values())
    # Nothing is written before all could be made.
    tables = {name: _table(name, *found, lines.phases, origin) for name, found in there.items()}
    for name, table in tables.items():
        pq.write_table(
            table,
            folder / f"{name}.parquet",
            compression="zstd",
            use_dictionary=[n for n in ("phase", "entity", "member") if n in table.schema.names],
            write_statistics=False,  # a third of so short a file would say what is in it
            column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
        )
    return {f"{name}.parquet": FileDigest.of(folder / f"{name}.parquet") for name in tables}


def _table(name: str, rows: list[dict], metrics: tuple[Metric, ...], phases: list, origin_ns: int):
    series = Series.of_rows(rows, [metric.name for metric in metrics])
    began = np.searchsorted([t for t, _ in phases], series.t, side="right") - 1
    columns = {
        "t_ns": numeric_column(series.t - origin_ns, pa.int64()),
        "phase": text_column([phases[i][1] if i >= 0 else None for i in began]),
    }
    if name == "gpu":
        columns["entity"] = text_column([row["e"] for row in rows])
    elif name == "member":
        columns["member"] = numeric_column(np.array([row["m"] for row in rows]), pa.int16())
    about = {"t_ns": {"unit": "ns"}}
    for metric in metrics:
        about[metric.name] = {"unit": metric.unit, "kind": metric.kind}
        columns[metric.name] = numeric_column(series.columns[metric.name], _type(metric))
    fields = [pa.field(n, column.type, metadata=about.get(n)) for n, column in columns.items()]
    schema = pa.schema(fields, metadata={"origin_ns": str(origin_ns)})
    return pa.Table.from_arrays(list(columns.values()), schema=schema)


def _type(metric: Metric) -> pa.DataType:
    if metric.unit in ("B", "bitmask"):
        return pa.int64()
    return pa.float64() if metric.kind == "counter" else pa.float32()
