"""`python -m bench`: compares the study's training processes with a bare PyTorch loop.

Every case runs in pairs: once as a cell of the study, once as the bare loop with the same number of
processes, method and member specs (cores, threads, input, precision). No rate passes or fails.

`python -m bench watching` measures what watching a GPU costs instead (bench/watching.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from bench import watching
from bench.bare_loop import measure
from bench.cells import Case, cell_of, entered, prepare, record_of, start_cell
from workflow.collocation.gpu import Device, find_devices
from workflow.collocation.record import source_digest
from workflow.collocation.record.provenance import collect_provenance
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.load import load_config

CUDA_CASES = {
    f"{method}{jobs}": Case("resnet26_cifar10_b128", "bf16", method, jobs)
    for method, jobs in (("naive", 1), ("naive", 7), ("mps", 7), ("mps", 16))
}
GRAPH = Case("resnet26_cifar10_b128", "graph", "naive", 1)
CPU_CASES = {
    f"naive{jobs}": Case("tiny_resnet_digits_b32", "paper_step", "naive", jobs) for jobs in (1, 2)
}


def bare_loop_rate(cell: Cell, ready: Path, device: Device | None, folder: Path) -> float:
    """Samples/s of all bare loops together, with the cell's member specs and under its method.

    Raises NotInForce if the method is not in force.
    """
    dataset = json.loads(ready.read_text(encoding="utf-8"))
    with entered(cell, dataset, device, folder) as (sharing, specs):

        def witness(facts: list[dict]) -> None:
            names = ("pid", "device_uuid", "sm_count", "memory_free", "sm_source")
            reports = {}
            for member, facts_of_process in enumerate(facts):
                reports[member] = Report(**{name: facts_of_process[name] for name in names})
            sharing.evidence(reports)

        return sum(measure(specs, cell.spec.measure.window_s, witness))


def cell_rate(cell: Cell, ready: Path, device: Device | None, folder: Path) -> tuple[float, float]:
    """Samples/s of all members of a cell, and the seconds it takes beside warm-up and window."""
    record = record_of(start_cell(cell, ready, device, folder), folder)
    windows = [member["windows"]["window"] for member in record["members"]]
    timing = record["timing"]
    overhead_s = timing["total_s"] - timing["warm_s"] - timing["window_s"]
    return sum(window["samples_per_s"] for window in windows), overhead_s


def compare_with_bare_loop(cell: Cell, ready: Path, device: Device | None, pairs: int) -> None:
    """Measure the cell and the bare loop `pairs` times each, in turns, and print medians.

    The cell goes first in every other pair.
    """
    cell_rates, bare_rates, overheads_s = [], [], []
    for pair in range(pairs):
        order = ("cell", "bare") if pair % 2 == 0 else ("bare", "cell")
        for program in order:
            with tempfile.TemporaryDirectory() as folder:
                if program == "bare":
                    bare_rates.append(bare_loop_rate(cell, ready, device, Path(folder)))
                    continue
                rate, overhead_s = cell_rate(cell, ready, device, Path(folder))
                cell_rates.append(rate)
                overheads_s.append(overhead_s)
    ratio = median(ours / bare for ours, bare in zip(cell_rates, bare_rates, strict=True))
    ours, bare = median(cell_rates), median(bare_rates)
    print(f"  ours {ours:,.0f} samples/s, bare {bare:,.0f}, median ratio of pairs {ratio:.3f}")
    print(f"  a cell takes {median(overheads_s):.2f} s beside its warm-up and window", flush=True)


def window_s_for(blocks: int) -> float:
    """Seconds of a window that holds `blocks` whole blocks of segments, wherever they begin."""
    return len(watching.ORDER) * watching.SEGMENT_S * (blocks + 1)


def profiler_cost(cell: Cell, device: Device, blocks: int) -> dict:
    """What torch.profiler costs the cell's job, a CUDA graph on random images alone on the GPU."""
    from bench.profiler import ratios_in_fresh_process

    dataset = {"dataset": cell.spec.members[0].job.dataset, "path": ""}
    with (
        tempfile.TemporaryDirectory() as folder,
        entered(cell, dataset, device, Path(folder)) as (_, [spec]),
    ):
        return watching.cost_of(*ratios_in_fresh_process(spec, device.uuid, blocks))


def watcher_costs(
    cell: Cell, ready: Path, device: Device | None, blocks: int
) -> Iterator[tuple[str, dict]]:
    """Measure each watcher beside the cell, print a line, and give its name and its cost."""
    measurements = {
        name: partial(watching.measure_watcher, cell, ready, device, command)
        for name, command in watching.watchers(device).items()
    }
    if device and cell.spec.implementation.cuda_graph:
        measurements["torch.profiler"] = partial(profiler_cost, cell, device, blocks)
    for watcher, measure_cost in measurements.items():
        cost = measure_cost()
        if cost is None:
            print(f"  {watcher}: ended by itself", flush=True)
            continue
        changes = []
        for quantity in ("throughput", "power"):
            percent, low, high = cost[quantity]
            if percent == percent:  # NaN: not measured
                changes.append(f"{quantity} {percent:+.3f} % ({low:+.3f} to {high:+.3f})")
        print(f"  {watcher}: {', '.join(changes)}, {cost['blocks']} blocks", flush=True)
        yield watcher, cost


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    devices, _ = find_devices(load_config({}).gpu)
    device = next(iter(devices), None)
    cases = CUDA_CASES | {"graph1": GRAPH} if device else CPU_CASES
    parser = argparse.ArgumentParser(
        "python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--case", nargs="+", choices=cases, help=f"of {', '.join(cases)}; all, but see watching")
    add("--pairs", type=int, default=3, help="of each case, ours and bare (3)")
    add("--seconds", type=float, default=3.0, help="window of each run (3)")
    add("--blocks", type=int, default=8, help="of four segments each, of watching (8)")
    add("--data", type=Path, default=Path("data"))
    add("--output", type=Path, help="of watching: a JSON file")
    add("bench", nargs="?", choices=["watching"], help="instead of the bare loop")
    args = parser.parse_args(argv)
    is_watching = args.bench == "watching"
    if "graph1" in (args.case or ()) and not is_watching:
        parser.error("--case graph1 is for watching: the bare loop has no graph")
    # A job that waits for its host varies by 10 % from second to second, which would hide what a
    # watcher costs; a graph does not.
    if is_watching and device:
        default_cases = ["graph1"]
    else:
        default_cases = [name for name in cases if name != "graph1"]
    results = {}
    for name in args.case or default_cases:
        cell = cell_of(cases[name], window_s_for(args.blocks) if is_watching else args.seconds)
        ready = prepare(cell, args.data)
        gpu = device.name if device else "CPU"
        print(f"{cell.id} on {gpu}", flush=True)
        if not is_watching:
            compare_with_bare_loop(cell, ready, device, args.pairs)
            continue
        provenance = collect_provenance(
            device.driver if device else None, source_digest.code_digest()
        )
        costs = {}
        results[cell.id] = {"gpu": gpu, **provenance, "watchers": costs}
        for watcher, cost in watcher_costs(cell, ready, device, args.blocks):
            costs[watcher] = cost
            if args.output:  # after each watcher: the next one may be interrupted
                args.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
