"""The supervisor of one GPU: starts runs in its slots, watches them, and records their ends."""

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
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.member.failures import says_server_fault
from workflow.collocation.process_lifetime import tree_pids
from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import NO_DAEMON, PIPE_FOLDER, NotInForce, require_free
from workflow.collocation.sweep import keeper
from workflow.collocation.sweep.admission import Admission, Gain, recent_activity
from workflow.collocation.sweep.journal import FOLDER_VARIABLE, RUN_VARIABLE, Claim, Sweep
from workflow.collocation.sweep.mps_watch import MpsWatch
from workflow.collocation.sweep.record import Attempt, End, conclude, timestamp
from workflow.collocation.sweep.running import Running, start_run

POLL_S, SAMPLE_S = 0.5, 2.0
MOST_OF_ANY_SIZE = 8  # slots where runs are admitted by what they show
MIB = 2**20
MPS = "mps"


@dataclass(frozen=True)
class Sharing:
    """How runs share a GPU.

    method: "mps" or "separate". slots: how many at once, None for as many as have room.
    """

    method: str
    slots: int | None
    gain: Gain


class Stopped(Exception):
    """This process was asked to end."""


class Supervisor:
    """Has the device, its slots with their CPU cores, and the runs in them."""

    def __init__(self, sweep: Sweep, device: Device | None, sharing: Sharing):
        self.sweep, self.device, self.sharing = sweep, device, sharing
        self.running: list[Running] = []
        self.mps: MpsWatch | None = None
        self.stopping = False
        self.cuda_name = device.cuda_name() if device else ""
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
        mps_daemon.sweep()
        require_free(self.device, "a sweep")
        if self.sharing.method != MPS:
            yield
            return
        self.mps = MpsWatch(self.device.uuid, self.sweep.folder / f"mps-{self.device.uuid}")
        try:
            self.mps.daemon.start()
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
        locks = (self.lock, claim.descriptor)
        try:
            self.running.append(start_run(claim, task, self.sweep.working, locks))
        except OSError as error:  # such as a command that is too long
            conclude(claim.run, End(error=str(error)), self.admission is not None)
            claim.write()
            claim.release()
            return
        if len(self.running) > 1:
            for running in self.running:
                running.attempt.shared = True
        if self.admission:
            self.admission.started(claim.run.run, time.monotonic())

    def _variables(self, claim: Claim, cores: list[int]) -> dict[str, str | None]:
        """What a run's environment has beside the user's; None for a variable that it lacks."""
        variables: dict[str, str | None] = {}
        for name in os.environ:  # a limit of the user's shell would silently hold for all
            if name.startswith("CUDA_MPS_"):
                variables[name] = None
        if self.mps:
            variables |= self.mps.daemon.environment
        else:
            variables["CUDA_VISIBLE_DEVICES"] = self.cuda_name
            variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # by which the name counts
            variables[PIPE_FOLDER] = NO_DAEMON
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
                    each.keeper.pid: each.attempt for each in new if each.attempt.mps is None
                }
                self.mps.prove(unproven, trees, by_pid, now_s)
        for running in new:
            running.is_seen = running.attempt.peak_memory_mb is not None and (
                self.mps is None or running.attempt.mps is not None
            )
            if running.is_seen:
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
        lines, fault, first = running.tail(), False, False
        if self.mps and code != 0 and not self.stopping:
            says_fault = any(map(says_server_fault, lines))
            fault, first = self.mps.failed(running.started_s, says_fault)
        stopped = not report.get("by_itself", True)
        end = End(code, number, error, stopped, fault, first, lines)
        conclude(running.claim.run, end, self.admission is not None)
        running.close()
        self.running.remove(running)
        if self.admission:
            self.admission.ended(running.claim.run.run)

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
