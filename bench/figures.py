"""`make bench BENCH=figures`: time that figures, tables, claims and explorer of a long study take.

The cells of a study (paper) are planned as ever. Instead of measuring them, plausible run.json,
gpu.parquet and steps.parquet files are synthesised in a temporary folder: they stand for the amount
of data, say nothing of any GPU, and are gone at the end. Then Snakemake draws the study there: all
anew, with nothing to do, and after one cell was measured again. Printed are wall and CPU seconds of
each command that it started; none passes or fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.merging import noise, schema
from workflow.collocation import steps
from workflow.collocation.plan import Cell, expand
from workflow.collocation.record import File, Record
from workflow.collocation.settings import load_study, load_workloads
from workflow.collocation.study import CONFIG, ROOT
from workflow.collocation.telemetry.vocabulary import METRICS

GPU, HZ = "GPU-bench", 10.0
BEFORE_S, AFTER_S = 12.0, 1.0  # of telemetry, around the windows
STEPS_PER_S = 40.0  # in steps.parquet
MEMORY = 80 * 10**9
# Any Python process of the run notes at its end what it was, its wall and CPU seconds.
NOTE = """
import atexit, json, os, sys, time
began = time.monotonic()
def note():
    t = os.times()
    spent = [t.user + t.system, t.children_user + t.children_system]
    with open(os.environ["BENCH_NOTES"], "a") as notes:
        notes.write(json.dumps([sys.orig_argv, time.monotonic() - began, *spent]) + "\\n")
atexit.register(note)
"""


def gain(cell: Cell, random: np.random.Generator) -> float:
    """Aggregate rate over one job alone: more under MPS than under MIG, least under naive."""
    power = {"naive": 0.06, "mps": 0.45, "mig": 0.38}[cell.method.split("_")[0]]
    share = 0.6 if cell.method == "mig_4g" else 1.0
    return share * cell.n**power * random.lognormal(0, 0.01)


def windows_of(cell: Cell) -> list[dict]:
    """The cell's windows, one after the other, as a record has them."""
    kind, seconds = cell.spec["measure"]["kind"], cell.spec["measure"].get("window_s", 40.0)
    names = ("before", "after") if kind == "departure" else (kind,)
    return [
        {
            "name": name,
            "start_ns": round(i * seconds * 1e9),
            "end_ns": round((i + 1) * seconds * 1e9),
            "seconds": seconds,
        }
        for i, name in enumerate(names)
    ]


def entities_of(cell: Cell) -> list[str]:
    """The card, and under MIG an instance for each member."""
    return ["gpu", *(f"gi:{i + 1}" for i in range(cell.n) if cell.method.startswith("mig"))]


def member_of(
    cell: Cell, index: int, windows: list[dict], rate: float, random: np.random.Generator
) -> dict:
    """A member of a record; `rate` in samples/s."""
    spec, step_ms = cell.spec["members"][index], 1e3 * cell.spec["members"][index]["batch_size"]
    step_ms /= rate
    leaves = index == cell.spec["measure"].get("departs")
    samples = 50_000
    epochs = {
        "samples": samples,
        "train_s": samples / rate,
        "validation_s": samples / rate / 9,
        "accuracy": 0.5,
        "validation_loss": 1.5,
    }
    mig = cell.method.startswith("mig")
    return {
        "member": index,
        "workload": spec["workload"],
        "status": "departed" if leaves else "completed",
        "cores": [2 * index, 2 * index + 1],
        "threads": 2,
        "parameters": 10**7,
        "parameter_bytes": 4 * 10**7,
        "resident_bytes": 10**8,
        "memory_peak_allocated": 4 * 10**9,
        "memory_peak_reserved": 5 * 10**9,
        "device_uuid": f"MIG-bench-{index}" if mig else GPU,
        "sm_count": 16 if mig else 132,
        "input_share": 0.02,
        "windows": {
            window["name"]: {
                "steps": 100,
                "samples_per_s": rate,
                "step_ms_p50": step_ms,
                "step_ms_p95": 1.2 * step_ms,
                "step_ms_p99": 1.6 * step_ms,
                "drift": random.normal(0, 0.002),
            }
            for window in windows
            if not (leaves and window["name"] == "after")
        },
        "epochs": [epochs] * cell.spec["measure"].get("epochs", 0),
        "loss": {
            "step": list(range(100)),
            "value": np.linspace(7, 5, 100).round(6).tolist(),
        },
    }


