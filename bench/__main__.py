"""`make bench`: the study's members against a bare PyTorch loop, and what the sampler costs them.

In a round every case runs once as the conductor's cell and once as the bare loop: the same number
of processes under the same method, with the same member specs (cores, threads, input, precision).
`--sampler` instead runs one long cell of each case and stops its sampler (SIGSTOP) for two of four
segments, in palindromes, so that what drifts evenly cancels. No rate passes or fails.
`graph-speeds` tells why a CUDA graph has two speeds (bench/graph_speeds.py).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow.parquet as pq
from scipy import stats

from bench.bare_loop import measure
from workflow.collocation import sharing as methods
from workflow.collocation.gpu import cores, find_devices
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.record import step_times
from workflow.collocation.run.task import Task, member_specs
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.spec.grid import Cell, expand
from workflow.collocation.spec.load import load_config, load_workloads
from workflow.collocation.spec.study import CONFIG, Study

CUDA_CASES = {
    f"{method}{n}": ("resnet26_cifar10_b128", "bf16_autograd", method, n)
    for method, n in (("naive", 1), ("naive", 7), ("mps", 7), ("mps", 16))
}
GRAPH = ("resnet26_cifar10_b128", "graph", "naive", 1)
CPU_CASES = {f"naive{n}": ("tiny_resnet_digits_b32", "paper_step", "naive", n) for n in (1, 2)}
SAMPLER = "workflow.collocation.telemetry.sampler"
CORES_FOR = 16  # each member has the cores of a set of so many
ORDER = ("off", "ours", "ours", "off")  # of a block of segments: the sampler stopped, or not
SEGMENT_S, SETTLE_S = 1.5, 0.4  # of a segment, and of it, at its beginning, what does not count


def cell_of(case: tuple, seconds: float) -> Cell:
    """The plan's cell of a case, measured for that long."""
    workload, implementation, method, n = case
    times = {"window_s": seconds, "warmup_s": 1.0, "settle_s": 0.5, "min_steps": 10}
    study = Study(
        description="bench",
        measure={"kind": "window", "autotune": "concurrent", **times},
        cores_for=max(n, CORES_FOR),
        ladders=[
            {"workloads": [workload], "implementations": [implementation], "counts": {n: [method]}}
        ],
    )
    cells = expand(study, load_workloads(CONFIG / "workloads.yaml"))
    return next(cell for cell in cells if cell.n == n and cell.method == method)


def prepare(cell: Cell, data: Path) -> Path:
    """Make the cell's dataset ready; the file that says so."""
    job = cell.spec.members[0].job
    ready = data / "ready" / "bench" / f"{job.dataset}.json"
    command = [sys.executable, "-m", "models.data", "prepare", job.dataset, "--root", data]
    command += ["--ready", ready, "--input-size", job.input_size]
    subprocess.run(list(map(str, command)), check=True)
    return ready


def started(cell: Cell, ready: Path, device, folder: Path) -> subprocess.Popen:
    """The conductor of the cell, in `folder`; its run.json will be there."""
    gpu, output = device.uuid if device else "cpu", folder / "run.json"
    task = Task(study="bench", cell=cell.id, output=output, spec=cell.spec, gpu=gpu, data=[ready])
    task.write(folder / "job.json")
    command = [sys.executable, "-m", "workflow.collocation.run.cell", str(folder / "job.json")]
    return subprocess.Popen(command)


def record_of(conductor: subprocess.Popen, folder: Path) -> dict:
    """What the conductor recorded, once it has ended; ends the bench where that was not well."""
    code, path = conductor.wait(), folder / "run.json"
    record = json.loads(path.read_text("utf-8")) if code == 0 else {"status": f"exit code {code}"}
    if record["status"] != "completed":
        sys.exit(f"bench: the cell ended: {record['status']}: {record.get('reason')}")
    return record


@contextmanager
def entered(cell: Cell, dataset: dict, device, folder: Path) -> Iterator[tuple]:
    """The cell's method, in force, and the specs of its members."""
    sets, _ = cores.plan_conditions(cell.spec.shares(), numa=device.numa_node if device else None)
    key, where = (device.uuid, "cuda") if device else ("cpu", "cpu")
    with (
        device_lock(key, {"study": "bench", "cell": cell.id}, print),
        methods.enter(cell.spec, device, folder) as sharing,
    ):
        environments = [sharing.environment(index) for index in range(cell.n)]
        named = {dataset["dataset"]: dataset}
        yield sharing, member_specs(cell.spec, where, sets, environments, named, folder)


def bare(cell: Cell, ready: Path, device, folder: Path) -> float:
    """Samples/s of the bare loop with the same specs and method, which has to be in force."""
    dataset = json.loads(ready.read_text(encoding="utf-8"))
    with entered(cell, dataset, device, folder) as (sharing, specs):

        def witness(said: list[dict]) -> None:
            names = ("pid", "device_uuid", "sm_count", "memory_free", "sm_source")
            sharing.witness({i: Report(**{n: of[n] for n in names}) for i, of in enumerate(said)})

        return sum(measure(specs, cell.spec.measure.window_s, witness))


