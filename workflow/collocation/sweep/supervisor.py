"""The supervisor of one GPU: starts runs in its slots, watches them, and records their ends."""

import math
import os
import platform
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from workflow.collocation.gpu import Device, nvml_subprocess
from workflow.collocation.gpu.cores import keep_to_share, plan_cores, topology, usable
from workflow.collocation.gpu.lock import device_lock, holder_text
from workflow.collocation.process_lifetime import tree_pids
from workflow.collocation.run.task import PORT_VARIABLES, free_ports
from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import NO_DAEMON, PIPE_FOLDER, NotInForce, require_free
from workflow.collocation.sharing.mps import name_for_clients
from workflow.collocation.sweep import keeper
from workflow.collocation.sweep.admission import Admission, Gain, recent_activity
from workflow.collocation.sweep.journal import FOLDER_VARIABLE, RUN_VARIABLE, RunClaim, Sweep
from workflow.collocation.sweep.mps_watch import MpsWatch
from workflow.collocation.sweep.record import End, Outcome, RunAttempt, conclude, timestamp
from workflow.collocation.sweep.running import Running, start_run

POLL_S, SAMPLE_S = 0.5, 2.0
APART_S = 1.1  # between starts: many programs name what they write by the second
QUICK_S, QUICK_FAILURES = 30.0, 3  # so many in a row that end so early tell of a sick device
MOST_OF_ANY_SIZE = 8  # slots where runs are admitted by what they show
MIB = 2**20
MPS = "mps"


@dataclass(frozen=True)
class Sharing:
    """How runs share a GPU.

    method: "mps" or "separate". slots: how many at once, None for as many as have room. limit_s:
    seconds after which a run is ended, and has failed.
    """

    method: str
    slots: int | None
    gain: Gain
    limit_s: float = math.inf


class AskedToEnd(Exception):
    """This process was asked to end."""


