"""Run one cell: `python -m workflow.collocation.run.cell JOB.JSON`, a file as in run/task.py.

lock → set the method up → start members → barrier → measure → witness → tear down → write.
Exits 0 whenever run.json was written, whatever its status; an interrupted cell leaves no run.json.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import cores
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.gpu.nvml_subprocess import Silent
from workflow.collocation.process_lifetime import ENDING, MEMBERS, end_with_parent
from workflow.collocation.record import provenance
from workflow.collocation.record.run_json import (
    FAULTS,
    CellName,
    Gpu,
    MethodEvidence,
    Record,
    write,
)
from workflow.collocation.record.source_digest import code
from workflow.collocation.record.values import Telemetry
from workflow.collocation.run import environment
from workflow.collocation.run.conductor import TIMEOUTS, Conductor
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.loader import Loader
from workflow.collocation.run.outcome import log_of, verified
from workflow.collocation.run.progress import Display, summary
from workflow.collocation.run.task import Task, member_specs
from workflow.collocation.run.waiting import Patience, Postponed, device_of, refusal
from workflow.collocation.sharing.evidence import GpuBusy, Unsupported, owner, require_free
from workflow.collocation.study.errors import ConfigError, NotInForce
from workflow.collocation.study.regular_files import read_json
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.watch import Watch

IDLE = 0.005  # GRACT below which a script computes elsewhere
TRIES = 4  # at a cell, while others come to the card again and again


class Interrupted(BaseException):
    """Somebody wants this to end now: the signal's number."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="the job's file, as results/<study>/jobs holds them")
    path = parser.parse_args(argv).job
    end_with_parent(os.getppid(), signal.SIGTERM)  # of Snakemake's, to clean up
    for number in ENDING:
        signal.signal(number, _interrupt)
    # Python's start and our imports are part of what the cell takes.
    began = time.monotonic() - time.process_time()
    name, written = str(path), False
    try:
        task = Task.read(path)
        name, folder = task.cell, task.output.parent
        if task.output.exists():
            raise ConfigError(f"is measured: {task.output}; remove it to have it measured again")
        if folder.exists():  # without run.json it is nothing: left by an interrupted attempt
            shutil.rmtree(folder)
        (folder / "log").mkdir(parents=True)
        place = task.place, task.left_s, task.estimate_s
        display = Display(name, folder / "log" / "conductor.log", *place)
        try:
            display.show(lambda: "starting")
            write(task.output, Run(task, display, began).record())
            written = True  # whatever comes now: Snakemake removes the record of a job that fails
            # Or one that is older than its input, which it can be where the clock was set back.
            for ready in task.data:
                os.utime(ready, (1e9, 1e9))  # in 2001: a zip holds no time before 1980
        finally:
            display.close()
    except Interrupted as interrupted:
        if not written:
            print(f"{name}: interrupted, will run again", file=sys.stderr)
            return 128 + interrupted.args[0]
    except (ConfigError, NotInForce, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 0 if written else 1
    return 0


class Run:
    """From a job's file to its Record. began: when, on the monotonic clock."""

    def __init__(self, task: Task, display: Display, began: float):
        self.task, self.folder, self.display = task, task.output.parent, display
        self.began, self.spec = began, task.spec
        self.device, self.lost = device_of(task)
        self.patience = Patience(task, display, self.device)
        host = provenance.host(cores.usable(), cores.quota())  # of all cores
        self.most = cores.keep_to_share(self.device)
        self.timing: dict[str, float] = {}
        scenario, implementation, method, replicate = task.cell.split("/")
        name = {
            "scenario": scenario,
            "implementation": implementation,
            "method": method,
            "replicate": replicate[1:],
        }
        driver = self.device.driver if self.device else None
        self.known = {
            "study": task.study,
            "cell": CellName(id=task.cell, attempt=task.attempt, **name),
            "spec": self.spec.to_json(),
            "method": MethodEvidence(name=method),
            "gpu": self.device and Gpu.model_validate(self.device, from_attributes=True),
            "host": host,
            "provenance": provenance.collect(driver, code(), task.session)
            | {"environment": {"dropped": environment.dropped()}},
            "timing": self.timing,
        }
        self.fields = self.known | {"files": {}}

    def record(self) -> Record:
        try:
            self._answer()
        except Postponed as postponed:
            self._forget()
            self._ended("postponed", str(postponed))
        except (ConfigError, OSError):
            raise  # nothing is wrong with the cell: the set-up, or a disk
        except Exception as error:
            self.display.say(traceback.format_exc(), loud=False)
            if interrupted := _interrupted(error):
                raise interrupted from None
            self._broke(error)
        self.timing["total_s"] = round(time.monotonic() - self.began, 3)
        record = Record(**self.fields)
        # Why a run has given up it says itself, once, when it ends.
        self.display.say(summary(record), loud=self.task.ended is None)
        if record.status in FAULTS:
            self.display.say(f"log: {log_of(self.folder, record.reason)}")
        return record

    def _answer(self) -> None:
        """Measure, or say why it cannot run here. Raises Postponed."""
        try:
            if self.lost:
                self.patience.give_up(self.lost)
            if reason := refusal(self.spec, self.device):
                self._ended("unsupported", reason)
            else:
                self._measure()
        except Silent as silent:  # a driver that answers no cell
            if "members" in self.fields or not self.task.needs_gpu:
                raise
            self.patience.give_up(str(silent))

    def _ended(self, status: str, reason: str | None, phase: str | None = None) -> None:
        self.fields.update(status=status, reason=reason, phase=phase)

    def _broke(self, error: Exception) -> None:
        """An error that is no member's: of the set-up, or after the measurement, of its end.

        What was measured stays in the record, but a cell that did not end well is no result.
        """
        said = str(error) if isinstance(error, NotInForce | Unsupported) else one_line(error)
        if "members" not in self.fields:
            status = "unsupported" if isinstance(error, Unsupported) else "failed"
            self._ended(status, said, "setup")
        else:
            status = self.fields["status"] if self.fields["status"] in FAULTS else "failed"
            reason = "; ".join(filter(None, (self.fields["reason"], said)))
            self._ended(status, reason, self.fields["phase"] or "stop")

    def _measure(self) -> None:
        """Hold the device, and collocate while nobody else has it. Raises Postponed."""
        self.patience.check()
        own = {"pid": os.getpid(), "user": psutil.Process().username()}
        holder = own | {"study": self.task.study, "cell": self.task.cell}
        key = self.device.uuid if self.device else "cpu"
        began = time.monotonic()
        with device_lock(key, holder, self.patience.for_lock) as lock:
            for _ in range(TRIES):
                self.timing["lock_wait_s"] = round(time.monotonic() - began, 3)
                self.patience.check()
                try:
                    with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                        self._collocate(Path(scratch), lock)
                    return self._require_own_card()
                except GpuBusy as company:
                    self._forget()
                    self.patience.for_company(company)
                    why = str(company)
        raise Postponed(why)

    def _require_own_card(self) -> None:
        """After a fault: raises GpuBusy if others had the card, too, for then nothing of it counts;
        Postponed if the card is lost.
        """
        if self.device is None or any(map(psutil.pid_exists, MEMBERS)):
            return  # some of our own did not end, and may be on it
        if self.fields["status"] in (*FAULTS, "out_of_memory"):
            if lost := device_of(self.task)[1]:
                self.patience.give_up(lost)
            require_free(self.device)

    def _forget(self) -> None:
        """What a try has found."""
        for name in self.fields["files"]:
            (self.folder / name).unlink()
        for name in self.timing.keys() - {"lock_wait_s"}:
            del self.timing[name]
        self.fields = self.known | {"files": {}}

    def _collocate(self, scratch: Path, lock: int) -> None:
        """Set all up, run the members, and note what came of it. Raises GpuBusy.

        lock: the descriptor that holds the device, for members to keep open.
        """
        needed = {member.job.dataset for member in self.spec.members}
        ready = [read_json(path) for path in self.task.data]
        datasets = {entry["dataset"]: entry for entry in ready if entry["dataset"] in needed}
        told = [{k: of[k] for k in of if k != "path"} for of in datasets.values()]
        self.fields["data"] = told
        core_sets, self.fields["flags"] = cores.plan_conditions(
            self.spec.shares(), self.device and self.device.numa_node, self.most
        )
        log, timeouts = self.folder / "log", TIMEOUTS | self.task.timeout
        with ExitStack() as stack:
            try:
                sharing = stack.enter_context(methods.enter(self.spec, self.device, log))
            except (NotInForce, Unsupported) as error:
                if isinstance(error, Silent):
                    raise
                self._broke(error)
                return
            about = {"gpu": self.device and self.device.uuid, "cores": cores.spare(core_sets)}
            about["entities"] = ["gpu", *sharing.instances()] if self.device else []
            about |= self.task.telemetry.model_dump()
            watch = stack.enter_context(Watch(scratch, log / "sampler.log", about))
            told = self.task.trainer, self.task.preloaded, timeouts["build"], lock
            server = stack.enter_context(ForkServerClient(log / "server.log", *told))
            import workflow.collocation.telemetry.files  # noqa: F401 (Arrow, as torch is imported)

            specs = member_specs(
                self.spec,
                "cuda" if self.device else "cpu",
                core_sets,
                [sharing.environment(index) for index in range(len(core_sets))],
                datasets,
                scratch,
                self.known["cell"].replicate,
            )
            conductor = Conductor(
                *(server, sharing, specs, self.spec.measure, log, self.display, timeouts),
                *(watch, Loader(specs)),
            )
            watch.see_idle()
            conductor.run()
            self.fields["provenance"]["server"] = server.origin
            self.timing |= {"server_s": round(server.import_s, 3)} | conductor.timing
            self._ended(*conductor.outcome())
            if conductor.no_second_context:
                self.fields["flags"].append("no_second_context")
                self.fields["host"]["no_second_context"] = conductor.no_second_context
            self._account(conductor, scratch)

    def _account(self, conductor: Conductor, scratch: Path) -> None:
        """Members' step times → rates, what the sampler saw, and the files beside run.json."""
        from workflow.collocation.record import latency
        from workflow.collocation.record import step_times as steps

        began = time.monotonic()
        found, requests, evidence = {}, {}, conductor.evidence
        flags, paused = set(), {}
        members = [tracked.record() for tracked in conductor.members]
        self.fields.update(
            members=members,
            windows=conductor.windows,
            method=MethodEvidence(
                name=self.spec.method, verified=verified(evidence), evidence=evidence
            ),
        )
        for tracked, member in zip(conductor.members, members, strict=True):
            # Without `stopped` the file may be half of one; without `warm` it holds no step.
            if not tracked.events.keys() >= {"warm", "stopped"}:
                continue
            try:
                arrays = steps.load(scratch / str(tracked.member) / "steps.npz")
            except (OSError, ValueError) as error:
                raise RuntimeError(f"member {tracked.member}: no steps.npz: {error}") from error
            if (path := scratch / str(tracked.member) / "requests.npz").exists():
                requests[tracked.member] = steps.load(path)
            arrays["first_step"] = tracked.events["warm"]["steps"]
            found[tracked.member] = arrays
            member.loss = steps.losses(arrays)
            there = conductor.windows[: 1 if tracked.status == "departed" else None]
            end_ns, drop_s = arrays["end_ns"], self.spec.measure.drop_s
            for window in [window for window in there if window.has(tracked.member)]:
                rate = steps.in_window(window, end_ns, tracked.batch_size, drop_s)
                if own := requests.get(tracked.member):
                    # It does what arrives: that it rests, or more comes later, is nothing wrong.
                    slo = self.known["spec"]["members"][tracked.member].get("slo_ms")
                    rate.latency = latency.of_window(own, window, slo)
                    rate.drift = rate.drift_error = None
                else:
                    of = window, end_ns, rate.slices
                    flags.add(steps.flag(*of))
                    paused[member.member, window.name] = steps.pauses(*of)
                rate.distinct_samples = steps.distinct(window, arrays)
                member.windows[window.name] = rate
        self.fields["flags"] += sorted(flags - {None})
        if ceased := steps.ceased(conductor.windows, paused, [m.workload for m in members]):
            member, window = ceased
            why = f"member {member} ({members[member].workload}), window: no step in the last half"
            if self.fields["status"] == "completed":
                self._ended("failed", f"{why} of '{window}'", "window")
        if conductor.windows and found:
            path, origin = self.folder / "steps.parquet", conductor.windows[0].start_ns
            self.fields["files"][path.name] = steps.write(path, found, origin)
            if requests:
                written = latency.write(self.folder / latency.FILE, requests)
                self.fields["files"][latency.FILE] = written
        self.timing["write_s"] = round(time.monotonic() - began, 3)

        began = time.monotonic()
        sharing, own = conductor.sharing, {m.pid for m in conductor.members if m.pid}
        about = {"has_gpu": self.device is not None, "owner": owner, "own": own}
        if self.device:
            about |= {"sm_count": self.device.sm_count, "instances": sharing.instances()}
            about["seats"] = {m.member: sharing.entity(m.member) for m in conductor.members}
            about["own"] = own | sharing.own_pids()
        self.fields["telemetry"], flags, files = conductor.watch.account(
            self.folder, conductor.windows, partial(self.display.say, loud=False), **about
        )
        self.fields["flags"] += flags
        self.fields["files"] |= files
        script = self.spec.members[0].job.kind == "command" and self.fields["status"] == "completed"
        if script and (why := elsewhere(self.fields["telemetry"])):
            self._ended("failed", why, "window")
        self.timing["telemetry_s"] = round(time.monotonic() - began, 3)


def elsewhere(telemetry: Telemetry) -> str | None:
    """Why a script that trained did not do so on its GPU: no window has any activity of it."""
    busy = [of.entities.get("gpu", {}).get("gract") for of in telemetry.windows.values()]
    if not busy or None in busy or max(busy) >= IDLE:
        return None
    return f"trains, and not on its GPU: GRACT {max(busy):.3f}"


def _interrupted(error: BaseException | None) -> Interrupted | None:
    """The interruption that an error of the way out came on top of, if there was one."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error


def _interrupt(number: int, frame) -> None:
    for stopping in ENDING:  # one is enough: the teardown is bounded and not to be disturbed
        # Not SIG_IGN: Python prints a traceback if this one came with another.
        signal.signal(stopping, lambda *_: None)
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
