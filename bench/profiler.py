"""What torch.profiler and ncu cost the job that they see, for `make bench BENCH=watching`.

Both see from within, so the job is a process of ours that replays a captured training step. In half
of the segments it is seen; what the profiler does with what it saw lies outside of them. ncu runs
each kernel several times over, and is attached to the job in the other half as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch.cuda import profiler as ncu_range
from torch.profiler import profile

from bench import watching
from bench.graphed import READY, graphed

SEGMENT_S = 3.0  # some 500,000 kernels
# Profiler → what begins and ends it, steps between two looks at the clock, and what starts the job.
# ncu leaves the clocks as they are.
NCU = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--log-file", os.devnull]
PROFILERS = {"torch.profiler": (profile, 20, []), "ncu": (ncu_range.profile, 1, NCU)}


def segment(
    steps: Callable[[int], None], joules: Callable[[], float], at_once: int
) -> tuple[float, float]:
    """Steps/s and watts over SEGMENT_S."""
    n, before, began = 0, joules(), time.monotonic()
    while (took := time.monotonic() - began) < SEGMENT_S:
        steps(at_once)
        n += at_once
    return n / took, (joules() - before) / took


def ratios(
    profiler: str, steps: Callable[[int], None], joules: Callable[[], float], blocks: int
) -> tuple[list[float], list[float]]:
    """For each block of segments the rate with the profiler over that without, and the power."""
    seen_by, at_once, _ = PROFILERS[profiler]
    found = []
    for _ in range(blocks):
        seen: dict[str, list] = {"on": [], "off": []}
        for state in watching.ORDER:
            with seen_by() if state == "on" else nullcontext():
                steps(at_once)
                seen[state].append(segment(steps, joules, at_once))
        found.append(np.mean(seen["on"], axis=0) / np.mean(seen["off"], axis=0))
    rates, powers = np.transpose(found).tolist()
    return rates, powers


def cost(profiler: str, spec: dict, gpu: str, blocks: int) -> dict | None:
    """What a profiler of PROFILERS costs the job of this spec of a member on the GPU of this UUID.

    None where the job did not end well.
    """
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.json"
        path.write_text(json.dumps([profiler, spec, gpu, blocks]), encoding="utf-8")
        command = [*PROFILERS[profiler][2], sys.executable, "-m", "bench.profiler", str(path)]
        if subprocess.run(command).returncode:
            return None
        return watching.told(*json.loads(path.read_text("utf-8")))


def main(path: Path) -> None:
    """Run the job of this file, and write its `ratios` there."""
    profiler, spec, gpu, blocks = json.loads(path.read_text("utf-8"))
    launch = graphed(spec)

    def steps(n: int) -> None:
        launch(n)
        torch.cuda.synchronize()

    steps(READY)
    found = ratios(profiler, steps, watching.energy_of(gpu), blocks)
    path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
