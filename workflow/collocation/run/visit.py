"""One visit to a device for a probe: its lock, the methods, the sampler, the fork server."""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import Device, cores
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.member.spec import MemberSpec, ScriptSpec, ViewSpec
from workflow.collocation.process_lifetime import END_SIGNALS
from workflow.collocation.record import provenance
from workflow.collocation.record.probe import DROP_S, PROBE_FILE, ProbeRecord, write_probe
from workflow.collocation.record.run_json import GpuRecord
from workflow.collocation.record.source_digest import code_digest
from workflow.collocation.record.values import Telemetry
from workflow.collocation.run import environment
from workflow.collocation.run.conductor import TIMEOUTS
from workflow.collocation.run.copies import Choose, CopiesProbe
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.loader import SharedLoader
from workflow.collocation.run.pair import PairProbe
from workflow.collocation.run.probe import Probe
from workflow.collocation.run.rates import StepRecords
from workflow.collocation.run.task import member_specs
from workflow.collocation.run.views import keep_apart, with_scratch
from workflow.collocation.run.waiting import refusal
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Unsupported, owner
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study import cell
from workflow.collocation.study.cell import CellSpec, ImplementationSpec, MeasureSpec
from workflow.collocation.study.definition import Sampling
from workflow.collocation.study.names import ALONE, INTERLEAVED, SEPARATOR
from workflow.collocation.study.workloads import Workload
from workflow.collocation.telemetry.lines import read_output
from workflow.collocation.telemetry.summary import TelemetrySummary
from workflow.collocation.telemetry.watch import Watch

SCRIPT_TRAINER = "models.script"  # for members that are scripts: it starts at once
WARMUP_S, WARMUP_STEPS = 3.0, 3
Report = Callable[[str, str], None]  # what is measured, and its newest state


@dataclass(frozen=True)
class ProbeTask:
    """What a probe measures, and within what.

    jobs: one job of which sets of copies are measured, or two that are measured together, by name.
    device: None for the CPU. folder: for logs and what is measured. max_jobs: copies at once, among
    which the CPU cores are divided. seconds: how long it takes, as far as the jobs allow. trainer:
    the module that members run. datasets: records of `python -m models.data prepare`, by name.
    view: of scripts; its scratch is the folder in which one for all of them is made. None: they may
    write in the folder where they run.
    """

    jobs: Mapping[str, Workload]
    implementation: ImplementationSpec
    device: Device | None
    folder: Path
    max_jobs: int
    seconds: float
    trainer: str
    datasets: dict[str, dict]
    telemetry: Sampling
    view: ViewSpec | None = None

    @property
    def is_pair(self) -> bool:
        return len(self.jobs) > 1

    def cell_spec(self, with_mps: bool) -> CellSpec:
        """The members that may be started: separate processes, and clients of MPS.

        The first of the separate processes are the jobs alone.
        """
        names = list(self.jobs)
        copies = names if self.is_pair else names * self.max_jobs
        separate = copies[len(names) :]
        groups = [[name] for name in names] + [separate] * bool(separate)
        families = [Naive.family] + [Mps.family] * with_mps
        groups += [copies] * with_mps
        conditions = [*range(len(names)), len(names), len(names) + 1]
        if not separate:  # of a pair; the condition of its separate processes has no more members
            conditions = [*range(len(names)), len(names) + 1]
        members = [
            cell.MemberSpec(
                workload=name,
                job=self.jobs[name].model_copy(update={"warmup_steps": WARMUP_STEPS}),
                cores_of=self.max_jobs,
                condition=condition,
            )
            for condition, group in zip(conditions, groups, strict=False)
            for name in group
        ]
        return CellSpec(
            members=tuple(members),
            implementation=self.implementation,
            method=SEPARATOR.join([ALONE, *families]),
            measure=MeasureSpec(kind=INTERLEAVED, warmup_s=WARMUP_S),
            seed=0,
            datasets={},
        )

    def core_shares(self, with_mps: bool) -> list[list[int | str]]:
        """For separate processes, and for clients of MPS: how the cores are divided."""
        return [[self.max_jobs] * self.max_jobs for _ in range(1 + with_mps)]


class ProbeDisplay:
    """Passes on what a probe does: states to the person who watches, lines to a log."""

    def __init__(self, log: Path, report: Report):
        self.log = log.open("w", buffering=1, encoding="utf-8")
        self.report, self.began_s = report, time.monotonic()

    def say(self, text: str, loud: bool = True) -> None:
        """Write a line to the log; nobody else reads it, loud or not."""
        self.log.write(f"{time.monotonic() - self.began_s:8.2f} s  {text}\n")

    def show(self, describe: Callable[[], str]) -> None:
        """Report the newest state, `what is done: its rate`."""
        name, _, state = describe().partition(": ")
        self.report(name, state)


