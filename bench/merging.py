"""`make bench BENCH=merging`: time and memory that merging a long study's GPU telemetry takes.

Cells with a gpu.parquet and a run.json each are synthesised in a temporary folder: the columns that
the sampler writes, every metric with noise of its own, so that nothing compresses better than what
a GPU gives. Then `python -m analysis.records.telemetry` merges them on as many cores as asked for.
The figures are printed; none passes or fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.telemetry import files
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.vocabulary import METRICS, Metric

MEMBERS = 7
# Pinned before libraries count the cores. VmHWM is its own peak; rusage would count its parent's.
MERGE = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
from analysis.records.telemetry import main
code = main(sys.argv[2:])
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
sys.exit(code)
"""


def schema(folder: Path) -> pa.Schema:
    """The columns of a gpu.parquet as the sampler's side writes it."""
    row = {"t": 0, "e": "gpu", "v": {}}
    files.write(folder, Lines(gpu=[row]), [])
    return pq.read_schema(folder / "gpu.parquet")


def noise(metric: Metric, rows: int, hz: float, random: np.random.Generator) -> np.ndarray:
    """A metric over time in its unit: what a GPU in use gives, and as fine as it gives it."""
    if metric.kind == "counter":
        return np.round(np.cumsum(random.normal(300, 20, rows) / hz), 3)
    if metric.unit == "bitmask":
        return 4 * (random.random(rows) < 0.1)
    level, fine = {
        "1": (0.6, None),
        "B/s": (2e9, None),
        "1/s": (400, None),
        "B": (3e10, 2**16),
        "W": (300, 1e-3),
        "C": (60, 1),
        "MHz": (1700, 15),
    }[metric.unit]
    values = random.normal(level, level / 20, rows)
    return np.round(values / fine) * fine if fine else values


def cell(folder: Path, number: int, seconds: float, hz: float, kinds: pa.Schema) -> Path:
    """Synthesise a finished cell; its run.json."""
    random = np.random.default_rng(number)
    rows = round(seconds * hz)
    columns = {
        "t_ns": np.round((np.arange(rows) / hz + random.normal(0, 2e-4, rows)) * 1e9),
        "phase": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["window"]),
        "entity": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["gpu"]),
    } | {metric.name: noise(metric, rows, hz, random) for metric in METRICS}
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column.astype(kind.to_pandas_dtype()))
        for column, kind in ((columns[field.name], field.type) for field in kinds)
    ]
    path = folder / f"{MEMBERS}x_bench" / "faithful" / "mps" / f"r{number}" / "a1" / "run.json"
    path.parent.mkdir(parents=True)
    pq.write_table(
        pa.table(arrays, schema=kinds),
        path.with_name("gpu.parquet"),
        compression="zstd",
        use_dictionary=["phase", "entity"],
        column_encoding={"t_ns": "DELTA_BINARY_PACKED"},
    )
    losses = random.random((MEMBERS, 100)).round(6).tolist()
    name = {"scenario": f"{MEMBERS}x_bench", "arm": "faithful", "method": "mps"}
    record = {
        "schema_version": 1,
        "study": "bench",
        "cell": name
        | {"id": f"{MEMBERS}x_bench/faithful/mps/r{number}", "replicate": number, "attempt": 1},
        "spec": {"members": [{"workload": "bench"}] * MEMBERS},
        "status": "completed",
        "gpu": {"uuid": "GPU-bench"},
        "members": [{"member": i, "loss": {"value": losses[i]}} for i in range(MEMBERS)],
        "files": {"gpu.parquet": {}},
    }
    path.write_text(json.dumps(record))
    return path


def merge(listed: Path, output: Path, cores: int) -> tuple[float, float, int]:
    """Run the merge as a study does; its seconds, its seconds of CPU and its peak memory (B)."""
    arguments = ["--study", "bench", "--list", listed, "--output", output]
    began, spent = time.monotonic(), cpu_of_children()
    run = subprocess.run(
        [sys.executable, "-c", MERGE, str(cores), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    took, spent = time.monotonic() - began, cpu_of_children() - spent
    if run.returncode:
        sys.exit(f"bench: analysis.records.telemetry ended with exit code {run.returncode}")
    return took, spent, int(run.stdout) * 1024


def cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench merging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", type=int, default=1000, help="1000")
    parser.add_argument("--seconds", type=float, default=300.0, help="of telemetry in each (300)")
    parser.add_argument("--hz", type=float, default=10.0, help="readings a second (10)")
    parser.add_argument("--cores", type=int, default=2, help="for merging (2)")
    args = parser.parse_args(argv)
    cores = min(args.cores, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kinds = schema(folder)
        began = time.monotonic()
        paths = [
            cell(folder / "cells", number, args.seconds, args.hz, kinds)
            for number in range(1, args.cells + 1)
        ]
        size = sum(path.with_name("gpu.parquet").stat().st_size for path in paths)
        print(
            f"{args.cells} cells of {args.seconds:.0f} s at {args.hz:.0f} Hz, {len(METRICS)} "
            f"metrics: {size / 1e6:,.0f} MB, synthesised in {time.monotonic() - began:.0f} s",
            flush=True,
        )
        listed, output = folder / "runs.txt", folder / "telemetry.parquet"
        listed.write_text("".join(f"{path}\n" for path in paths))
        took, spent, peak = merge(listed, output, cores)
        rows = pq.read_metadata(output).num_rows
        print(
            f"merged on {cores} cores in {took:.1f} s ({spent:.1f} s of CPU), "
            f"peak {peak / 1e6:,.0f} MB RSS: "
            f"{rows:,} rows, {output.stat().st_size / 1e6:,.0f} MB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