def compare(cell: Cell, ready: Path, device, pairs: int) -> None:
    """Both in turns, ours first in every other round, and what a cell costs beside its window."""
    rates, costs = {"ours": [], "bare": []}, []
    for who in ("ours", "bare", "bare", "ours") * (pairs // 2) + ("ours", "bare") * (pairs % 2):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if who == "bare":
                rates[who].append(bare(cell, ready, device, folder))
                continue
            record = record_of(started(cell, ready, device, folder), folder)
            of = [member["windows"]["window"] for member in record["members"]]
            rates[who].append(sum(each["samples_per_s"] for each in of))
            took = record["timing"]
            costs.append(took["total_s"] - took["warm_s"] - took["window_s"])
    ratio = median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True))
    ours, plain = median(rates["ours"]), median(rates["bare"])
    print(f"  ours {ours:,.0f} samples/s, bare {plain:,.0f}, median ratio of pairs {ratio:.3f}")
    print(f"  a cell takes {median(costs):.2f} s beside its warm-up and window", flush=True)


def sampler_cost(cell: Cell, ready: Path, device) -> None:
    """The loss in throughput (%) with its 95 % interval over blocks of segments."""
    segments: list[tuple[str, int, int]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conductor, log = started(cell, ready, device, folder), folder / "log" / "conductor.log"
        while conductor.poll() is None and not (
            log.exists() and "started:" in log.read_text("utf-8")
        ):
            time.sleep(0.05)
        with suppress(psutil.NoSuchProcess):  # the sampler ends before the conductor does
            children = psutil.Process(conductor.pid).children()
            sampler = next(child for child in children if SAMPLER in child.cmdline())
            while sampler.is_running():
                state, began = ORDER[len(segments) % len(ORDER)], time.monotonic_ns()
                sampler.resume() if state == "ours" else sampler.suspend()
                time.sleep(SEGMENT_S)
                segments.append((state, began + int(SETTLE_S * 1e9), time.monotonic_ns()))
        record = record_of(conductor, folder)
        ratios = block_ratios(segments, record, pq.read_table(folder / "steps.parquet"))
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    loss, low, high = 100 * (1 - np.exp(logs.mean() + np.array([0, half, -half])))
    print(f"  loss {loss:.3f} % ({low:.3f} to {high:.3f}), {len(logs)} pairs", flush=True)


def block_ratios(segments: list[tuple[str, int, int]], record: dict, table) -> list[float]:
    """For each block in the window, the rate with the sampler over the rate without.

    Segments: how the sampler was, from when to when (ns).
    """
    (window,), meta = record["windows"], table.schema.metadata
    ends = table["tick"].to_numpy() * int(meta[b"tick_ns"]) + int(meta[b"origin_ns"])
    of = table["member"].to_numpy()
    members = [ends[of == member] for member in np.unique(of)]
    ratios = []
    for at in range(0, len(segments) - len(ORDER) + 1, len(ORDER)):
        block = segments[at : at + len(ORDER)]
        if block[0][1] < window["start_ns"] or block[-1][2] > window["end_ns"]:
            continue
        logs: dict[str, list[float]] = {"off": [], "ours": []}
        for state, start, stop in block:
            steps = sum(step_times.fractional_steps(e[:-1], e[1:], start, stop) for e in members)
            logs[state].append(np.log(steps / (stop - start)))
        ratios.append(float(np.exp(np.mean(logs["ours"]) - np.mean(logs["off"]))))
    return ratios


def graph_speeds(devices: list, rounds: int, output: Path) -> None:
    """The runs of bench.graph_speeds on the first GPU, with random images."""
    from bench.graph_speeds import measure

    cell, (gpu, other, *_) = cell_of(GRAPH, 1.0), [*(each.uuid for each in devices), "-1"]
    dataset = {"dataset": cell.spec.members[0].job.dataset, "path": ""}
    with tempfile.TemporaryDirectory() as name:
        with entered(cell, dataset, devices[0], Path(name)) as (_, [spec]):
            measure(spec, gpu, other, rounds, output)


def main(argv: list[str] | None = None) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench", description=__doc__, formatter_class=layout)
    devices, why = find_devices(load_config({}).gpu)
    device = next(iter(devices), None)
    known = CUDA_CASES if device else CPU_CASES
    add = parser.add_argument
    add("--case", nargs="+", choices=known, default=list(known), help=f"of {', '.join(known)}")
    add("--pairs", type=int, default=3, help="of each case, ours and bare (3)")
    add("--seconds", type=float, default=3.0, help="window of each run (3)")
    add("--sampler", type=int, metavar="BLOCKS", help="the sampler's cost instead, by so many")
    add("--data", type=Path, default=Path("data"))
    add("--output", type=Path, default=Path("graph_speeds.json"), help="of graph-speeds")
    add("other", nargs="?", choices=["graph-speeds"], help="why a CUDA graph has two speeds")
    args = parser.parse_args(argv)
    if args.other and not device:
        sys.exit(f"bench: graph-speeds needs a GPU: {why}")
    if args.other:
        graph_speeds(devices, args.pairs, args.output)
        return 0
    seconds = len(ORDER) * SEGMENT_S * (args.sampler + 1) if args.sampler else args.seconds
    for name in args.case:
        cell = cell_of(known[name], seconds)
        ready = prepare(cell, args.data)
        print(f"{cell.id} on {device.name if device else 'CPU'}", flush=True)
        if args.sampler:
            sampler_cost(cell, ready, device)
        else:
            compare(cell, ready, device, args.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
