"""`make bench BENCH="sampler ..."`: what does monitoring cost the members of a cell?

One launch per workload: its members train on without a pause while segments follow each other in
palindromes: off, on, on, off. The sampler, as it runs beside a cell, is started before its segments
and ended after them; the first moments of a segment are cut off.

A block gives one ratio: the rate in its two segments with the sampler over that in the two without,
geometric means, so that what drifts evenly cancels. Printed are the loss in per cent with its 95 %
interval (t over blocks, on log ratios) and the CPU time that the sampler itself took.
"""

import argparse
import contextlib
import json
import math
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from analysis.intervals import interval
from analysis.quantities import LOG
from bench.cases import CPU_CASES, Case, cell_of, entered, in_short, prepare
from workflow.collocation import gpu
from workflow.collocation.gpu import cores, find_devices
from workflow.collocation.record import step_times as steps
from workflow.collocation.record.source_digest import code_digest
from workflow.collocation.run.conductor import TIMEOUTS, Conductor
from workflow.collocation.run.fork_client import Server
from workflow.collocation.run.progress import Display
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Unsupported
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.load import load_config
from workflow.collocation.spec.study import Sampling
from workflow.collocation.telemetry.watch import Watch

OFF, ON = "off", "ours"
ORDER = (OFF, ON, ON, OFF)  # of a block: reads the same from both ends
LIMIT = 0.5  # per cent that monitoring may cost at most
STEADY_S = 2.0  # from go to the first block
READY_S = 15.0  # for a monitor's first reading
LOOK_S = 0.05  # between two looks for it

CUDA_CASES = {
    "resnet26": Case("resnet26_cifar10_b128", "bf16_autograd", "mps", 7, 7),
    "cait": Case("cait_xxs24_imagenet_b128", "paper_step", "naive", 1, 1),
}
TINY_CASES = {"tiny": CPU_CASES["naive2"]}


class BenchError(Exception):
    """What ends the bench, as a sentence."""


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far. Raises BenchError if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names
    except OSError as error:
        raise BenchError(f"the monitor, PID {pid}, has ended") from error


@dataclass
class Segment:
    """What was measured between two times (monotonic, ns), the cut-off left out.

    cpu: CPUs that the monitor kept busy. readings: of the monitor, in that time.
    samples_per_s: of each member.
    """

    block: int
    monitor: str
    start_ns: int
    end_ns: int
    cpu: float | None = None
    readings: int | None = None
    samples_per_s: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Launch(Conductor):
    """A cell whose window is blocks of segments."""

    args: argparse.Namespace
    device: gpu.Device | None
    folder: Path
    segments: list[Segment] = field(default_factory=list)

    def _window(self, start_ns: int, name: str = "window") -> None:
        self._until(start_ns)
        for block in range(self.args.blocks):
            for monitor in ORDER:
                self.segments.append(self._segment(block, monitor))
            taken = (time.monotonic_ns() - start_ns) / 1e9
            print(f"  block {block + 1} of {self.args.blocks}, {taken:.0f} s", flush=True)
        self._close_window(name, start_ns, time.monotonic_ns(), time.monotonic())

    def _segment(self, block: int, name: str) -> Segment:
        settled = time.monotonic_ns() + int(self.args.settle * 1e9)
        measured_ns = int((self.args.segment - self.args.settle) * 1e9)
        if name == OFF:
            start = self._until(settled)
            return Segment(block, name, start, self._until(start + measured_ns))
        folder = self.folder / f"monitor{len(self.segments)}"
        folder.mkdir()
        uuid, kind = (self.device.uuid, "gpu") if self.device else (None, "host")
        entities, spare = (
            ["gpu"] if uuid else [],
            cores.spare([spec["cores"] for spec in self.specs]),
        )
        settings = Sampling().model_dump()
        with Watch(folder, folder / "log", uuid, entities, settings, spare) as watch:
            watch.members({member.member: member.pid for member in self.alive})
            watch.phase("window")
            deadline = time.monotonic() + READY_S
            while not watch.rows(kind):
                if time.monotonic() > deadline:
                    raise BenchError(f"{name} has read nothing within {READY_S:.0f} s")
                self._until(time.monotonic_ns() + int(LOOK_S * 1e9))
            start = self._until(settled)
            cpu, readings = cpu_s(watch.pid), watch.rows(kind)
            end = self._until(start + measured_ns)
            cpu = (cpu_s(watch.pid) - cpu) / ((end - start) / 1e9)
            readings = watch.rows(kind) - readings
        if watch.problem:
            raise BenchError(watch.problem)
        return Segment(block, name, start, end, cpu, readings)

    def _until(self, end_ns: int) -> int:
        """Listen to the members until then; the time that it is now."""
        while (left := (end_ns - time.monotonic_ns()) / 1e9) > 0:
            heard = min(member.heard_ns for member in self.alive) / 1e9
            self._pump(heard + self.timeouts["window"], "window", self.alive, left)
        return time.monotonic_ns()