def telemetry_of(cell: Cell, windows: list[dict], random: np.random.Generator) -> dict:
    """What a record says of the card."""
    watts = 250 + 60 * (1 - 1 / cell.n) + random.normal(0, 3)
    busy = 0.95 - 0.4 / cell.n
    card = {"gract": busy, "smact": 0.7 * busy, "smocc": 0.3 * busy, "tenso": 0.1, "drama": 0.2}
    card |= {"fp32": 0.2, "memory_used": 5e9 * cell.n, "temperature": 55.0, "sm_clock": 1700.0}
    used = {"cpu": 1.5, "rss": 2e9, "read": 0.0, "write": 10.0, "gpu_memory": 5e9}
    entities = entities_of(cell)
    own = [entities[(i + 1) % len(entities)] for i in range(cell.n)]
    return {
        "status": "complete",
        "source": "gpm",
        "hz": HZ,
        "idle": {"power": 90.0, "seconds": 2.0},
        "windows": {
            window["name"]: {
                "seconds": window["seconds"],
                "entities": dict.fromkeys(entities, card),
                "series": dict.fromkeys(entities, card),
                "energy": {
                    "joules": watts * window["seconds"],
                    "seconds": window["seconds"],
                    "mean_power": watts,
                    "idle_joules": 90.0 * window["seconds"],
                    "above_idle_joules": (watts - 90.0) * window["seconds"],
                    "integrated_joules": watts * window["seconds"] + 1,
                },
                "members": {str(i): used | {"entity": where} for i, where in enumerate(own)},
                "host": {"cpu_busy": 3.0},
                "whole_card": card | {"sm_count": 132} if len(entities) > 1 else {},
            }
            for window in windows
        },
    }


def record_of(cell: Cell, attempt: int, random: np.random.Generator) -> dict:
    """A completed cell's run.json."""
    windows, total = windows_of(cell), gain(cell, random)
    rates = [3e5 / len(m["workload"]) ** 2 * total / cell.n for m in cell.spec["members"]]
    name = {key: getattr(cell, key) for key in ("id", "scenario", "arm", "method", "replicate")}
    datasets = sorted({member["dataset"] for member in cell.spec["members"]})
    return {
        "study": "paper",
        "cell": name | {"attempt": attempt},
        "spec": cell.spec,
        "status": "completed",
        "method": {"name": cell.method, "verified": True},
        "gpu": {
            "uuid": GPU,
            "name": "bench, no GPU",
            "memory_bytes": MEMORY,
            "sm_count": 132,
            "driver": "0",
        },
        "windows": windows,
        "members": [
            member_of(cell, i, windows, rate * random.lognormal(0, 0.005), random)
            for i, rate in enumerate(rates)
        ],
        "data": [
            {"dataset": dataset, "source": "synthetic", "nominal_train_size": 50_000}
            for dataset in datasets
        ],
        "telemetry": telemetry_of(cell, windows, random),
        "host": {"cpu": "bench", "cores": 16},
        "provenance": {"digest": "bench", "machine": "bench", "sitting": "bench"},
        "timing": {"total_s": 40.0},
        "files": {},
    }


def write_gpu(path: Path, cell: Cell, seconds: float, kinds: pa.Schema, random) -> None:
    """A gpu.parquet: noise at HZ from before the first window until after the last."""
    rows = round((BEFORE_S + seconds + AFTER_S) * HZ)
    times = np.round((np.arange(rows) / HZ - BEFORE_S) * 1e9)
    names = ["idle", "build", "warm", "window", "stop"]
    phase = np.searchsorted([-BEFORE_S + 2, -6, 0, seconds], times / 1e9, side="right")
    entities = entities_of(cell)
    columns = {
        "t_ns": np.repeat(times, len(entities)),
        "phase": pa.DictionaryArray.from_arrays(
            np.repeat(phase, len(entities)).astype(np.int32), names
        ),
        "entity": pa.DictionaryArray.from_arrays(
            np.tile(np.arange(len(entities), dtype=np.int32), rows), entities
        ),
    } | {metric.name: noise(metric, rows * len(entities), HZ, random) for metric in METRICS}
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column.astype(kind.to_pandas_dtype()))
        for column, kind in ((columns[field.name], field.type) for field in kinds)
    ]
    pq.write_table(pa.table(arrays, schema=kinds), path, compression="zstd")