def run_probe(task: ProbeTask, report: Report, choose: Choose | None = None) -> ProbeRecord:
    """Measure jobs alone and together; returns and writes the record.

    report: called often with what is done now. choose: names the sets of copies of one job. Raises
    ValueError with one line where nothing can be measured here, and KeyboardInterrupt after a
    signal that ends this process.
    """
    log = task.folder / "log"
    log.mkdir(parents=True)
    display = ProbeDisplay(log / "probe.log", report)
    device = task.device
    holder = {"pid": os.getpid(), "user": psutil.Process().username(), "study": "advise"}

    def wait(other: dict) -> None:
        words = ", ".join(f"{key} {value}" for key, value in other.items() if value)
        report("waiting", f"the {'GPU' if device else 'CPU'} is held by {words}")

    with _interruptible(), device_lock(device.uuid if device else "cpu", holder, wait) as lock:
        try:
            record = Visit(task, display, lock).measure(choose)
        except (GpuBusy, NotInForce, Unsupported) as error:
            raise ValueError(str(error)) from None
    write_probe(task.folder / PROBE_FILE, record)
    return record


class Visit:
    """Measures while the device is locked. lock: descriptor of the lock, which copies keep open."""

    def __init__(self, task: ProbeTask, display: ProbeDisplay, lock: int):
        self.task, self.display, self.lock = task, display, lock
        self.began_s = time.monotonic()  # the wait for the lock is not part of the task's time
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.device, self.folder = task.device, task.folder
        self.host = provenance.describe_host(cores.usable(), cores.quota())
        self.max_cpus = cores.keep_to_share(task.device)
        self.no_mps = None if task.device else "there is no GPU"

    def measure(self, choose: Choose | None) -> ProbeRecord:
        """Set everything up, run the probe, and make its record."""
        with ExitStack() as stack:
            sharing = self._enter_methods(stack)
            return self._measure_with(sharing, choose, stack)

    def _enter_methods(self, stack: ExitStack) -> Method:
        """Set up MPS beside separate processes; where it cannot be had, these alone."""
        log = self.folder / "log"
        if self.no_mps is None:
            try:
                spec = self.task.cell_spec(with_mps=True)
                return stack.enter_context(methods.enter(spec, self.device, log))
            except (NotInForce, Unsupported) as error:
                self.no_mps = str(error)
        spec = self.task.cell_spec(with_mps=False)
        if reason := refusal(spec, self.device):
            raise Unsupported(reason)
        return stack.enter_context(methods.enter(spec, self.device, log))

    def _measure_with(
        self, sharing: Method, choose: Choose | None, stack: ExitStack
    ) -> ProbeRecord:
        with_mps, log = self.no_mps is None, self.folder / "log"
        numa_node = self.device and self.device.numa_node
        shares = self.task.core_shares(with_mps)
        core_sets, _ = cores.plan_conditions(shares, numa_node, self.max_cpus)
        # The last member is started last, if ever: until then, nobody uses its CPUs.
        self.sampler_cpu = core_sets[-1][-1]
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
        sampler_config = {
            "gpu": self.device and self.device.uuid,
            "cores": [self.sampler_cpu],
            "entities": ["gpu"] if self.device else [],
            **self.task.telemetry.model_dump(),
        }
        watch = stack.enter_context(Watch(scratch, log / "sampler.log", sampler_config))
        # Before the server: its members are to end before what they have mounted there.
        view = self.task.view and stack.enter_context(with_scratch(self.task.view))
        server = ForkServerClient(log / "server.log", self.task.trainer, lock=self.lock)
        stack.enter_context(server)
        specs = member_specs(
            sharing.spec,
            "cuda" if self.device else "cpu",
            core_sets,
            [sharing.environment(member) for member in range(len(core_sets))],
            self.task.datasets,
            scratch,
            replicate=1,
        )
        specs = keep_apart([self._for_probe(spec) for spec in specs], view)
        common = {
            "server": server,
            "sharing": sharing,
            "specs": specs,
            "measure": sharing.spec.measure,
            "log": log,
            "display": self.display,
            "timeouts": TIMEOUTS,
            "watch": watch,
            "loader": SharedLoader(specs),
            "until_s": self.began_s + self.task.seconds,
            "began_s": self.began_s,
            "on_gpu": self.device is not None,
        }
        if self.task.is_pair:
            card_bytes = self.device.memory_bytes if with_mps else None
            probe = PairProbe(**common, card_bytes=card_bytes)
        else:
            separate = list(range(self.task.max_jobs))
            copies = {Naive.family: separate}
            if with_mps:
                copies[Mps.family] = [member + self.task.max_jobs for member in separate]
            probe = CopiesProbe(**common, copies=copies, choose=choose)
        probe.read_telemetry = lambda: self._telemetry_so_far(probe)
        watch.see_idle()
        probe.run()
        return self._record(probe, scratch)

    def _for_probe(self, spec: MemberSpec) -> MemberSpec:
        """A script is started again when it ends; it may be slow to start beside its copies."""
        if not isinstance(spec.job, ScriptSpec):
            return spec
        job = self.task.jobs[spec.workload]
        together = 1 if spec.index < len(self.task.jobs) else self.task.max_jobs
        script = replace(spec.job, restarts=True, step_timeout_s=job.first_step_s * together)
        return replace(spec, job=script)

    def _telemetry_so_far(self, probe: Probe) -> tuple[Telemetry, int | None]:
        """The telemetry of the windows so far, and the most device memory in use, in bytes."""
        output = read_output(probe.watch.path)
        output.phases = probe.watch.phases
        telemetry, _ = TelemetrySummary(output, probe.windows, **self._facts(probe)).telemetry()
        used = [row["v"].get("memory_used") for row in output.gpu if row.get("e") == "gpu"]
        return telemetry, max((bytes_ for bytes_ in used if bytes_ is not None), default=None)

    def _facts(self, probe: Probe) -> dict:
        own = {member.pid for member in probe.members if member.pid}
        own = own.union(*(member.scripts for member in probe.members))
        facts = {"has_gpu": self.device is not None, "owner": owner, "own": own}
        if self.device:
            facts["sm_count"] = self.device.sm_count
            facts["seats"] = {member.member: "gpu" for member in probe.members}
            facts["own"] = own | probe.sharing.nvml_pids()
        return facts

    def _flags(self, probe: Probe) -> list[str]:
        """What is to be known of the CPUs that members and sampler had."""
        flags = set()
        for window in probe.windows:
            taken = Counter(cpu for member in window.members for cpu in probe.specs[member].cores)
            if max(taken.values()) > 1:
                flags.add("cores_shared")
            if self.device and self.sampler_cpu in taken:
                flags.add("sampler_shares_cores")
        return sorted(flags)

    def _record(self, probe: Probe, scratch: Path) -> ProbeRecord:
        """Make the record; writes the series of steps and of telemetry to files."""
        records = StepRecords(probe.windows, DROP_S)
        members = [tracked.record() for tracked in probe.members]
        for tracked, member in zip(probe.members, members, strict=True):
            folder = scratch / str(tracked.member)
            records.add(tracked, member, None, folder)
        telemetry, telemetry_flags, files = probe.watch.account(
            self.folder, probe.windows, self.display.say, **self._facts(probe)
        )
        counted_s = sum(window.seconds for window in probe.windows)
        driver = self.device.driver if self.device else None
        return ProbeRecord(
            jobs={name: job.to_json() for name, job in self.task.jobs.items()},
            started_at=self.started_at,
            gpu=self.device and GpuRecord.model_validate(self.device, from_attributes=True),
            host=self.host | {"usable_cores": len(probe.specs[0].cores)},
            provenance=provenance.collect_provenance(driver, code_digest())
            | {"dropped": environment.dropped()},
            windows=probe.windows,
            members=members,
            sets=probe.sets,
            telemetry=telemetry,
            peak_bytes=probe.peak_bytes,
            flags=[*self._flags(probe), *telemetry_flags],
            no_mps=self.no_mps,
            evidence=probe.evidence,
            needed_s=probe.needed_s,
            problem=probe.problem,
            seconds={
                "wall": round(time.monotonic() - self.began_s, 3),
                "counted": round(counted_s, 3),
            },
            files=files | records.write(self.folder),
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have the first signal that ends a process raise KeyboardInterrupt, and ignore later ones.

    The end of the copies is bounded in time and must not be disturbed.
    """

    def interrupt(number: int, frame) -> None:
        for end_signal in END_SIGNALS:
            signal.signal(end_signal, lambda *_: None)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
