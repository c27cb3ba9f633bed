"""The supervisor of one GPU: starts runs in its slots, watches them, and records their ends."""

import json
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import BinaryIO

import psutil

from workflow.collocation.gpu import Device, nvml_subprocess
from workflow.collocation.gpu.cores import keep_to_share, plan_cores, topology, usable
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.process_lifetime import (
    END_SIGNALS,
    adopt_orphans,
    end_with_parent,
    tree_pids,
)
from workflow.collocation.sharing.evidence import (
    NO_DAEMON,
    PIPE_FOLDER,
    GpuBusy,
    NotInForce,
    require_free,
)
from workflow.collocation.sweep import keeper
from workflow.collocation.sweep.admission import Admission, Gain, recent_activity
from workflow.collocation.sweep.journal import FOLDER_VARIABLE, LOG, RUN_VARIABLE, Claim, Sweep
from workflow.collocation.sweep.mps_watch import MpsWatch
from workflow.collocation.sweep.record import TAIL_LINES, Attempt, End, conclude, timestamp

POLL_S, SAMPLE_S = 0.5, 2.0
MOST_OF_ANY_SIZE = 8  # slots where runs are admitted by what they show
TAIL_BYTES = 1 << 16
MIB = 2**20
MPS, SEPARATE = "mps", "separate"


@dataclass(frozen=True)
class Sharing:
    """How runs share a GPU. slots: how many at once, None for as many as have room."""

    method: str
    slots: int | None
    gain: Gain


class Stopped(Exception):
    """This process was asked to end."""


@dataclass(eq=False)
class Running:
    """A run whose keeper lives. report: what the keeper said. lock_begin: of its log."""

    claim: Claim
    keeper: subprocess.Popen
    log_begin: int
    started_s: float
    output: bytes = b""
    report: dict = field(default_factory=dict)

    @property
    def attempt(self) -> Attempt:
        return self.claim.run.attempts[-1]

    def read(self) -> bool:
        """Take in what the keeper prints; whether it has ended."""
        news = os.read(self.keeper.stdout.fileno(), TAIL_BYTES)
        *lines, self.output = (self.output + news).split(b"\n")
        for line in lines:
            self.report |= json.loads(line)
        return not news

    def tail(self) -> tuple[str, ...]:
        """The newest lines of this attempt's output, without empty ones."""
        with (self.claim.folder / LOG).open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_begin, end - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return tuple(line.strip() for line in lines if line.strip())[-TAIL_LINES:]


