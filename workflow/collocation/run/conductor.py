"""Conducts one cell: starts its members, holds them at the barrier, measures, and stops them.

The conductor knows members only by their events (member/protocol.py). A member that does not end
well shows as an event, an exit, or a phase that takes too long, so the conductor never hangs.
"""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from workflow.collocation.gpu.second_context import second_context
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.record.values import Window
from workflow.collocation.run.environment import server_environment
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.loader import SharedLoader
from workflow.collocation.run.measures import MEASURES
from workflow.collocation.run.outcome import FAULTY, TrackedMember, cell_status
from workflow.collocation.run.progress import NOW, Display
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import (
    NO_DAEMON,
    PIPE_FOLDER,
    GpuBusy,
    NotInForce,
    Report,
    Unsupported,
    WrongProducts,
)
from workflow.collocation.study.cell import MeasureSpec
from workflow.collocation.telemetry.watch import Watch

# Seconds that a phase may take. `window` is what a window may take beyond its own length; of a
# measure until completion, how long a member may be silent.
TIMEOUTS = {"build": 900.0, "warm": 900.0, "window": 900.0, "stop": 120.0}
FALLOUT_S = 0.5  # after a member's fault, for its effects on the others to show
CUT_SHORT_S = 10.0  # for the others to stop after a fault
RELEASE_S = 8.0  # for the method to release all members that are late
KILL_S = 3.0  # for a member to end after a signal
MAX_SIGNALS = 2  # to a member that does not stop, which is then left behind
POLL_S = 0.2


class CellOver(Exception):
    """A member failed, or none is left: nothing more can be measured in this cell."""