def write_steps(path: Path, record: dict, random: np.random.Generator) -> None:
    """A steps.parquet: STEPS_PER_S of each member, over all windows."""
    count = round(record["windows"][-1]["end_ns"] / 1e9 * STEPS_PER_S)
    arrays = {
        member["member"]: {
            "end_ns": np.cumsum(random.normal(1e9 / STEPS_PER_S, 1e6, count)).astype(np.int64),
            "first_step": 0,
            "loss_step": np.arange(0, count, 10),
            "loss": np.full(len(range(0, count, 10)), 5.0),
        }
        for member in record["members"]
    }
    steps.write(path, arrays, 0)


def measure(cells: Path, cell: Cell, attempt: int, kinds: pa.Schema) -> None:
    """Synthesise an attempt at a cell: its folder with all that analysis reads."""
    seed = [attempt, *cell.id.encode()]
    random = np.random.default_rng(seed)
    record = record_of(cell, attempt, random)
    folder = cells / cell.id / f"a{attempt}"
    folder.mkdir(parents=True)
    gpu = folder / "gpu.parquet"
    write_gpu(gpu, cell, record["windows"][-1]["end_ns"] / 1e9, kinds, random)
    record["files"] = {gpu.name: File.of(gpu)}
    write_steps(folder / "steps.parquet", record, random)
    (folder / "run.json").write_text(Record.model_validate(record).model_dump_json())


def draw(folder: Path, study: str, cores: int) -> list[tuple[str, float, float]]:
    """Let Snakemake draw what is in the folder; (command, wall s, CPU s) of all that it started."""
    notes = folder / "notes.jsonl"
    notes.unlink(missing_ok=True)
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(NOTE)
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
    command += ["--directory", folder, "--cores", cores, "--quiet", "all", "--config"]
    command += ["measure=false", "gpu=cpu", f"study={study}", f"results={folder}", "--", "figures"]
    environment = os.environ | {"BENCH_NOTES": str(notes), "PYTHONPATH": str(folder / "site")}
    began = time.monotonic()
    run = subprocess.run([str(part) for part in command], env=environment, capture_output=True)
    wall = time.monotonic() - began
    if run.returncode:
        sys.exit(f"bench: snakemake ended with exit code {run.returncode}\n{run.stderr.decode()}")
    found, all_cpu = [], 0.0
    for line in notes.read_text().splitlines():
        argv, seconds, own, children = json.loads(line)
        name = argv[argv.index("-m") + 1] if "-m" in argv else Path(argv[-1]).name
        if name == "snakemake":  # its children note themselves
            all_cpu = own + children
            found.append((name, seconds, own))
        else:
            found.append((name, seconds, own + children))
    return [*found, ("all", wall, all_cpu)]


def pace() -> float:
    """Seconds that a loop takes: lent cores run now fast, now slow, and figures with them."""
    began, total = time.monotonic(), 0
    for number in range(10_000_000):
        total += number & 7
    return time.monotonic() - began


def report(title: str, spent: list[tuple[str, float, float]]) -> None:
    print(f"\n{title:40}{'wall s':>8}{'CPU s':>8}   (10 M turns of a loop: {pace():.2f} s)")
    for name, wall, cpu in spent:
        print(f"  {name:38}{wall:8.1f}{cpu:8.1f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--study", default="paper", help="paper")
    parser.add_argument("--cores", type=int, default=2, help="of Snakemake (2)")
    parser.add_argument(
        "--again", default=r"/faithful/mps/r1$", help="the cell measured anew: a pattern"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new one, in place of a temporary"
    )
    args = parser.parse_args(argv)
    workloads = load_workloads(CONFIG / "workloads.yaml")
    cells = expand(load_study(CONFIG / "studies", args.study, workloads), workloads)
    changed = max((c for c in cells if re.search(args.again, c.id)), key=lambda cell: cell.n)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).absolute()
        there = folder / args.study / "cells"
        began = time.monotonic()
        folder.mkdir(exist_ok=True)
        kinds = schema(folder)
        for cell in cells:
            measure(there, cell, 1, kinds)
        took = time.monotonic() - began
        print(f"{len(cells)} cells of {args.study}, synthesised in {took:.0f} s", flush=True)
        report("all anew", draw(folder, args.study, args.cores))
        report("nothing to do", draw(folder, args.study, args.cores))
        measure(there, changed, 2, kinds)
        report(f"after {changed.id}", draw(folder, args.study, args.cores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
