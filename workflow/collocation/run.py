"""Run one cell: `python -m workflow.collocation.run --study S --cell ID --spec JSON ... RUN.JSON`.

lock → set the method up → start members → barrier → measure → witness → tear down → write.
Exits 0 whenever run.json was written, whatever its status; an interrupted cell leaves no run.json.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from workflow.collocation import cores, gpu, methods, provenance, steps
from workflow.collocation.conductor import TIMEOUTS, Conductor
from workflow.collocation.lock import device_lock
from workflow.collocation.members import Server
from workflow.collocation.methods.evidence import NotInForce
from workflow.collocation.outcome import Tracked, cell_status
from workflow.collocation.progress import Display
from workflow.collocation.record import CellName, Gpu, MethodEvidence, Rate, Record, Window, write
from workflow.collocation.settings import ConfigError
from workflow.collocation.specs import member_specs, plan_shares

PR_SET_PDEATHSIG = 1
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody wants this to end now."""

    def __init__(self, number: int):
        self.number = number


def main(argv: list[str] | None = None) -> int:
    began = time.monotonic()
    args = _parse(argv)
    _end_with_parent()
    for number in STOPPING:
        signal.signal(number, _interrupt)
    folder = args.output.parent
    try:
        _empty(folder)
        (folder / "log").mkdir()
        display = Display(args.cell, folder / "log" / "conductor.log", args.place, args.left)
        try:
            record = Run(args, folder, display, began).record()
            write(args.output, record)
        finally:
            display.close()
    except Interrupted as interrupted:
        print(f"{args.cell}: interrupted, will run again", file=sys.stderr)
        return 128 + interrupted.number
    except (ConfigError, OSError) as error:
        print(f"{args.cell}: {error}", file=sys.stderr)
        return 1
    return 0


class Run:
    """From a cell's spec to its Record."""

    def __init__(self, args: argparse.Namespace, folder: Path, display: Display, began: float):
        self.args, self.folder, self.display, self.began = args, folder, display, began
        self.spec = json.loads(args.spec)
        self.device = None if args.gpu == "cpu" else gpu.find(args.gpu)
        self.timing: dict[str, float] = {}
        self.fields: dict = {}

    def record(self) -> Record:
        if self.args.deadline and time.time() + self.args.estimate > self.args.deadline:
            self._ended("postponed", "the time budget is used up", None)
        elif reason := methods.refusal(self.spec, self.device):
            self._ended("unsupported", reason, None)
        else:
            self._measure()
        arguments = {**self._frame(), **self.fields}
        record = Record(**arguments)
        self.display.say(_summary(record))
        return record

    def _ended(self, status: str, reason: str | None, phase: str | None) -> None:
        self.fields.update(status=status, reason=reason, phase=phase)

    def _frame(self) -> dict:
        """What every record says, measured or not."""
        scenario, arm, method, replicate = self.args.cell.split("/")
        self.timing["total_s"] = round(time.monotonic() - self.began, 3)
        return {
            "study": self.args.study,
            "cell": CellName(
                id=self.args.cell,
                scenario=scenario,
                arm=arm,
                method=method,
                replicate=int(replicate[1:]),
                attempt=self.args.attempt,
            ),
            "spec": self.spec,
            "method": MethodEvidence(name=method),
            "gpu": Gpu(**self.device.record()) if self.device else None,
            "host": provenance.host(),
            "provenance": provenance.collect(self.device.driver if self.device else None),
            "timing": self.timing,
        }

    def _measure(self) -> None:
        datasets = self._datasets()
        core_sets, flags = cores.plan_cores(
            plan_shares(self.spec), numa=self.device.numa_node if self.device else None
        )
        holder = {"study": self.args.study, "cell": self.args.cell}
        with ExitStack() as stack:
            waiting = time.monotonic()
            stack.enter_context(
                device_lock(self.device.uuid if self.device else "cpu", holder, self._waiting)
            )
            self.timing["lock_wait_s"] = round(time.monotonic() - waiting, 3)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
            before = gpu.state(self.device) if self.device else None
            log = self.folder / "log"
            conductor = None
            try:
                sharing = stack.enter_context(methods.enter(self.spec, self.device, log))
                server = stack.enter_context(
                    Server(log / "server.log", self.args.trainer, threads=len(core_sets[0]))
                )
                conductor = Conductor(
                    server=server,
                    sharing=sharing,
                    specs=member_specs(
                        self.spec,
                        "cuda" if self.device else "cpu",
                        core_sets,
                        [sharing.environment(index) for index in range(len(core_sets))],
                        datasets,
                        scratch,
                    ),
                    measure=self.spec["measure"],
                    log=log,
                    display=self.display,
                    timeouts={**TIMEOUTS, **json.loads(self.args.timeout)},
                )
                conductor.run()
                if conductor.not_in_force:
                    self._ended("failed", conductor.not_in_force, "window")
                else:
                    self._ended(*cell_status(conductor.members))
            except NotInForce as error:
                self._ended("failed", str(error), "setup")
            if conductor:
                self._account(conductor, scratch)
            if self.device:
                self.fields["gpu_state"] = {"before": before, "after": gpu.state(self.device)}
        self.fields["flags"] = flags
        self.fields["data"] = [
            {key: value for key, value in ready.items() if key != "path"}
            for ready in datasets.values()
        ]

    def _waiting(self, holder: dict) -> None:
        who = ", ".join(f"{key} {value}" for key, value in holder.items() if value)
        self.display.say(f"waiting for the {'GPU' if self.device else 'CPU'}, held by {who}")

    def _datasets(self) -> dict[str, dict]:
        """Dataset name → what `python -m models.data prepare` said of it."""
        ready = [json.loads(path.read_text()) for path in self.args.data]
        named = {entry["dataset"]: entry for entry in ready}
        for member in self.spec["members"]:
            if member["dataset"] not in named:
                raise ConfigError(f"--data names no prepared dataset '{member['dataset']}'")
        return named

    def _account(self, conductor: Conductor, scratch: Path) -> None:
        """Members' step times → rates, and the files beside run.json."""
        began = time.monotonic()
        self.timing.update(conductor.timing)
        found, members = {}, []
        for tracked in conductor.members:
            member = tracked.record()
            members.append(member)
            if "stopped" not in tracked.events:  # without it the file may be half of one
                continue
            try:
                arrays = steps.load(scratch / str(tracked.member) / "steps.npz")
            except (OSError, ValueError) as error:
                member.status, member.error = "failed", f"its step times: {error}"
                self._ended("failed", f"member {member.member}: {member.error}", "stop")
                continue
            arrays["first_step"] = tracked.events["warm"]["steps"]
            found[tracked.member] = arrays
            member.loss = steps.losses(arrays)
            member.windows = self._rates(tracked, arrays["end_ns"], conductor.windows)
        self.fields.update(
            members=members,
            windows=conductor.windows,
            method=MethodEvidence(
                name=self.spec["method"],
                verified=_verified(conductor.evidence),
                evidence=conductor.evidence,
            ),
        )
        if conductor.windows and found:
            origin = conductor.windows[0].start_ns
            self.fields["files"] = {
                "steps.parquet": steps.write(self.folder / "steps.parquet", found, origin)
            }
        if self.device:
            counts = [member.sm_count for member in members if member.sm_count]
            self.fields["gpu"] = Gpu(**self.device.record(), sm_count=max(counts, default=None))
        self.timing["write_s"] = round(time.monotonic() - began, 3)

    def _rates(self, tracked: Tracked, end_ns, windows: list[Window]) -> dict[str, Rate]:
        """The member's rate in each window that it was there for."""
        size, rates = tracked.batch_size, {}
        for window in windows:
            if window.name == "epochs":
                rates[window.name] = steps.epochs_rate(tracked.epochs, size)
            elif not (tracked.status == "departed" and window.name == "after"):
                rates[window.name] = steps.rate(end_ns, window.start_ns, window.end_ns, size)
        return rates