def supervise(
    sweep: Sweep, device: Device | None, sharing: Sharing, report: Connection, starter: int
) -> None:
    """Work off a sweep on one device, as a process of its own that process `starter` forked.

    report: takes a sentence where the work cannot begin or has to wait, "" once it has begun. Ends
    when no run is left that nobody has; at a signal or the starter's end, with all that runs.
    """
    os.setsid()
    supervisor = Supervisor(sweep, device, sharing)
    for number in END_SIGNALS:
        signal.signal(number, supervisor.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the starter
    end_with_parent(starter, signal.SIGTERM)
    adopt_orphans()
    try:
        supervisor.work(report.send)
    except (GpuBusy, NotInForce, OSError, ValueError) as error:
        report.send(str(error))
        sys.exit(1)
    except Stopped:
        pass


class Supervisor:
    """Has the device, its slots with their CPU cores, and the runs in them."""

    def __init__(self, sweep: Sweep, device: Device | None, sharing: Sharing):
        self.sweep, self.device, self.sharing = sweep, device, sharing
        self.running: list[Running] = []
        self.mps: MpsWatch | None = None
        self.stopping = False
        self.sampled_s = 0.0
        self.admission = None if sharing.slots else Admission(sharing.method, sharing.gain)
        slots = sharing.slots or MOST_OF_ANY_SIZE
        numa = device.numa_node if device else None
        limit = keep_to_share(device) or usable()
        self.cores, _ = plan_cores([slots] * slots, topology(), numa, limit)

    def stop(self, *_) -> None:
        self.stopping = True

    def work(self, say: Callable[[str], None]) -> None:
        holder = {"pid": os.getpid(), "user": psutil.Process().username()}
        holder["sweep"] = str(self.sweep.folder)

        def wait(other: dict) -> None:
            names = ", ".join(f"{key} {value}" for key, value in other.items())
            say(f"waits: the {'GPU' if self.device else 'CPU'} is held by {names}")
            if self.stopping:
                raise Stopped

        key = self.device.uuid if self.device else "cpu"
        with device_lock(key, holder, wait) as self.lock, self._shared():
            say("")
            try:
                while not self.stopping:
                    self._start_runs()
                    if not self.running:
                        return
                    self._wait()
                    self._sample()
            finally:
                self._end_runs()

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """The method, from its setup to its end. Raises GpuBusy, NotInForce."""
        if self.device is None:
            yield
            return
        MpsWatch.end_remains()
        require_free(self.device, "a sweep")
        if self.sharing.method != MPS:
            yield
            return
        self.mps = MpsWatch(self.device.uuid, self.sweep.folder / f"mps-{self.device.uuid}")
        try:
            self.mps.start()
            yield
        finally:
            self.mps.daemon.end()

    # -- starts -------------------------------------------------------------------------------

    def _start_runs(self) -> None:
        if self.mps:
            self.mps.revive()
        total_mb = self.device and (self.device.memory_bytes or 0) / MIB
        while free := self._free_slots():
            now_s, count = time.monotonic(), len(self.running)
            if self.admission and not self.admission.admits(now_s, count, total_mb):
                return
            claim = self.sweep.claim_next(len(free), len(self.cores))
            if claim is None:
                return
            self._start(claim, free[: claim.run.wanted])

    def _free_slots(self) -> list[int]:
        taken = {slot for running in self.running for slot in running.attempt.slots}
        return [slot for slot in range(len(self.cores)) if slot not in taken]

    def _start(self, claim: Claim, slots: list[int]) -> None:
        cores = sorted({core for slot in slots for core in self.cores[slot]})
        gpu = self.device.uuid if self.device else "cpu"
        place = {"session": self.sweep.session, "host": platform.node(), "gpu": gpu}
        place |= {"method": self.sharing.method, "slots": slots, "cores": cores}
        attempt = Attempt(**place, wanted=claim.run.wanted, start=timestamp())
        claim.run.attempts.append(attempt)
        claim.write()
        variables = self._variables(claim, cores)
        task = {"command": claim.run.command, "cores": cores, "environment": variables}
        with (claim.folder / LOG).open("ab") as log:
            begin = log.tell()
            try:
                process = self._start_keeper(claim, task, log)
            except OSError as error:  # such as a command that is too long
                conclude(claim.run, End(error=str(error)), self.admission is not None)
                claim.write()
                claim.release()
                return
        self.running.append(Running(claim, process, begin, time.monotonic()))
        if len(self.running) > 1:
            for running in self.running:
                running.attempt.shared = True
        if self.admission:
            self.admission.started(claim.run.run, time.monotonic())

    def _start_keeper(self, claim: Claim, task: dict, log: BinaryIO) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", keeper.PROGRAM, json.dumps(task)],
            cwd=self.sweep.working,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(self.lock, claim.descriptor, self.sweep.descriptor),
            start_new_session=True,
        )

    def _variables(self, claim: Claim, cores: list[int]) -> dict[str, str | None]:
        """What a run's environment has beside the user's; None for a variable that it lacks."""
        variables: dict[str, str | None] = {}
        for name in os.environ:  # a limit of the user's shell would silently hold for all
            if name.startswith("CUDA_MPS_"):
                variables[name] = None
        if self.mps:
            variables |= self.mps.daemon.environment
        else:
            variables["CUDA_VISIBLE_DEVICES"] = self.device.uuid if self.device else ""
            variables[PIPE_FOLDER] = NO_DAEMON
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(len(cores)))
        folder = str(claim.folder)
        return variables | {RUN_VARIABLE: str(claim.run.run), FOLDER_VARIABLE: folder}

    # -- what runs ----------------------------------------------------------------------------

    def _wait(self) -> None:
        by_output = {running.keeper.stdout: running for running in self.running}
        readable, _, _ = select.select([*by_output], [], [], POLL_S)
        for output in readable:
            running = by_output[output]
            has_ended = running.read()
            if running.attempt.pid is None and "pid" in running.report:
                running.attempt.pid = running.report["pid"]
                running.claim.write()
            if has_ended:
                self._finish(running)

    def _sample(self) -> None:
        """Read memory, proof of MPS and activity, every SAMPLE_S."""
        now_s = time.monotonic()
        if self.device is None or now_s - self.sampled_s < SAMPLE_S:
            return
        self.sampled_s = now_s
        trees = tree_pids(running.keeper.pid for running in self.running)
        with suppress(NotInForce):  # a driver or a daemon that does not answer costs the reading
            by_pid = self.device.process_memory()
            of_runs = {}
            for running in self.running:
                used = sum(by_pid.get(pid, 0) for pid in trees[running.keeper.pid]) / MIB
                if used:
                    of_runs[running.claim.run.run] = used
                    peak = max(running.attempt.peak_memory_mb or 0, used)
                    running.attempt.peak_memory_mb = round(peak, 1)
            if self.admission:
                total, free = self.device.memory_bytes, self.device.memory_free()
                used_mb = (total - free) / MIB if None not in (total, free) else 0
                self.admission.see(now_s, used_mb, of_runs, recent_activity(self.device.uuid))
            if self.mps:
                unproven = {
                    running.keeper.pid: running.attempt
                    for running in self.running
                    if running.attempt.mps is None
                }
                self.mps.prove(unproven, trees, by_pid, now_s)
                for running in self.running:
                    if running.keeper.pid in unproven and running.attempt.mps is not None:
                        running.claim.write()

    # -- ends ---------------------------------------------------------------------------------

    def _finish(self, running: Running) -> None:
        """Record the end of a run whose keeper has ended."""
        running.keeper.wait()
        report = running.report
        error = report.get("error", "")
        if not error and "code" not in report:
            error = "its keeper was killed"
            keeper.end_descendants(self._others(running))
        code, number = report.get("code"), report.get("signal")
        fault = first = False
        if self.mps and code != 0 and not self.stopping:
            fault, first = self.mps.failed(running.started_s)
        stopped = not report.get("by_itself", True)
        end = End(code, number, error, stopped, fault, first, running.tail())
        conclude(running.claim.run, end, self.admission is not None)
        running.claim.write()
        running.claim.release()
        running.keeper.stdin.close()
        running.keeper.stdout.close()
        self.running.remove(running)
        if self.admission:
            self.admission.ended(running.claim.run.run)

    def _others(self, running: Running) -> frozenset[int]:
        """PIDs of our children beside those that a killed keeper left to us."""
        keepers = {each.keeper.pid for each in self.running if each is not running}
        daemon = {self.mps.daemon.process.pid} if self.mps else set()
        return frozenset(keepers | daemon | {nvml_subprocess.CHILD.pid})

    def _end_runs(self) -> None:
        """Have all runs end, and record that they were stopped."""
        self.stopping = True
        for running in self.running:
            running.keeper.stdin.close()
        while self.running:
            self._wait()