@dataclass
class Conductor:
    """Runs the members of one cell, from their start to their end.

    specs: one member spec each. timeouts: seconds by phase. log: folder for the members' logs.
    """

    server: ForkServerClient
    sharing: Method
    specs: list[MemberSpec]
    measure: MeasureSpec
    log: Path
    display: Display
    timeouts: dict[str, float]
    watch: Watch
    loader: SharedLoader
    members: list[TrackedMember] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    evidence: dict = field(default_factory=dict)  # of the method, by when it was asked for
    timing: dict[str, float] = field(default_factory=dict)
    phase: str = "build"
    deadline: float = 0.0  # of what is waited for now, on the monotonic clock
    slice_name: str = ""  # of the slice under way, for the person who watches
    # The status and reason that the cell then has, and the phase before.
    evidence_failure: tuple[str, str, str] | None = None
    released: set[int] = field(default_factory=set)  # PIDs that the method was told to release
    no_second_context: str | None = None  # why a second context could not be opened

    def run(self) -> None:
        """Go through all phases. Afterwards every member has ended and has a status.

        An interruption (BaseException) is not handled here: the server's context ends the members.
        Raises GpuBusy if others use the GPU, so that the measurement does not count.
        """
        cut_short = True
        try:
            self._run_phase("build", self._build)
            self._run_phase("autotune", self._autotune)
            self._run_phase("warm", lambda: self.reach("warm"))
            if self.measure.second_context:
                self._open_second_contexts()
            self._collect_evidence("barrier")
            self._run_phase("window", lambda: MEASURES[self.measure.kind](self))
            self._collect_evidence("end")
            cut_short = False
        except CellOver:
            self._collect_evidence_after_fault()
        except GpuBusy:
            self._stop(cut_short)
            raise
        except NotInForce as error:
            status = "unsupported" if isinstance(error, WrongProducts) else "failed"
            phase = "window" if "window_s" in self.timing else "warm"
            self.evidence_failure = status, str(error), phase
        self._run_phase("stop", lambda: self._stop(cut_short))

    def outcome(self) -> tuple[str, str | None, str | None]:
        """Status, reason and phase of the cell, after run()."""
        method_problem = self.loader.problem or self.evidence.get("fault", {}).get("reason")
        status, reason, phase = cell_status(self.members, method_problem)
        if self.evidence_failure:
            status, failure, phase = self.evidence_failure
            reason = f"{failure}; {reason}" if reason else failure
        return status, reason, phase

    @property
    def alive(self) -> list[TrackedMember]:
        """Members that run without a fault so far."""
        return [member for member in self.members if member.alive]

    # -- until the barrier ----------------------------------------------------------------------

    def _run_phase(self, name: str, function: Callable[[], None]) -> None:
        self.phase, began = name, time.monotonic()
        self.deadline = began + self.timeouts["warm" if name == "autotune" else name]
        self.watch.phase(name)
        try:
            function()
        finally:
            self.timing[f"{name}_s"] = round(time.monotonic() - began, 3)

    def _build(self) -> None:
        self.loader.start(self.server, self.log)
        # Members with the same "process" run on streams of one process.
        for _, group in groupby(self.specs, key=lambda spec: spec.process):
            specs = list(group)
            log = self.log / f"member{specs[0].index}.log"
            self.members += self.server.start(specs, log)
        self.reach("built")
        self._tell_sampler_of_members()
        if self.measure.kind == "interleaved" and len(self._accepting("hold")) < len(self.alive):
            raise NotInForce("interleaved: a member does not know the command 'hold'")

    def _tell_sampler_of_members(self) -> None:
        """Have the sampler watch each process once; of a command, its script alone."""
        members: dict[int, int] = {}  # PID → the first of its members
        for tracked in self.alive:
            if "built" not in tracked.events:
                continue
            pid = tracked.events["built"].get("script", tracked.pid)
            members.setdefault(pid, tracked.member)
        pids = {member: pid for pid, member in members.items()}
        if self.loader.member and self.loader.member.pid:
            pids[self.loader.member.member] = self.loader.member.pid
        self.watch.members(pids)

    def _accepting(self, command: str) -> list[TrackedMember]:
        """Members whose `built` event lists this command."""
        return [m for m in self.alive if command in m.events["built"].get("commands", [])]

    def _autotune(self) -> None:
        """Have cuDNN choose kernels for one member after the other, or for all at once (a control).

        Scripts do not take part: they choose when they like.
        """
        members = self._accepting("autotune")
        groups = [members] if self.measure.autotune == "concurrent" else [[m] for m in members]
        for group in groups:
            self.send(group, "autotune")
            self.await_event("autotuned", group)
        self.send(members, "warm")

    def _open_second_contexts(self) -> None:
        """Have another process open a CUDA context for a moment, once on each GPU or MIG device."""
        began = time.monotonic()
        environments = [self.sharing.environment(member.member) for member in self.alive]
        names = sorted({variables["CUDA_VISIBLE_DEVICES"] for variables in environments})
        # What is no MIG device is one card, which clients of MPS may know by another name.
        devices = {name if name.startswith("MIG-") else "gpu": name for name in names}
        for device in devices.values():
            variables = {"CUDA_VISIBLE_DEVICES": device, PIPE_FOLDER: NO_DAEMON}
            problem = second_context(server_environment() | variables)
            if problem and not self.no_second_context:
                self.no_second_context = problem
                self.display.say(f"nobody could visit {device}: {problem}", loud=False)
        self.timing["second_context_s"] = round(time.monotonic() - began, 3)

    # -- events and commands --------------------------------------------------------------------

    def send(self, members: Sequence[TrackedMember], *commands: str) -> None:
        """Send commands of member/protocol.py to these members."""
        for member in members:
            member.stopping |= "stop" in commands
            for command in commands:
                self.server.send(member.member, command)

    def reach(self, event: str) -> None:
        """Wait until every living member has sent `event`."""
        self.await_event(event, self.members)
        self.raise_if_over()
        self.log_count(event)

    def await_event(self, event: str, members: Sequence[TrackedMember]) -> None:
        """Wait until those of the members that live have sent `event`."""
        while late := [m for m in members if m.alive and event not in m.events]:
            self.process_events(late)

    def resume(self, members: Sequence[TrackedMember]) -> None:
        """Let members that are held go on."""
        for member in members:
            member.events.pop("held", None)
        self.send(members, "resume")

    def await_held(self) -> None:
        """Wait until every living member is held."""
        self.deadline = time.monotonic() + self.timeouts["window"]
        self.await_event("held", self.members)

    def process_events(self, late: list[TrackedMember], seconds: float = POLL_S) -> None:
        """Receive events for at most `seconds`; after the deadline, kill the members in `late`.

        Raises CellOver or NotInForce where nothing more can be measured.
        """
        self._receive_events(seconds)
        if time.monotonic() > self.deadline:
            self._kill_late(late)
        self.raise_if_over()

    def process_events_until(self, until_ns: int) -> None:
        """Process events until this time on the monotonic clock."""
        while (remaining_ns := until_ns - time.monotonic_ns()) > 0:
            self.process_events([], remaining_ns / 1e9)

    def _receive_events(self, seconds: float = POLL_S) -> None:
        self.display.show(self._status_line)
        for event in self.server.wait(min(seconds, POLL_S)):
            member = self.server.members[event["member"]]
            if event["event"] == "restarted":
                self._tell_sampler_of_members()
            elif event["event"] in ("error", "exited") and member.error:
                self.display.say(
                    f"member {member.member}: {member.status}: {member.error}", loud=False
                )

    def _kill_late(self, late: list[TrackedMember]) -> None:
        release_until = time.monotonic() + RELEASE_S
        for member in late:
            is_new = member.pid is not None and member.pid not in self.released
            if is_new and time.monotonic() < release_until:
                self.released.add(member.pid)
                self.sharing.release(member.pid)  # or its death could harm the others
            # The first signal has the member print the Python stack of the hang into its log.
            number = signal.SIGABRT if member.status is None else signal.SIGKILL
            error = f"no end of phase '{member.current_phase}' within its time-out"
            member.end("timed_out", error)
            self.server.kill(member.member, number)

    def raise_if_over(self) -> None:
        """Raise CellOver after a fault, NotInForce if the shared loader has ended.

        Out-of-memory is such a fault only where conditions are compared or a loader is shared;
        elsewhere the survivors go on.
        """
        faults = FAULTY
        if self.loader.spec or self.measure.kind == "interleaved":
            faults = (*FAULTY, "out_of_memory")
        if not self.alive or any(member.status in faults for member in self.members):
            raise CellOver
        self.loader.require()

    def log_count(self, event: str) -> None:
        """Log how many members live, of which each has sent this event."""
        self.display.say(f"{event}: {len(self.alive)} of {len(self.members)}", loud=False)

    def _status_line(self) -> str:
        """For the person who watches: the phase, the members, what they do."""
        text = f"{NOW[self.phase]} {len(self.alive)} of {len(self.specs)} members"
        if self.phase != "window":
            return text
        if self.slice_name:
            return f"{text}, {self.slice_name}"
        return f"{text}, {sum(member.rate for member in self.alive):,.0f} samples/s"

    # -- the method's evidence ------------------------------------------------------------------

    def _collect_evidence(self, when: str) -> None:
        """Collect the method's evidence for living members. Raises NotInForce or GpuBusy."""
        try:
            self.evidence[when] = self.sharing.evidence(self._reports())
        except (NotInForce, Unsupported) as error:  # members run: "cannot run here" is no answer
            self.evidence[when] = {"verified": False, "reason": str(error)}
            if isinstance(error, WrongProducts):
                raise
            raise NotInForce(str(error)) from error

    def _collect_evidence_after_fault(self) -> None:
        """Collect evidence after a member's fault, once its effect on the others has shown."""
        deadline = time.monotonic() + FALLOUT_S
        while self.alive and time.monotonic() < deadline:
            self._receive_events()
        # Before the first member is built there is nothing that a method could show.
        if self._reports() or "barrier" in self.evidence:
            with suppress(NotInForce, GpuBusy):  # the cell looks for other processes once more
                self._collect_evidence("fault")

    def _reports(self) -> dict[int, Report]:
        return {m.member: m.report() for m in self.alive if "built" in m.events}

    # -- the end --------------------------------------------------------------------------------

    def _stop(self, cut_short: bool) -> None:
        """Ask all members to stop, and kill those that do not within a bounded time.

        A member that outlives SIGKILL is left behind. cut_short: the cell ends early, and members
        that still build need not finish.
        """
        self.send([member for member in self.members if not member.gone], "stop")
        grace_s = min(self.timeouts["stop"], CUT_SHORT_S) if cut_short else self.timeouts["stop"]
        deadline, signals = time.monotonic() + grace_s, 0
        while remaining := [member for member in self.members if not member.gone]:
            self._receive_events()
            if all(member.status == "timed_out" for member in remaining) and not signals:
                deadline = min(deadline, time.monotonic() + KILL_S)  # nobody will stop by itself
            if time.monotonic() < deadline:
                continue
            if signals == MAX_SIGNALS:
                pids = ", ".join(str(member.pid) for member in remaining)
                self.display.say(f"process {pids} outlives SIGKILL and was left behind")
                break
            for member in remaining:
                if cut_short and member.status is None and "started" not in member.events:
                    member.status = "stopped"
            self._kill_late(remaining)
            deadline, signals = time.monotonic() + KILL_S, signals + 1
