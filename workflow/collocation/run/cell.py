"""Measure one cell: `python -m workflow.collocation.run.cell JOB.JSON`, a file as in run/task.py.

Locks the device, sets the method up, starts the members, measures, and writes run.json.
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
from workflow.collocation.gpu.nvml_subprocess import DriverSilent
from workflow.collocation.process_lifetime import END_SIGNALS, MEMBERS, end_with_parent
from workflow.collocation.record import provenance
from workflow.collocation.record.run_json import (
    FAULTS,
    CellName,
    GpuRecord,
    MethodEvidence,
    Record,
    write_record,
)
from workflow.collocation.record.source_digest import code_digest
from workflow.collocation.record.values import Telemetry
from workflow.collocation.run import environment
from workflow.collocation.run.conductor import TIMEOUTS, Conductor
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.loader import SharedLoader
from workflow.collocation.run.outcome import log_of, verified
from workflow.collocation.run.progress import Display, summary
from workflow.collocation.run.task import Task, member_specs
from workflow.collocation.run.waiting import Patience, Postponed, device_of, refusal
from workflow.collocation.sharing.evidence import GpuBusy, Unsupported, owner, require_free
from workflow.collocation.study.errors import ConfigError, NotInForce
from workflow.collocation.study.regular_files import read_json
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.watch import Watch

MIN_GRACT = 0.005  # a script with less activity on its GPU computes elsewhere
MAX_ATTEMPTS = 4  # to measure a cell, if other processes come to the GPU each time


class Interrupted(BaseException):
    """A signal asked this process to end; its argument is the signal's number."""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="the job's file, as results/<study>/jobs holds them")
    path = parser.parse_args(argv).job
    end_with_parent(os.getppid(), signal.SIGTERM)  # if Snakemake's job ends: to clean up
    for number in END_SIGNALS:
        signal.signal(number, _interrupt)
    # The start of Python and the imports are part of what the cell takes.
    began = time.monotonic() - time.process_time()
    cell, written = str(path), False
    try:
        task = Task.read(path)
        cell, folder = task.cell, task.output.parent
        if task.output.exists():
            raise ConfigError(f"is measured: {task.output}; remove it to have it measured again")
        if folder.exists():  # an interrupted attempt: without run.json it does not count
            shutil.rmtree(folder)
        log = folder / "log"
        log.mkdir(parents=True)
        display = Display(cell, log / "conductor.log", task.place, task.left_s, task.estimate_s)
        try:
            display.show(lambda: "starting")
            write_record(task.output, CellRun(task, display, began).record())
            # From here on the exit code is 0: Snakemake removes the record of a job that fails. It
            # also removes a record older than its input, as after a clock was set back, so the
            # input is dated 2001 (a zip file holds no time before 1980).
            written = True
            for ready in task.data:
                os.utime(ready, (1e9, 1e9))
        finally:
            display.close()
    except Interrupted as interrupted:
        if not written:
            print(f"{cell}: interrupted, will run again", file=sys.stderr)
            return 128 + interrupted.args[0]
    except (ConfigError, NotInForce, OSError) as error:
        print(f"{cell}: {error}", file=sys.stderr)
        return 0 if written else 1
    return 0