class Supervisor:
    """Has the device, its slots with their CPU cores, and the runs in them."""

    def __init__(self, sweep: Sweep, device: Device | None, sharing: Sharing):
        self.sweep, self.device, self.sharing = sweep, device, sharing
        self.running: list[Running] = []
        self.mps: MpsWatch | None = None
        self.stopping = False
        self.cuda_name = device.cuda_name() if device else ""
        self.key = device.uuid if device else "cpu"  # of the device's lock, and in records
        self.sampled_s, self.started_s = 0.0, float("-inf")
        self.ended: list[RunClaim] = []  # of runs that ended, until their records are saved
        self.doubtful: list[RunClaim] = []  # that failed quickly, until others do well
        self.problem = ""
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
            say(f"waits: the {'GPU' if self.device else 'CPU'} is held by {holder_text(other)}")
            if self.stopping:
                raise AskedToEnd

        with device_lock(self.key, holder, wait) as self.lock, self._shared():
            say("")
            said = ""
            self._sample()  # memory in use before the first run
            try:
                while not self.stopping:
                    self.problem = ""
                    has_to_wait = self._start_runs()
                    if not (has_to_wait or self.running or self.ended):
                        return
                    self._wait()
                    self._sample()
                    self._save()
                    if self.problem != said:
                        say(said := self.problem)
            finally:
                self._end_runs()

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """The method, from its setup to its end. Raises GpuBusy, NotInForce."""
        if self.device is None:
            yield
            return
        mps_daemon.sweep()
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

    def _start_runs(self) -> bool:
        """Start what there is room for; whether more may start in a moment. Raises ValueError if
        the device seems to be sick.
        """
        if self.mps and not self._mps_is_ready():
            return True
        if len(self.doubtful) >= QUICK_FAILURES:
            if not self.running:
                self._give_up()
            return True
        total_mb = self.device and (self.device.memory_bytes or 0) / MIB
        while free := self._free_slots():
            now_s = time.monotonic()
            if now_s - self.started_s < APART_S:
                return True
            if self.admission and not self.admission.admits(now_s, total_mb):
                return False
            try:
                claim = self.sweep.claim_next(len(free), len(self.cores), self.key)
                if claim is None:
                    return False
                self._start(claim, free[: claim.run.wanted])
            except OSError as error:
                self.problem = f"no run can start: {error}"
                return True
        return False

    def _mps_is_ready(self) -> bool:
        """Whether the server takes runs; what keeps it from recovering is ended after a while."""
        self.mps.revive()
        older = [each for each in self.running if each.started_s < self.mps.fault_s]
        if self.mps.is_ready(bool(older)):
            return True
        if self.mps.is_overdue:
            for running in older:
                running.keeper.stdin.close()
            if not older:
                self.mps.restart()
        return False

    def _give_up(self) -> None:
        reason = self.doubtful[-1].run.attempts[-1].reason
        for claim in self.doubtful:
            claim.run.attempts[-1].retry_slots = claim.run.attempts[-1].wanted
        raise ValueError(
            f"{len(self.doubtful)} runs in a row failed within {QUICK_S:.0f} s, and no more are "
            f"started; the last: {reason}"
        )

    def _free_slots(self) -> list[int]:
        taken = {slot for running in self.running for slot in running.attempt.slots}
        return [slot for slot in range(len(self.cores)) if slot not in taken]

    def _start(self, claim: RunClaim, slots: list[int]) -> None:
        cores = sorted({core for slot in slots for core in self.cores[slot]})
        place = {"session": self.sweep.session, "host": platform.node(), "gpu": self.key}
        place |= {"method": self.sharing.method, "slots": slots, "cores": cores}
        attempt = RunAttempt(**place, wanted=claim.run.wanted, start=timestamp())
        claim.run.attempts.append(attempt)
        try:
            variables = self._variables(claim, cores)
            claim.write()
        except OSError:
            claim.release()
            raise
        self.started_s = time.monotonic()
        task = {"command": claim.run.command, "cores": cores, "environment": variables}
        task["pipe"] = self._pipe()
        locks = (self.lock, claim.descriptor)
        try:
            self.running.append(start_run(claim, task, self.sweep.working, locks))
        except OSError as error:  # such as a command that is too long
            self._conclude(claim, End(error=str(error)), self.started_s)
            return
        if len(self.running) > 1:
            for running in self.running:
                running.attempt.shared = True
        if self.admission:
            self.admission.started(claim.run.run, time.monotonic())

    def _pipe(self) -> str | None:
        """The folder of the MPS daemon, if there is one."""
        return str(self.mps.daemon.pipe) if self.mps else None

    def _variables(self, claim: RunClaim, cores: list[int]) -> dict[str, str | None]:
        """What a run's environment has beside the user's; None for a variable that it lacks."""
        variables: dict[str, str | None] = {}
        for name in os.environ:  # a limit of the user's shell would silently hold for all
            if name.startswith("CUDA_MPS_"):
                variables[name] = None
        if self.mps:
            variables |= self.mps.daemon.environment | name_for_clients(self.cuda_name)
        else:
            variables[PIPE_FOLDER] = NO_DAEMON
            variables["CUDA_VISIBLE_DEVICES"] = self.cuda_name
            variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # by which the name counts
        for name, port in zip(PORT_VARIABLES, free_ports(len(PORT_VARIABLES)), strict=True):
            variables[name] = os.environ.get(name, str(port))
        variables["PYTHONUNBUFFERED"] = os.environ.get("PYTHONUNBUFFERED", "1")
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(len(cores)))
        folder = str(claim.folder)
        return variables | {RUN_VARIABLE: str(claim.run.run), FOLDER_VARIABLE: folder}

    # -- what runs ----------------------------------------------------------------------------

    def _wait(self) -> None:
        by_output = {running.keeper.stdout: running for running in self.running}
        readable, _, _ = select.select([*by_output], [], [], POLL_S)
        for output in readable:
            if by_output[output].read():
                self._finish(by_output[output])
        for running in self.running:
            if time.monotonic() - running.started_s > self.sharing.limit_s:
                running.is_late = True
                running.keeper.stdin.close()

    def _sample(self) -> None:
        """Read memory, proof of MPS and activity, every SAMPLE_S."""
        now_s = time.monotonic()
        if self.device is None or now_s - self.sampled_s < SAMPLE_S:
            return
        self.sampled_s = now_s
        trees = tree_pids(running.keeper.pid for running in self.running)
        new = [running for running in self.running if not running.is_seen]
        with suppress(NotInForce):  # a driver or a daemon that does not answer costs the reading
            by_pid = self.device.process_memory()
            of_runs = {}
            for running in self.running:
                on_gpu = trees[running.keeper.pid] & {*by_pid}
                running.on_gpu |= on_gpu
                used = sum(by_pid[pid] or 0 for pid in on_gpu) / MIB
                if on_gpu:
                    of_runs[running.claim.run.run] = used
                if used:
                    peak = max(running.attempt.peak_memory_mb or 0, used)
                    running.attempt.peak_memory_mb = round(peak, 1)
            if self.admission:
                total, free = self.device.memory_bytes, self.device.memory_free()
                used_mb = (total - free) / MIB if None not in (total, free) else 0
                self.admission.see(now_s, used_mb, of_runs, recent_activity(self.device.uuid))
            if self.mps:
                unproven = {
                    each.keeper.pid: each.attempt for each in new if each.attempt.mps is None
                }
                self.mps.prove(unproven, trees, by_pid, now_s)
        for running in new:
            running.is_seen = running.attempt.peak_memory_mb is not None and (
                self.mps is None or running.attempt.mps is not None
            )
            if running.is_seen:
                running.claim.save()

    # -- ends ---------------------------------------------------------------------------------

    def _finish(self, running: Running) -> None:
        """Record the end of a run whose keeper has ended."""
        running.keeper.wait()
        report = running.report
        error = report.get("error", "")
        if not error and "code" not in report:
            error = "the process that watched it was killed"
            others = self._others(running)
            keeper.end_descendants(others, self._pipe())
            keeper.reap(others)
        code, number = report.get("code"), report.get("signal")
        lines, fault, first = running.tail(), False, False
        stopped = not report.get("by_itself", True) or self.stopping
        limit_s = self.sharing.limit_s if stopped and running.is_late else None
        if self.mps and code != 0 and not stopped:
            fault, first = self.mps.failed(running.started_s, "\n".join(lines))
        left = report.get("left", [])
        on_gpu = len(running.on_gpu & {*left})
        end = End(code, number, error, stopped, fault, first, lines, len(left), on_gpu, limit_s)
        running.close()
        self.running.remove(running)
        self._conclude(running.claim, end, running.started_s)
        if self.admission:
            run = running.claim.run
            self.admission.ended(run.run, run.attempts[-1].outcome == Outcome.ended)

    def _conclude(self, claim: RunClaim, end: End, started_s: float) -> None:
        conclude(claim.run, end, self.admission is not None)
        outcome = claim.run.attempts[-1].outcome
        is_quick = time.monotonic() - started_s < QUICK_S
        if outcome == Outcome.failed and is_quick and not end.limit_s:
            self.doubtful.append(claim)
            return
        self.ended.append(claim)
        if outcome in (Outcome.ended, Outcome.failed):
            self._trust_device()

    def _trust_device(self) -> None:
        """Those that failed quickly did so by themselves."""
        self.ended += self.doubtful
        self.doubtful = []

    def _save(self) -> None:
        """Save the records of runs that ended, and try again where that failed."""
        now_s = time.monotonic()
        if any(now_s - running.started_s > QUICK_S for running in self.running):
            self._trust_device()
        for running in self.running:
            if running.claim.problem:
                running.claim.save()
        for claim in [*self.ended]:
            if claim.save():
                claim.release()
                self.ended.remove(claim)
        claims = [*self.ended, *(running.claim for running in self.running)]
        self.problem = self.problem or next((c.problem for c in claims if c.problem), "")

    def _others(self, running: Running) -> frozenset[int]:
        """PIDs of our children beside those that a killed keeper left to us."""
        others = {each.keeper.pid for each in self.running if each is not running}
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # a server may leave its daemon, and come to us
                if child.name().startswith(mps_daemon.PROGRAMS):
                    others.add(child.pid)
        return frozenset(others | {nvml_subprocess.CHILD.pid})

    def _end_runs(self) -> None:
        """Have all runs end, and record that they were stopped."""
        self.stopping = True
        for running in self.running:
            running.keeper.stdin.close()
        while self.running:
            self._wait()
        self._trust_device()
        self._save()
