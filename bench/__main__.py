"""`python -m bench`: the study's members against a bare PyTorch loop.

In a round every case runs once as the conductor's cell and once as the bare loop: the same number
of processes under the same method, with the same member specs (cores, threads, input, precision).
No rate passes or fails. `watching` tells what watching a GPU costs (bench/watching.py),
`graph-speeds` why a CUDA graph has two speeds (bench/graph_speeds.py).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench import watching
from bench.bare_loop import measure
from bench.cells import cell_of, entered, prepare, record_of, started
from workflow.collocation.gpu import find_devices
from workflow.collocation.record import source_digest
from workflow.collocation.record.provenance import collect_provenance
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.load import load_config

CUDA_CASES = {
    f"{method}{n}": ("resnet26_cifar10_b128", "bf16", method, n)
    for method, n in (("naive", 1), ("naive", 7), ("mps", 7), ("mps", 16))
}
GRAPH = ("resnet26_cifar10_b128", "graph", "naive", 1)
CPU_CASES = {f"naive{n}": ("tiny_resnet_digits_b32", "paper_step", "naive", n) for n in (1, 2)}


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


def watched_s(blocks: int) -> float:
    """Seconds of a window that holds so many blocks, wherever they begin."""
    return len(watching.ORDER) * watching.SEGMENT_S * (blocks + 1)


@contextmanager
def graph_alone(cell: Cell, device) -> Iterator[dict]:
    """The spec of the only member of a cell, on whose GPU nobody else is; images are random."""
    dataset = {"dataset": cell.spec.members[0].job.dataset, "path": ""}
    with (
        tempfile.TemporaryDirectory() as name,
        entered(cell, dataset, device, Path(name)) as (_, [spec]),
    ):
        yield spec


def profiled(cell: Cell, device, blocks: int) -> dict:
    """What torch.profiler costs the cell's job, which is a CUDA graph."""
    from bench.graphed import in_fresh_process
    from bench.profiler import job

    with graph_alone(cell, device) as spec:
        about = (spec, device.uuid, watching.ORDER, blocks)
        return watching.told(*in_fresh_process(job, *about))


def watched(cell: Cell, ready: Path, device, blocks: int) -> Iterator[tuple[str, dict]]:
    """Watchers, and what each costs this cell."""
    ways = {
        name: partial(watching.cost, cell, ready, device, command)
        for name, command in watching.watchers(device).items()
    }
    if device and cell.spec.implementation.cuda_graph:
        ways["torch.profiler"] = partial(profiled, cell, device, blocks)
    for name, way in ways.items():
        told = way()
        if told is None:
            print(f"  {name}: ended by itself", flush=True)
            continue
        said = [
            f"{what} {value:+.3f} % ({low:+.3f} to {high:+.3f})"
            for what in ("throughput", "power")
            for value, low, high in [told[what]]
            if value == value
        ]
        print(f"  {name}: {', '.join(said)}, {told['blocks']} blocks", flush=True)
        yield name, told


def graph_speeds(devices: list, rounds: int, output: Path) -> None:
    """The runs of bench.graph_speeds on the first GPU, with random images."""
    from bench.graph_speeds import measure

    cell, (gpu, other, *_) = cell_of(GRAPH, 1.0), [*(each.uuid for each in devices), "-1"]
    with graph_alone(cell, devices[0]) as spec:
        measure(spec, gpu, other, rounds, output)


def main(argv: list[str] | None = None) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench", description=__doc__, formatter_class=layout)
    devices, why = find_devices(load_config({}).gpu)
    device = next(iter(devices), None)
    known = CUDA_CASES | {"graph1": GRAPH} if device else CPU_CASES
    add = parser.add_argument
    add("--case", nargs="+", choices=known, help=f"of {', '.join(known)}; all, but see watching")
    add("--pairs", type=int, default=3, help="of each case, ours and bare (3)")
    add("--seconds", type=float, default=3.0, help="window of each run (3)")
    add("--blocks", type=int, default=8, help="of four segments each, of watching (8)")
    add("--data", type=Path, default=Path("data"))
    add("--output", type=Path, help="of watching and graph-speeds: a JSON file")
    add("other", nargs="?", choices=["watching", "graph-speeds"], help="instead of the bare loop")
    args = parser.parse_args(argv)
    if args.other == "graph-speeds":
        if not device:
            sys.exit(f"bench: graph-speeds needs a GPU: {why}")
        graph_speeds(devices, args.pairs, args.output or Path("graph_speeds.json"))
        return 0
    if "graph1" in (args.case or ()) and args.other != "watching":
        parser.error("--case graph1 is for watching: the bare loop has no graph")
    found = {}
    # What waits for its host wavers by 10 % from second to second: too much to see a watcher.
    steady = ["graph1"] if args.other and device else [case for case in known if case != "graph1"]
    for name in args.case or steady:
        cell = cell_of(known[name], watched_s(args.blocks) if args.other else args.seconds)
        ready = prepare(cell, args.data)
        print(f"{cell.id} on {device.name if device else 'CPU'}", flush=True)
        if args.other:
            about = {"gpu": device.name if device else "CPU"}
            about |= collect_provenance(
                device.driver if device else None, source_digest.code_digest()
            )
            found[cell.id] = about | {"watchers": {}}
            for watcher, told in watched(cell, ready, device, args.blocks):
                found[cell.id]["watchers"][watcher] = told
                if args.output:  # at once: what follows may be stopped
                    args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        else:
            compare(cell, ready, device, args.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