def _verified(evidence: dict) -> bool | None:
    """True if every witness was, null if one could not tell or none was asked."""
    answers = [entry.get("verified") for entry in evidence.values()]
    return all(answers) or None if answers else None


def _summary(record: Record) -> str:
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    rates = []
    for window in record.windows:
        inside = [m.windows[window.name] for m in record.members if window.name in m.windows]
        rates.append(f"{window.name} {sum(rate.samples_per_s or 0 for rate in inside):,.0f}")
    return f"completed, samples/s: {', '.join(rates)}; {_breakdown(record.timing)}"


def _breakdown(timing: dict[str, float]) -> str:
    parts = ("lock_wait_s", "build_s", "warm_s", "window_s", "stop_s", "write_s", "total_s")
    return " ".join(f"{part[:-2]} {timing[part]:.1f} s" for part in parts if part in timing)


def _empty(folder: Path) -> None:
    """A folder without run.json is nothing: what an interrupted attempt left there goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _end_with_parent() -> None:
    """If Snakemake is killed, this process gets SIGTERM and cleans up."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame) -> None:
    for stopping in STOPPING:  # one is enough: the teardown is bounded and not to be disturbed
        signal.signal(stopping, signal.SIG_IGN)
    raise Interrupted(number)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("output", type=Path, help="the cell's run.json, in a folder of its own")
    add("--study", required=True)
    add("--cell", required=True, help="scenario/arm/method/r<replicate>")
    add("--attempt", type=int, default=1)
    add("--spec", required=True, help="the cell's spec as JSON, as the plan has it")
    add("--data", type=Path, nargs="*", default=[], help="what 'models.data prepare' wrote")
    add("--gpu", default="auto", help="index, UUID, 'auto' or 'cpu'")
    add("--trainer", default="models.train", help="module that members run")
    add("--timeout", default="{}", help="seconds by phase as JSON, over the defaults")
    add("--place", default="", help="place in the run, such as 3/20")
    add("--left", type=float, default=0, help="seconds that the cells after this one will take")
    add("--deadline", type=float, default=0, help="Unix time at which the time budget ends")
    add("--estimate", type=float, default=0, help="seconds that this cell will take")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
