"""`make bench`: the study's members against a bare PyTorch loop, and what a cell costs.

A round runs every case once as the conductor's cell and once as the bare loop, in turn: the same
number of processes under the same method, with the same member specs (cores, threads, input,
precision). Printed are the ratios of their rates, and where a cell's wall time goes. No rate passes
or fails; a run whose method was not in force ends it.

`make bench BENCH="sampler ..."` measures what monitoring costs instead: bench/sampler_cost.py.
`make bench BENCH=scale` shows how planning and analysis grow with a study: bench/scale.py.
`make bench BENCH=survivors` says why a job that is left alone is slower: bench/survivors.py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import sampler_cost, scale, survivors
from bench.bare_loop import measure
from bench.cases import CPU_CASES, CUDA_CASES, Case, cell_of, entered, in_short, prepare
from workflow.collocation import gpu
from workflow.collocation.gpu import find_devices
from workflow.collocation.run import environment
from workflow.collocation.run.task import Task
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Report, Unsupported
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.load import load_config

OTHERS = {"sampler": sampler_cost.main, "scale": scale.main, "survivors": survivors.main}
COSTS = ("server_s", "build_s", "warm_s", "window_s", "stop_s", "write_s", "total_s")


def ours(cell: Cell, ready: Path, device: gpu.Device | None, folder: Path) -> dict:
    """Run the cell by the conductor; its run.json."""
    output = folder / "cell" / "run.json"
    job = folder / "cell.json"
    Task(
        study="bench",
        cell=cell.id,
        output=output,
        spec=cell.spec,
        gpu=device.uuid if device else "cpu",
        data=[ready],
    ).write(job)
    command = [sys.executable, "-m", "workflow.collocation.run.cell", str(job)]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"bench: {cell.id} ended with exit code {run.returncode}\n{run.stderr}")
    record = json.loads(output.read_text())
    if record["status"] != "completed":
        sys.exit(f"bench: {cell.id}: {record['status']}: {record['reason']}")
    return record


def bare(cell: Cell, ready: Path, device: gpu.Device | None, folder: Path) -> tuple[float, str]:
    """Samples/s of the bare loop with the same specs and method, and what proves the method."""
    seen = []
    try:
        with entered(cell, ready, device, folder) as (sharing, specs):

            def witness(said: list[dict]) -> None:
                evidence = sharing.witness({i: report(facts) for i, facts in enumerate(said)})
                seen.append(in_short(evidence))

            window = cell.spec.measure
            rate = sum(measure(specs, window.window_s, witness, window.settle_s))
    except (GpuBusy, NotInForce, Unsupported) as error:
        sys.exit(f"bench: bare loop as {cell.id}: {error}")
    return rate, seen[0]


def report(facts: dict) -> Report:
    """What a process of the bare loop said of itself, as a member's report."""
    names = ("pid", "device_uuid", "sm_count", "memory_free", "sm_source")
    return Report(**{name: facts[name] for name in names})


@dataclass
class Results:
    """What the rounds of one case gave: rates in samples/s, and our records."""

    ours: list[float]
    bare: list[float]
    records: list[dict]

    @property
    def cores(self) -> int:
        """Of each member."""
        return len(self.records[0]["members"][0]["cores"])

    @property
    def ratio(self) -> float:
        return statistics.median(o / b for o, b in zip(self.ours, self.bare, strict=True))


def pair(name: str, cell, ready: Path, device, number: int, results: Results) -> None:
    """Both, ours first in every other round; printed as they come."""
    for who in ("ours", "bare") if number % 2 == 0 else ("bare", "ours"):
        with tempfile.TemporaryDirectory() as folder:
            if who == "bare":
                rate, seen = bare(cell, ready, device, Path(folder))
                results.bare.append(rate)
            else:
                record = ours(cell, ready, device, Path(folder))
                members = record["members"]
                results.records.append(record)
                results.ours.append(sum(m["windows"]["window"]["samples_per_s"] for m in members))
    if number == 0:
        proven = in_short(results.records[0]["method"]["evidence"]["end"])
        print(f"  {name}: ours: {proven}\n  {name}: bare: {seen}")
    ours_rate, bare_rate = results.ours[-1], results.bare[-1]
    print(
        f"  {name}: ours {ours_rate:,.0f} samples/s, bare {bare_rate:,.0f}, "
        f"ratio {ours_rate / bare_rate:.3f}",
        flush=True,
    )


def print_ratios(cases: dict[str, Case], found: dict[str, Results]) -> None:
    titles = ("ours", "bare", "ratio", "cores", "input")
    print(
        "\nmedian samples/s, median ratio of the pairs, cores of a member, input's part of a step"
    )
    print(" " * 44 + "".join(f"{title:>10}" for title in titles))
    for name, results in found.items():
        members = [m for record in results.records for m in record["members"]]
        shares = [m["input_share"] for m in members if m["input_share"]]
        rates = [f"{statistics.median(rates):10,.0f}" for rates in (results.ours, results.bare)]
        rest = f"{results.ratio:10.3f}{results.cores:10}{statistics.median(shares or [0]):10.1%}"
        print(f"{name:9}{cases[name]!s:35}" + "".join(rates) + rest)


def print_costs(cases: dict[str, Case], found: dict[str, Results]) -> None:
    print("\nseconds of a cell (median); cost = total less warm-up and window")
    print(" " * 9 + "".join(f"{title[:-2]:>9}" for title in COSTS) + f"{'cost':>9}")
    for name, results in found.items():
        timings = [record["timing"] for record in results.records]
        timings = timings[1:] or timings  # the first of a case pays for cold caches
        medians = {key: statistics.median(t.get(key, 0.0) for t in timings) for key in COSTS}
        cost = medians["total_s"] - medians["warm_s"] - medians["window_s"]
        print(f"{name:9}" + "".join(f"{medians[key]:9.2f}" for key in COSTS) + f"{cost:9.2f}")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in OTHERS:
        return OTHERS[argv[0]](argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", nargs="+", metavar="NAME", help="only these; --list names them")
    parser.add_argument("--list", action="store_true", help="the cases for this machine")
    parser.add_argument("--pairs", type=int, default=3, help="of each case (3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="window of each run (3)")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args(argv)
    device = next(iter(find_devices(load_config({}).gpu)[0]), None)
    known = CUDA_CASES if device else CPU_CASES
    if args.list:
        for name, case in known.items():
            print(f"{name:9}{case.workload}, {case}")
        return 0
    if wrong := [name for name in args.case or [] if name not in known]:
        parser.error(f"--case {wrong[0]}: choose from {', '.join(known)}")
    if args.pairs < 1:
        parser.error(f"--pairs {args.pairs}: at least 1")
    began = time.monotonic()
    # For the bare loop; members do not find them either.
    ours = [name for name in os.environ if name.startswith("CUDA_MPS_")]
    for name in [*ours, *environment.account()["dropped"]]:
        del os.environ[name]
    cases = {name: case for name, case in known.items() if args.case is None or name in args.case}
    cells = {name: cell_of(case, args.seconds) for name, case in cases.items()}
    datasets = {cell.spec.members[0].job.dataset: cell for cell in cells.values()}
    ready = {dataset: prepare(cell, args.data) for dataset, cell in datasets.items()}
    print(f"bench on {device.name if device else 'CPU'}, {args.pairs} alternating pairs")
    found = {name: Results([], [], []) for name in cases}
    for number in range(args.pairs):
        for name, cell in cells.items():
            dataset = cell.spec.members[0].job.dataset
            pair(name, cell, ready[dataset], device, number, found[name])
    print_ratios(cases, found)
    print_costs(cases, found)
    print(f"\n{time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
