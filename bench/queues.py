"""`python -m bench.queues`: how long queues of runs take by `collocate run`, and by others.

Policies, in the order in which they are named:

    alone      the mixed queue by `collocate run --jobs 1`
    fixed      the same by `--jobs 4`
    admitted   the same without --jobs: as many at once as the first runs show to have room
    carma      the same by CARMA's rule, in a loop here (bench/carma.py)
    uniform    a queue of medium runs by `--jobs 4`
    parallel   the same by GNU parallel in as many slots, under an MPS daemon started by hand
    sweep      the same by `--jobs 4` where one run fails, and one runs out of memory at first;
               halfway the command and its supervisors are killed, and the command carries on

Each policy writes its folder anew, prints a line, and adds itself to queues.json. The GPU is the
first that CUDA_VISIBLE_DEVICES shows; with --gpus all, `collocate run` uses all of those.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import carma
from bench.queue_watch import Watched, left_behind, watch
from workflow.collocation.gpu import Device, find
from workflow.collocation.gpu.cores import usable

JOB = Path(__file__).with_name("queue_job.py")
SLOTS = 4
# Of 24 runs; other counts have them in the same proportions.
MIXTURE = ["small"] * 12 + ["medium"] * 7 + ["large"] * 4 + ["huge"]
MIXED = ("alone", "fixed", "admitted", "carma")
JOBS = {"alone": ["--jobs", "1"], "admitted": []}
POLICIES = (*MIXED, "uniform", "parallel", "sweep")
CALIBRATE_S = 240.0


class Bench:
    """Runs policies; sizes: what bench/queue_job.py found of each size. device: None on the CPU."""

    def __init__(self, args: argparse.Namespace, device: Device | None):
        self.args, self.device = args, device
        self.sizes = self._sizes()

    def _sizes(self) -> dict:
        path = self.args.sizes or self.args.out / "sizes.json"
        if not path.exists():
            command = [sys.executable, str(JOB), "--device", self._device_type()]
            command += ["--calibrate", str(path), "--runs", str(self.args.runs)]
            subprocess.run(command, check=True, timeout=CALIBRATE_S)
        return json.loads(path.read_text(encoding="utf-8"))

    def _device_type(self) -> str:
        return "cuda" if self.device else "cpu"

    def queue(self, policy: str, folder: Path) -> list[carma.QueuedRun]:
        """The runs of a policy, which are the same for all of the mixed queue."""
        sizes = ["medium"] * self.args.runs
        if policy in MIXED:
            sizes = [MIXTURE[k * len(MIXTURE) // self.args.runs] for k in range(self.args.runs)]
            random.Random(0).shuffle(sizes)
        runs = []
        for number, size in enumerate(sizes):
            words = [sys.executable, str(JOB), "--device", self._device_type(), "--size", size]
            words += ["--steps", str(self.sizes["steps"][size]), "--number", str(number)]
            words += ["--ended", str(folder / "ended.txt")]
            if policy == "sweep" and number == 2:
                words += ["--error"]
            if policy == "sweep" and number == 3:
                words += ["--out-of-memory", str(folder / "out-of-memory")]
            runs.append(carma.QueuedRun(number, words, self.sizes["peak_mb"][size]))
        return runs

    def measure(self, policy: str) -> dict:
        """Work off the queue of a policy, and return what came of it."""
        folder = self.args.out / policy
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        runs = self.queue(policy, folder)
        with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:  # paths of sockets
            if policy == "carma":
                measured = carma.work_off(runs, self.device, folder, Path(short), self.args.limit)
            elif policy == "parallel":
                measured = self._parallel(runs, folder, Path(short))
            else:
                measured = self._collocate(policy, runs, folder, short)
            measured["left"] = left_behind(folder, Path(short), self.device)
        ended = folder / "ended.txt"
        numbers = ended.read_text(encoding="utf-8").split() if ended.exists() else []
        measured["ended"] = len({*numbers})
        measured["ended_twice"] = len(numbers) - len({*numbers})
        gpu = self.device.name if self.device else "cpu"
        return {"policy": policy, "gpu": gpu, "runs": len(runs), **measured}

    def _collocate(
        self, policy: str, runs: list[carma.QueuedRun], folder: Path, short: str
    ) -> dict:
        lines = folder / "commands.txt"
        lines.write_text("".join(shlex.join(run.command) + "\n" for run in runs), encoding="utf-8")
        jobs = JOBS.get(policy, ["--jobs", str(SLOTS)])
        command = [sys.executable, "-m", "collocate", "run", *jobs, "--folder"]
        command += [str(folder / "sweep"), "--commands", str(lines)]
        command += ["--gpus", self.args.gpus] if self.args.gpus else []
        environment = os.environ | {"TMPDIR": short}
        log, calls = folder / "output.txt", []
        began_s = time.monotonic()
        if policy == "sweep":
            half = len(runs) // 2
            calls.append(watch(command, environment, log, self.args.limit, kill_at=half))
        left_s = self.args.limit - (time.monotonic() - began_s)
        calls.append(watch(command, environment, log, left_s))
        measured = {"makespan_s": round(time.monotonic() - began_s, 2)}
        return measured | self._ends(folder / "sweep", calls)

    def _ends(self, sweep: Path, calls: list[Watched]) -> dict:
        """What the records of a sweep say, and its command."""
        records = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(sweep.glob("*/run.json"))
        ]
        newest = [record["attempts"][-1] for record in records if record["attempts"]]
        outcomes = [attempt["outcome"] for attempt in newest]
        return {
            "ended_by_record": outcomes.count("ended"),
            "failed": outcomes.count("failed"),
            "retried": sum(len(record["attempts"]) > 1 for record in records),
            "calls": [call.to_json() for call in calls],
            "attempts": {record["run"]: record["attempts"] for record in records},
        }

    def _parallel(self, runs: list[carma.QueuedRun], folder: Path, short: Path) -> dict:
        lines, joblog = folder / "commands.txt", folder / "joblog.txt"
        lines.write_text("".join(shlex.join(run.command) + "\n" for run in runs), encoding="utf-8")
        threads = str(max(1, usable() // SLOTS))  # as `collocate run` gives them
        began_s = time.monotonic()
        with (
            carma.mps_by_hand(self.device, short, folder) as environment,
            (folder / "output.txt").open("w") as output,
        ):
            command = ["perl", str(self.args.parallel), "--will-cite", "--jobs", str(SLOTS)]
            command += ["--joblog", str(joblog), "--results", str(folder / "results")]
            process = subprocess.Popen(
                [*command, "-a", str(lines)],
                env=os.environ | environment | {"HOME": str(short), "OMP_NUM_THREADS": threads},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            code = carma.wait_or_end(process, self.args.limit)
        makespan_s = time.monotonic() - began_s
        rows = [line.split("\t") for line in joblog.read_text(encoding="utf-8").splitlines()[1:]]
        spans = {int(row[0]) - 1: [float(row[2]), float(row[3])] for row in rows}
        failed = sum(row[6] != "0" or row[7] != "0" for row in rows)
        return {
            "makespan_s": round(makespan_s, 2),
            "failed": failed,
            "retried": 0,
            "code": code,
            "spans": spans,  # start (s since 1970) and duration (s) by run
        }


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m bench.queues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("policies", nargs="+", choices=POLICIES, metavar="POLICY")
    add("--out", type=Path, required=True, help="folder")
    add("--runs", type=int, default=24, help="of a queue (24)")
    add("--gpus", default="", help="of `collocate run`; cpu to try it without a GPU")
    add("--sizes", type=Path, help="JSON with steps and memory; made if it is not there")
    add("--parallel", type=Path, help="GNU parallel, the Perl script")
    add("--limit", type=float, default=300.0, help="seconds of one policy (300)")
    args = parser.parse_args(argv)
    if "parallel" in args.policies and not args.parallel:
        parser.error("parallel needs --parallel PATH")
    if "admitted" in args.policies and args.gpus == "cpu":
        parser.error("admitted needs a GPU")
    for name in ("out", "sizes", "parallel"):
        setattr(args, name, (path := getattr(args, name)) and path.resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    device = None if args.gpus == "cpu" else find()[0]
    bench = Bench(args, device)
    print(f"{device.name if device else 'CPU'}: {bench.sizes}", flush=True)
    for policy in args.policies:
        measured = bench.measure(policy)
        words = {name: measured[name] for name in ("makespan_s", "ended", "failed", "retried")}
        print(f"{policy}: {words}, left: {measured['left'] or 'nothing'}", flush=True)
        path = args.out / "queues.json"
        earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        path.write_text(json.dumps([*earlier, measured], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
