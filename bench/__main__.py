"""`make bench`: the study's members against a bare PyTorch loop, and what a cell costs.

Each case runs the conductor's cell and the bare loop in alternating pairs, with the same member
specs (cores, threads, input, precision), and prints the ratio of their rates, pair by pair and as
a median. A table of where a cell's wall time goes comes last. Nothing here passes or fails.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.bare_loop import measure
from workflow.collocation import cores, gpu, methods, plan
from workflow.collocation.lock import device_lock
from workflow.collocation.settings import load_config, load_workloads
from workflow.collocation.sitting import find_device
from workflow.collocation.specs import member_specs, plan_shares
from workflow.collocation.study import ARMS, CONFIG, Study

# workload, arm, method, members
CUDA_CASES = (
    ("resnet26_cifar10_b128", "tuned", "naive", 1),
    ("resnet26_cifar10_b128", "tuned", "naive", 7),
    ("resnet26_cifar10_b128", "tuned_graph", "naive", 1),
)
CPU_CASES = (
    ("tiny_resnet_digits_b32", "faithful", "naive", 1),
    ("tiny_resnet_digits_b32", "faithful", "naive", 2),
)
COSTS = ("server_s", "build_s", "warm_s", "window_s", "stop_s", "write_s", "total_s")


def cell_of(workload: str, arm: str, method: str, n: int, largest: int, seconds: float):
    """The plan's cell of a case, with the cores that members have in a ladder up to `largest`."""
    measure_spec = {"kind": "window", "window_s": seconds, "min_steps": 10}
    counts = {count: [method] for count in {n, largest}}
    study = Study(
        description="bench",
        replicates=1,
        measure=measure_spec,
        ladders=[{"workloads": [workload], "arms": [arm], "counts": counts}],
    )
    cells = plan.expand(study, load_workloads(CONFIG / "workloads.yaml"))
    return next(cell for cell in cells if cell.n == n and cell.method == method)


def prepare(cell, data: Path) -> Path:
    """Make the cell's dataset ready; the file that says so."""
    member = cell.spec["members"][0]
    ready = data / "ready" / "bench" / f"{member['dataset']}.json"
    arguments = ["prepare", member["dataset"], "--root", data, "--ready", ready]
    arguments += ["--input-size", member["input_size"]]
    subprocess.run([sys.executable, "-m", "models.data", *map(str, arguments)], check=True)
    return ready


def ours(cell, ready: Path, device: str, folder: Path) -> dict:
    """Run the cell by the conductor; its run.json."""
    output = folder / "run.json"
    specs = folder.with_suffix(".json")
    specs.write_text(json.dumps({cell.id: cell.spec}))
    arguments = ["--study", "bench", "--cell", cell.id, "--specs", specs]
    arguments += ["--gpu", device, "--data", ready, "--", output]
    command = [sys.executable, "-m", "workflow.collocation.run", *map(str, arguments)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    record = json.loads(output.read_text())
    if record["status"] != "completed":
        sys.exit(f"{cell.id}: {record['status']}: {record['reason']}")
    return record


def bare(cell, ready: Path, device: gpu.Device | None, seconds: float, folder: Path) -> float:
    """Samples/s of the bare loop with the same specs and method."""
    dataset = json.loads(ready.read_text())
    sets, _ = cores.plan_cores(plan_shares(cell.spec), numa=device.numa_node if device else None)
    key, holder = device.uuid if device else "cpu", {"study": "bench", "cell": cell.id}
    with (
        device_lock(key, holder, lambda other: print(f"waiting for the device: {other}")),
        methods.enter(cell.spec, device, folder) as sharing,
    ):
        specs = member_specs(
            cell.spec,
            "cuda" if device else "cpu",
            sets,
            [sharing.environment(index) for index in range(cell.n)],
            {dataset["dataset"]: dataset},
            folder / "members",
        )
        return measure(specs, seconds)["samples_per_s"]


def compare(case, largest: int, pairs: int, seconds: float, data: Path, device) -> list[dict]:
    """Alternating pairs of one case, printed as they come; the records of our runs."""
    cell = cell_of(*case, largest, seconds)
    ready = prepare(cell, data)
    ratios, records = [], []
    for pair in range(pairs):
        rates = {}
        for who in ("ours", "bare") if pair % 2 == 0 else ("bare", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                if who == "bare":
                    rates[who] = bare(cell, ready, device, seconds, Path(folder))
                    continue
                record = ours(cell, ready, device.uuid if device else "cpu", Path(folder, "cell"))
                records.append(record)
                members = record["members"]
                rates[who] = sum(m["windows"]["window"]["samples_per_s"] for m in members)
        ratios.append(rates["ours"] / rates["bare"])
        print(
            f"  {case[1]} {case[3]}x {case[2]}: ours {rates['ours']:,.0f} samples/s, "
            f"bare {rates['bare']:,.0f}, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    shares = [m["input_share"] for r in records for m in r["members"] if m["input_share"]]
    print(
        f"{case[0]} {case[1]} {case[3]}x {case[2]}: median ratio {statistics.median(ratios):.3f}; "
        f"input {statistics.median(shares):.1%} of a step",
        flush=True,
    )
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="window of each run")
    parser.add_argument("--arm", choices=ARMS, help="only the cases of this arm")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    device, _ = find_device(load_config({}))
    print(f"bench on {device.name if device else 'CPU'}, {args.pairs} alternating pairs")
    cases = [c for c in (CUDA_CASES if device else CPU_CASES) if args.arm in (None, c[1])]
    largest = max(case[3] for case in (CUDA_CASES if device else CPU_CASES))
    costs = {}
    for case in cases:
        records = compare(case, largest, args.pairs, args.seconds, args.data, device)
        costs[case] = records[1:] or records  # the first of a case pays for cold caches
    print("\nseconds of a cell (median); cost = total less warm-up and window")
    print(f"{'':34}" + "".join(f"{name[:-2]:>9}" for name in COSTS) + f"{'cost':>9}")
    for case, records in costs.items():
        medians = {
            name: statistics.median(r["timing"].get(name, 0.0) for r in records) for name in COSTS
        }
        cost = medians["total_s"] - medians["warm_s"] - medians["window_s"]
        row = "".join(f"{medians[name]:9.2f}" for name in COSTS)
        print(f"{case[1]} {case[3]}x {case[2]}".ljust(34) + row + f"{cost:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