def launch(cell: Cell, ready: Path, device: gpu.Device | None, args) -> list[Segment]:
    """Run the cell for all its blocks. Raises BenchError where that does not end well."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        display = Display(cell.id, folder / "log")
        stack.callback(display.close)
        try:
            sharing, specs = stack.enter_context(entered(cell, ready, device, folder))
        except (GpuBusy, NotInForce, Unsupported) as error:
            raise BenchError(f"{cell.id}: {error}") from error
        server = stack.enter_context(Server(folder / "server.log"))
        conductor = Launch(
            *(server, sharing, specs, cell.spec.measure, folder, display, TIMEOUTS),
            Watch(folder, folder / "log", None, [], {"source": "off"}, None),
            args=args,
            device=device,
            folder=folder,
        )
        conductor.run()
        status, reason, _ = conductor.outcome()
        if status != "completed":
            raise BenchError(f"{cell.id}: {reason}")
        print(f"  {in_short(conductor.evidence['end'])}")
        for spec in specs:
            end_ns = steps.load(Path(spec["folder"]) / "steps.npz")["end_ns"]
            for segment in conductor.segments:
                rate = member_rate(end_ns, segment.start_ns, segment.end_ns, spec["batch_size"])
                segment.samples_per_s.append(rate)
        return conductor.segments


def member_rate(end_ns: np.ndarray, start_ns: int, stop_ns: int, batch_size: int) -> float:
    """Samples/s of one member between two times, by when its steps ended. Raises BenchError for
    none.
    """
    made = steps.fluid(end_ns[:-1], end_ns[1:], start_ns, stop_ns)
    if not made:
        raise BenchError("a member made no step in a segment")
    return batch_size * made / (stop_ns - start_ns) * 1e9


def ratios(segments: list[Segment]) -> list[float]:
    """For each block, rate with the sampler over rate without."""
    logs: dict[tuple[int, str], list[float]] = {}
    for segment in segments:
        rate = math.log(sum(segment.samples_per_s))
        logs.setdefault((segment.block, segment.monitor), []).append(rate)
    means = {key: statistics.fmean(values) for key, values in logs.items()}
    return [math.exp(means[block, ON] - means[block, OFF]) for block, name in means if name == ON]


def cost(segments: list[Segment]) -> dict:
    """Loss and its interval (%), blocks, CPUs kept busy, readings/s; `within`: whether the
    interval's upper end is at most LIMIT, null without an interval.
    """
    found = ratios(segments)
    mean, low, high = interval(found, LOG)
    own = [segment for segment in segments if segment.monitor == ON]
    seconds = sum(segment.end_ns - segment.start_ns for segment in own) / 1e9
    least, most = (None if r is None else 100 * (1 - r) for r in (high, low))
    return {
        "loss_percent": 100 * (1 - mean),
        "low": least,
        "high": most,
        "pairs": len(found),
        "cpu": statistics.fmean(segment.cpu for segment in own),
        "readings_per_s": sum(segment.readings for segment in own) / seconds,
        "within": None if most is None else most <= LIMIT,
    }


def print_cost(row: dict) -> None:
    interval_ = "" if row["low"] is None else f" ({row['low']:.3f} to {row['high']:.3f})"
    verdict = {None: "no interval", True: "yes", False: "NO"}[row["within"]]
    print(
        f"  loss {row['loss_percent']:.3f} %{interval_} over {row['pairs']} pairs, "
        f"{row['cpu']:.4f} CPUs, {row['readings_per_s']:.1f} readings/s; "
        f"at most {LIMIT} %: {verdict}"
    )


def main(argv: list[str]) -> int:
    device = next(iter(find_devices(load_config({}).gpu)[0]), None)
    known = CUDA_CASES if device else TINY_CASES
    parser = argparse.ArgumentParser(
        prog="python -m bench sampler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--workloads",
        nargs="+",
        choices=known,
        default=list(known),
        metavar="NAME",
        help=f"{' '.join(known)} (all)",
    )
    add("--blocks", type=int, default=20)
    add("--segment", type=float, default=1.5, help="seconds of a segment (1.5), of which")
    add("--settle", type=float, default=0.4, help="seconds are cut off at its beginning (0.4)")
    add("--output", type=Path, help="JSON file for all segments")
    add("--data", type=Path, default=Path("data"))
    args = parser.parse_args(argv)
    if args.blocks < 1:
        parser.error(f"--blocks {args.blocks}: at least 1")
    if not 0 <= args.settle < args.segment:
        parser.error(f"--settle {args.settle}: less than --segment {args.segment}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    found = {
        "device": device.record() if device else None,
        "digest": code_digest(),
        "blocks": args.blocks,
        "segment_s": args.segment,
        "settle_s": args.settle,
        "workloads": {},
    }
    for name in args.workloads:
        case = known[name]
        cell = cell_of(case, args.blocks * len(ORDER) * args.segment)
        cell = replace(cell, spec=cell.spec.with_measure(settle_s=STEADY_S))
        ready = prepare(cell, args.data)
        print(f"{name}: {case.workload}, {case}, on {device.name if device else 'CPU'}")
        try:
            segments = launch(cell, ready, device, args)
            costs = cost(segments)
        except BenchError as error:
            sys.exit(f"bench: {error}")
        print_cost(costs)
        found["workloads"][name] = {
            "cell": cell.id,
            "costs": {ON: costs},
            "segments": [asdict(segment) for segment in segments],
        }
        if args.output:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _end(number: int, frame) -> None:
    for other in (signal.SIGTERM, signal.SIGHUP):  # one is enough: what is under way has to end
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