class CellRun:
    """Makes the Record of one cell, as its job file asks.

    began: when the cell began, on the monotonic clock.
    """

    def __init__(self, task: Task, display: Display, began: float):
        self.task, self.folder, self.display = task, task.output.parent, display
        self.began, self.spec = began, task.spec
        self.device, self.device_problem = device_of(task)
        self.patience = Patience(task, display, self.device)
        host = provenance.describe_host(
            cores.usable(), cores.quota()
        )  # before cores are restricted
        self.max_cpus = cores.keep_to_share(self.device)
        self.timing: dict[str, float] = {}
        scenario, implementation, method, replicate = task.cell.split("/")
        driver = self.device.driver if self.device else None
        # What is known before the measurement, and stays if that is repeated.
        self.base_fields = {
            "study": task.study,
            "cell": CellName(
                id=task.cell,
                attempt=task.attempt,
                scenario=scenario,
                implementation=implementation,
                method=method,
                replicate=replicate[1:],
            ),
            "spec": self.spec.to_json(),
            "method": MethodEvidence(name=method),
            "gpu": self.device and GpuRecord.model_validate(self.device, from_attributes=True),
            "host": host,
            "provenance": provenance.collect_provenance(driver, code_digest(), task.session)
            | {"environment": {"dropped": environment.dropped()}},
            "timing": self.timing,
        }
        self.fields = self.base_fields | {"files": {}}

    def record(self) -> Record:
        """Measure the cell, or find out why it cannot be measured.

        Raises ConfigError or OSError for what is no fault of the cell, and Interrupted.
        """
        try:
            self._measure_or_refuse()
        except Postponed as postponed:
            self._discard_measurement()
            self._set_outcome("postponed", str(postponed))
        except (ConfigError, OSError):
            raise
        except Exception as error:
            self.display.say(traceback.format_exc(), loud=False)
            if interrupted := _interruption_of(error):
                raise interrupted from None
            self._set_outcome_of(error)
        self.timing["total_s"] = round(time.monotonic() - self.began, 3)
        record = Record(**self.fields)
        # Why a run has given up is said once, when it ends, and not by each of its cells.
        self.display.say(summary(record), loud=self.task.ended is None)
        if record.status in FAULTS:
            self.display.say(f"log: {log_of(self.folder, record.reason)}")
        return record

    def _measure_or_refuse(self) -> None:
        """Measure, or note why the cell is unsupported. Raises Postponed."""
        try:
            if self.device_problem:
                self.patience.give_up(self.device_problem)
            if reason := refusal(self.spec, self.device):
                self._set_outcome("unsupported", reason)
            else:
                self._measure()
        except DriverSilent as silent:  # a driver that does not answer would not answer any cell
            if "members" in self.fields or not self.task.needs_gpu:
                raise
            self.patience.give_up(str(silent))

    def _set_outcome(self, status: str, reason: str | None, phase: str | None = None) -> None:
        self.fields.update(status=status, reason=reason, phase=phase)

    def _set_outcome_of(self, error: Exception) -> None:
        """Note an error of the set-up, or of the teardown after the measurement.

        What was measured stays in the record, but a cell that did not end well is no result.
        """
        is_expected = isinstance(error, NotInForce | Unsupported)
        reason = str(error) if is_expected else one_line(error)
        if "members" not in self.fields:
            status = "unsupported" if isinstance(error, Unsupported) else "failed"
            self._set_outcome(status, reason, "setup")
            return
        status = self.fields["status"] if self.fields["status"] in FAULTS else "failed"
        if self.fields["reason"]:
            reason = f"{self.fields['reason']}; {reason}"
        self._set_outcome(status, reason, self.fields["phase"] or "stop")

    def _measure(self) -> None:
        """Lock the device, and measure while no other process uses it. Raises Postponed."""
        self.patience.check()
        holder = {
            "pid": os.getpid(),
            "user": psutil.Process().username(),
            "study": self.task.study,
            "cell": self.task.cell,
        }
        lock_key = self.device.uuid if self.device else "cpu"
        began = time.monotonic()
        with device_lock(lock_key, holder, self.patience.for_lock) as lock:
            for _ in range(MAX_ATTEMPTS):
                self.timing["lock_wait_s"] = round(time.monotonic() - began, 3)
                self.patience.check()
                try:
                    with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                        self._collocate(Path(scratch), lock)
                    self._require_free_gpu_after_fault()
                    return
                except GpuBusy as busy:
                    self._discard_measurement()
                    self.patience.for_free_gpu(busy)
                    reason = str(busy)
        raise Postponed(reason)

    def _require_free_gpu_after_fault(self) -> None:
        """After a fault, raise GpuBusy if others use the GPU too: then the fault may be theirs.

        Raises Postponed if the GPU is lost.
        """
        if self.device is None or any(map(psutil.pid_exists, MEMBERS)):
            return  # some of our members did not end, and may be on the GPU
        if self.fields["status"] in (*FAULTS, "out_of_memory"):
            _, problem = device_of(self.task)
            if problem:
                self.patience.give_up(problem)
            require_free(self.device)

    def _discard_measurement(self) -> None:
        for name in self.fields["files"]:
            (self.folder / name).unlink()
        for name in self.timing.keys() - {"lock_wait_s"}:
            del self.timing[name]
        self.fields = self.base_fields | {"files": {}}

    def _collocate(self, scratch: Path, lock: int) -> None:
        """Set up method, sampler and server, run the members, and note the results.

        lock: descriptor of the device's lock, which members keep open. Raises GpuBusy.
        """
        datasets = self._datasets()
        core_sets, self.fields["flags"] = cores.plan_conditions(
            self.spec.shares(), self.device and self.device.numa_node, self.max_cpus
        )
        log, timeouts = self.folder / "log", TIMEOUTS | self.task.timeout
        with ExitStack() as stack:
            try:
                sharing = stack.enter_context(methods.enter(self.spec, self.device, log))
            except DriverSilent:
                raise
            except (NotInForce, Unsupported) as error:
                self._set_outcome_of(error)
                return
            sampler_config = {
                "gpu": self.device and self.device.uuid,
                "cores": cores.spare(core_sets),
                "entities": ["gpu", *sharing.instances()] if self.device else [],
                **self.task.telemetry.model_dump(),
            }
            watch = stack.enter_context(Watch(scratch, log / "sampler.log", sampler_config))
            task = self.task
            server = ForkServerClient(
                log / "server.log", task.trainer, task.preloaded, timeouts["build"], lock
            )
            stack.enter_context(server)
            # Arrow is imported here, while the server imports torch.
            import workflow.collocation.telemetry.files  # noqa: F401

            specs = member_specs(
                self.spec,
                "cuda" if self.device else "cpu",
                core_sets,
                [sharing.environment(member) for member in range(len(core_sets))],
                datasets,
                scratch,
                self.base_fields["cell"].replicate,
            )
            conductor = Conductor(
                server=server,
                sharing=sharing,
                specs=specs,
                measure=self.spec.measure,
                log=log,
                display=self.display,
                timeouts=timeouts,
                watch=watch,
                loader=SharedLoader(specs),
            )
            watch.see_idle()
            conductor.run()
            self.fields["provenance"]["server"] = server.origin
            self.timing |= {"server_s": round(server.import_s, 3)} | conductor.timing
            self._set_outcome(*conductor.outcome())
            if conductor.no_second_context:
                self.fields["flags"].append("no_second_context")
                self.fields["host"]["no_second_context"] = conductor.no_second_context
            self._account_steps(conductor, scratch)
            self._account_telemetry(conductor)

    def _datasets(self) -> dict[str, dict]:
        """The datasets that the cell's jobs read, by name; notes them in the record."""
        names = {member.job.dataset for member in self.spec.members}
        datasets = {}
        for path in self.task.data:
            dataset = read_json(path)
            if dataset["dataset"] in names:
                datasets[dataset["dataset"]] = dataset
        self.fields["data"] = [
            {key: value for key, value in dataset.items() if key != "path"}
            for dataset in datasets.values()
        ]
        return datasets

    def _account_steps(self, conductor: Conductor, scratch: Path) -> None:
        """Note the members, their rates by their step times, and the files of these."""
        from workflow.collocation.run.rates import StepRecords

        began = time.monotonic()
        members = [tracked.record() for tracked in conductor.members]
        evidence = conductor.evidence
        self.fields.update(
            members=members,
            windows=conductor.windows,
            method=MethodEvidence(
                name=self.spec.method, verified=verified(evidence), evidence=evidence
            ),
        )
        records = StepRecords(conductor.windows, self.spec.measure.drop_s)
        jobs = self.base_fields["spec"]["members"]
        for tracked, member in zip(conductor.members, members, strict=True):
            slo_ms = jobs[tracked.member].get("slo_ms")
            records.add(tracked, member, slo_ms, scratch / str(tracked.member))
        self.fields["flags"] += sorted(records.flags)
        fault = records.fault([member.workload for member in members])
        if fault and self.fields["status"] == "completed":
            self._set_outcome("failed", fault, "window")
        self.fields["files"] |= records.write(self.folder)
        self.timing["write_s"] = round(time.monotonic() - began, 3)

    def _account_telemetry(self, conductor: Conductor) -> None:
        """Note what the sampler saw, and write its series to files beside run.json."""
        began = time.monotonic()
        sharing, members = conductor.sharing, conductor.members
        own_pids = {member.pid for member in members if member.pid}
        facts = {"has_gpu": self.device is not None, "owner": owner, "own": own_pids}
        if self.device:
            facts |= {
                "sm_count": self.device.sm_count,
                "instances": sharing.instances(),
                "seats": {member.member: sharing.entity_of(member.member) for member in members},
                "own": own_pids | sharing.nvml_pids(),
            }
        self.fields["telemetry"], flags, files = conductor.watch.account(
            self.folder, conductor.windows, partial(self.display.say, loud=False), **facts
        )
        self.fields["flags"] += flags
        self.fields["files"] |= files
        is_script = self.spec.members[0].job.kind == "command"
        reason = gpu_unused(self.fields["telemetry"]) if is_script else None
        if reason and self.fields["status"] == "completed":
            self._set_outcome("failed", reason, "window")
        self.timing["telemetry_s"] = round(time.monotonic() - began, 3)


def gpu_unused(telemetry: Telemetry) -> str | None:
    """A sentence if a script trained without its GPU: no window has activity on it; else None."""
    activity = [
        window.entities.get("gpu", {}).get("gract") for window in telemetry.windows.values()
    ]
    if not activity or None in activity or max(activity) >= MIN_GRACT:
        return None
    return f"trains, and not on its GPU: GRACT {max(activity):.3f}"


def _interruption_of(error: BaseException | None) -> Interrupted | None:
    """The interruption during whose handling an error was raised, if there was one."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error


def _interrupt(number: int, frame) -> None:
    # Further signals are ignored: the teardown is bounded in time and must not be disturbed. Not
    # by SIG_IGN, with which Python prints a traceback if two signals come together.
    for end_signal in END_SIGNALS:
        signal.signal(end_signal, lambda *_: None)
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
