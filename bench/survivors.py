"""Why a job that is left alone seldom runs as fast as it did by itself.

Of each plain pair of jobs of which one ends or leaves: how fast the survivor is from then on, over
the same job alone in the same block; and the same of its samples per second of busy GPU (rate over
GRACT). Where the second is 1 and the first is not, the GPU is as fast as ever, and the host's
thread that launches is not. Reads the raw files of a study: `make bench BENCH=survivors`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from analysis.records import slices, survivor
from analysis.records.safe import read_json

SETTLE_NS = 500_000_000  # after the other one's last step
LEAST_NS = 1_000_000_000


def alone_since(record: dict, steps: dict[int, np.ndarray]) -> tuple[int, int, int] | None:
    """The member that trains on, and the time (ns) in which it does so alone."""
    windows = {window["name"]: window for window in record["windows"]}
    if "after" in windows:
        start, end = windows["after"]["start_ns"], windows["after"]["end_ns"]
        left = [member for member, ends in steps.items() if ends[-1] >= start]
    elif "completion" in windows:
        last = {member: ends[-1] for member, ends in steps.items()}
        *_, start, end = sorted(last.values())
        start, left = start + SETTLE_NS, [max(last, key=last.get)]
    else:
        return None
    return (left[0], start, end) if len(left) == 1 and end - start > LEAST_NS else None


def speed(folder: Path, batch: int, ends: np.ndarray, start: int, end: int) -> tuple[float, float]:
    """Samples/s of steps that end in this time, and GRACT in it."""
    rate = batch * np.count_nonzero((ends > start) & (ends <= end)) / (end - start) * 1e9
    return rate, slices.mean(*slices.readings(folder / slices.FILE), start, end)


def ends_of(folder: Path) -> dict[int, np.ndarray]:
    """Member → when its steps ended (ns)."""
    ends, tick, origin = survivor.steps(folder / survivor.FILE)
    return {member: ticks * tick + origin for member, ticks in ends.items()}


def survivors(study: Path) -> Iterator[tuple[str, float, float]]:
    """Cell, rate over that of the job alone, the same of the rate over GRACT."""
    for path in sorted(study.glob("cells/*/*/naive/r*/a*/run.json")):
        record, folder = read_json(path), path.parent
        if record["status"] != "completed" or not (folder / slices.FILE).exists():
            continue
        found = alone_since(record, steps := ends_of(folder))
        if found is None:
            continue
        member, start, end = found
        job = record["spec"]["members"][member]
        after = speed(folder, job["batch_size"], steps[member], start, end)
        arm, _, block = path.parts[-5:-2]
        for base in study.glob(f"cells/1x_{job['workload']}/{arm}/naive/{block}/a*/run.json"):
            alone = read_json(base)
            same = alone["provenance"]["sitting"] == record["provenance"]["sitting"]
            if alone["status"] == "completed" and same:
                (window,) = alone["windows"]
                own = ends_of(base.parent)[0], window["start_ns"], window["end_ns"]
                before = speed(base.parent, job["batch_size"], *own)
                ratio = after[0] / before[0]
                yield record["cell"]["id"], ratio, ratio * before[1] / after[1]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench survivors", description=__doc__)
    parser.add_argument("study", type=Path, nargs="?", default=Path("results/h200"))
    found = list(survivors(parser.parse_args(arguments).study))
    print("over the job alone:  rate  rate/GRACT")
    for cell, rate, busy in found:
        print(f"{rate:25.3f} {busy:11.3f}  {cell}")
    if found:
        middle = map(geometric_mean, list(zip(*found, strict=True))[1:])
        print("{:25.3f} {:11.3f}  geometric mean".format(*middle))
    return 0
