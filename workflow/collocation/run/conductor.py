"""One collocated run: start the members, hold them at the barrier, measure, stop, account.

The conductor knows members by their events only (models/protocol.py says which), so every kind of
end shows as an event, an exit or a time-out of a phase, and nothing can hang.
"""

import math
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation.gpu.second_context import second_context
from workflow.collocation.record.values import Window
from workflow.collocation.run.environment import server_environment
from workflow.collocation.run.fork_client import Server
from workflow.collocation.run.outcome import FAULTY, Tracked, cell_status
from workflow.collocation.run.progress import Display
from workflow.collocation.sharing.evidence import (
    NO_DAEMON,
    PIPE_FOLDER,
    GpuBusy,
    NotInForce,
    Report,
    Unsupported,
)
from workflow.collocation.spec.cell import MeasureSpec

# Seconds that a phase may take; `window` is what a window may take beyond its own length, and for
# epochs how long a member may show no progress.
TIMEOUTS = {"build": 900.0, "warm": 900.0, "window": 900.0, "stop": 120.0}
FALLOUT_S = 0.5  # for what a fault does to the others to show
CUT_SHORT_S = 10.0  # for the others to stop after a fault
RELEASE_S = 8.0  # for the method to drop all who are late
KILL_S = 3.0  # for a member to end by what it was sent
KILLS = 3  # as many signals, then one that has not ended is left behind
POLL_S = 0.2
# Phase → what a person reads of it, and the event of members that are done with it.
NOW = {"build": ("building", "built"), "warm": ("warming up", "warm"), "window": ("measuring", "")}
NOW |= {"tune": ("tuning", "tuned"), "stop": ("stopping", "exited")}


class CellOver(Exception):
    """A member failed, or none is left: nothing more can be measured in this cell."""


@dataclass
class Conductor:
    """Members of one cell, from their start to their end.

    specs: one member spec each. sharing: the method's Sharing. timeouts: seconds by phase.
    watch: who is told of members, phases and windows (telemetry.watch).
    """

    server: Server
    sharing: object
    specs: list[dict]
    measure: MeasureSpec
    log: Path
    display: Display
    timeouts: dict[str, float]
    watch: object
    members: list[Tracked] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    evidence: dict = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    phase: str = "build"
    not_in_force: tuple[str, str] | None = None  # what the evidence failed with, after which phase
    released: set[int] = field(default_factory=set)  # PIDs that the method was told to drop
    unvisited: str | None = None  # why the visit that the measure asks for did not come about

    def run(self) -> None:
        """Go through all phases. Afterwards every member has ended and carries its status.

        An interruption passes through here at once: the server's context ends the members. Raises
        GpuBusy if others came to the card: then nothing of this counts.
        """
        try:
            self._timed("build_s", self._build)
            self._timed("tune_s", self._tune)
            self._timed("warm_s", lambda: self._reach("warm", "warm"))
            self._visit()
            self._ask("barrier")
            self._timed("window_s", self._measure)
            self._ask("end")
        except CellOver:
            self._ask_after_fault()
            self._timed("stop_s", lambda: self._stop(cut_short=True))
        except GpuBusy:
            self._stop(cut_short=True)
            raise
        except NotInForce as error:
            self.not_in_force = str(error), "window" if "window_s" in self.timing else "warm"
            self._timed("stop_s", lambda: self._stop(cut_short=True))
        else:
            self._timed("stop_s", self._stop)

    def outcome(self) -> tuple[str, str | None, str | None]:
        """Status, reason and phase of the cell, after run()."""
        sentence = self.evidence.get("fault", {}).get("reason")
        status, reason, phase = cell_status(self.members, sentence)
        if self.not_in_force:
            found, phase = self.not_in_force
            status, reason = "failed", "; ".join(filter(None, (found, reason)))
        return status, reason, phase

    def _timed(self, name: str, step) -> None:
        self.phase = name.removesuffix("_s")
        self.watch.phase(self.phase)
        began = time.monotonic()
        try:
            step()
        finally:
            self.timing[name] = round(time.monotonic() - began, 3)

    @property
    def alive(self) -> list[Tracked]:
        return [member for member in self.members if member.alive]

    def _build(self) -> None:
        deadline = time.monotonic() + self.timeouts["build"]
        for spec in self.specs:
            member = Tracked(spec["member"], spec["workload"], spec["batch_size"])
            self.members.append(member)
            log = self.log / f"member{spec['member']}.log"
            self.server.start(spec, log)
        self._reach("built", "build", deadline)
        self.watch.members({member.member: member.pid for member in self.alive})

    def _tune(self) -> None:
        """Have cuDNN choose kernels for one member after the other, or for all at once (a control).

        The others rest, but for scripts: those choose when they like.
        """
        able = [m for m in self.alive if "tune" in m.events["built"].get("commands", [])]
        deadline = time.monotonic() + self.timeouts["warm"]
        for turn in [able] if self.measure.tune == "together" else [[m] for m in able]:
            for member in turn:
                self.server.send(member.member, "tune")
            while late := [m for m in turn if m.alive and "tuned" not in m.events]:
                self._pump(deadline, "warm", late)
        for member in able:
            self.server.send(member.member, "warm")

    def _visit(self) -> None:
        """Have the GPU, or each MIG device, leave the members' context for a moment."""
        if not self.measure.visit:
            return
        began = time.monotonic()
        environments = (self.sharing.environment(member.member) for member in self.alive)
        for place in sorted({found["CUDA_VISIBLE_DEVICES"] for found in environments}):
            there = {"CUDA_VISIBLE_DEVICES": place, PIPE_FOLDER: NO_DAEMON}
            why = second_context(server_environment() | there)
            if why and not self.unvisited:
                self.unvisited = why
                self.display.say(f"nobody could visit {place}: {why}", loud=False)
        self.timing["visit_s"] = round(time.monotonic() - began, 3)

    def _reach(self, event: str, phase: str, deadline: float | None = None) -> None:
        """Wait until every living member has sent `event`."""
        deadline = deadline or time.monotonic() + self.timeouts[phase]
        while late := [member for member in self.alive if event not in member.events]:
            self._pump(deadline, phase, late)
        self._go_on_or_give_up()
        self.display.say(f"{event}: {len(self.alive)} of {len(self.members)}", loud=False)

    def _pump(
        self, deadline: float, phase: str, late: list[Tracked], seconds: float = POLL_S
    ) -> None:
        """Take in what arrives within `seconds`; after the phase's time, end those who are late."""
        self._take_in(seconds)
        if time.monotonic() > deadline:
            self._end_late(late, f"no end of phase '{phase}' within its time-out", phase)
        self._go_on_or_give_up()

    def _take_in(self, seconds: float = POLL_S) -> None:
        self.display.show(self._now)
        self._see(self.server.wait(min(seconds, POLL_S)))

    def _see(self, events: list[dict]) -> None:
        for event in events:
            member = self.members[event["member"]]
            member.see(event)
            if event["event"] in ("error", "exited") and member.error:
                words = f"member {member.member}: {member.status}: {member.error}"
                self.display.say(words, loud=False)

    def _end_late(self, late: list[Tracked], why: str, phase: str) -> None:
        until = time.monotonic() + RELEASE_S
        for member in late:
            known = member.pid is not None and member.pid not in self.released
            if known and time.monotonic() < until:
                self.released.add(member.pid)
                self.sharing.release(member.pid)  # or its death could harm the others
            # The first signal leaves the Python stack of the hang in the member's log.
            number = signal.SIGABRT if member.status is None else signal.SIGKILL
            if member.status is None:
                member.end("timed_out", why, phase)
            self.server.kill(member.member, number)

    def _go_on_or_give_up(self) -> None:
        """Out-of-memory leaves the survivors running; any other fault ends the cell."""
        if not self.alive or any(member.status in FAULTY for member in self.members):
            raise CellOver

    # -- the method's evidence ------------------------------------------------------------------

    def _ask(self, when: str) -> None:
        """Have the method witnessed for the members that live. Raises NotInForce or GpuBusy."""
        try:
            self.evidence[when] = self.sharing.witness(self._reports())
        except (NotInForce, Unsupported) as error:  # members run: "cannot run here" is no answer
            self.evidence[when] = {"verified": False, "reason": str(error)}
            raise NotInForce(str(error)) from error

    def _ask_after_fault(self) -> None:
        """The same after a member's fault, once it has shown who is left."""
        deadline = time.monotonic() + FALLOUT_S
        while self.alive and time.monotonic() < deadline:
            self._take_in()
        # Before the first member is built there is nothing that a method could show.
        if self._reports() or "barrier" in self.evidence:
            with suppress(NotInForce, GpuBusy):  # of company the cell is asked once more
                self._ask("fault")

    def _reports(self) -> dict[int, Report]:
        return {m.member: m.report() for m in self.alive if "built" in m.events}

    # -- the measures ---------------------------------------------------------------------

    def _measure(self) -> None:
        for member in self.alive:
            self.server.send(member.member, "go")
        self._reach("started", "window")
        started = max(member.events["started"]["t"] for member in self.alive)
        settled = started + int(self.measure.settle_s * 1e9)
        if self.measure.kind == "completion":  # who is early waits idly for the others
            self._work("completion", started)
        elif self.measure.kind == "departure":
            self._departure(settled)
        else:
            self._window(settled)

    def _window(self, start_ns: int, name: str = "window") -> None:
        """[start, start + W), longer until the slowest member has its least number of steps."""
        seconds, least = self.measure.window_s, self.measure.min_steps
        end_ns = start_ns + int(seconds * 1e9)
        deadline = time.monotonic() + self.measure.settle_s + seconds + self.timeouts["window"]
        first: dict[int, int] = {}  # steps of each member when the window had opened
        while (left := start_ns - time.monotonic_ns()) > 0:
            self._pump(deadline, "window", [], left / 1e9)
        self.watch.open(name)
        while True:
            now = time.monotonic_ns()
            for member in self.alive:
                progress = member.events.get("progress")
                if progress and progress["t"] >= start_ns:
                    first.setdefault(member.member, progress["steps"])
            slow = [
                member
                for member in self.alive
                if member.steps - first.get(member.member, member.steps) < least
            ]
            if now >= end_ns and not slow:
                break
            self._pump(deadline, "window", slow)
        self.watch.close(name)
        self._close_window(name, start_ns, now, time.monotonic())

    def _work(self, name: str, start_ns: int) -> None:
        """Until every member has done its work; the window ends with the last one's."""
        self.watch.open(name)
        while late := [member for member in self.alive if "done" not in member.events]:
            stalest = min(late, key=lambda member: member.heard_ns)
            self._pump(stalest.heard_ns / 1e9 + self.timeouts["window"], "window", [stalest])
        self.watch.close(name)
        closed = time.monotonic()
        ends = [member.events["done"]["t"] for member in self.alive]
        self._close_window(name, start_ns, max(ends) + 1, closed)

    def _departure(self, start_ns: int) -> None:
        """A window with all, then one member leaves, with those that train the same if others
        stay, then a window with who is left.
        """
        self._window(start_ns, "before")
        first = self.members[self.measure.departs]
        leaving = [member for member in self.members if member.workload == first.workload]
        if len(leaving) == len(self.members):
            leaving = [first]
        for member in leaving:
            member.stopping = True
            self.server.send(member.member, "stop")
        deadline = time.monotonic() + self.timeouts["stop"]
        while late := [member for member in leaving if not member.gone]:
            self._pump(deadline, "stop", late)
        for member in leaving:
            if member.status == "completed":
                member.status = "departed"
        self._go_on_or_give_up()
        self._window(time.monotonic_ns() + int(self.measure.settle_s * 1e9), "after")

    def _now(self) -> str:
        """For who watches: the phase, members, what they do."""
        what, event = NOW[self.phase]
        count = sum(event in m.events for m in self.members) if event else len(self.alive)
        said = f"{what} {count} of {len(self.specs)} members"
        if self.phase == "window":
            said += f", {self._pace()}"
        return said

    def _pace(self) -> str:
        """Samples/s of all members since go."""
        rate = 0.0
        for member in self.alive:
            progress, started = member.events.get("progress"), member.events.get("started")
            if progress and started and progress["t"] > started["t"]:
                rate += progress["samples"] / ((progress["t"] - started["t"]) / 1e9)
        return f"{rate:,.0f} samples/s"

    def _close_window(self, name: str, start_ns: int, end_ns: int, closed: float) -> None:
        """Note a window that was closed; members train on until its last readings are taken."""
        seconds = round((end_ns - start_ns) / 1e9, 6)
        self.windows.append(Window(name=name, start_ns=start_ns, end_ns=end_ns, seconds=seconds))
        while (left := closed + self.watch.linger_s - time.monotonic()) > 0:
            self._pump(math.inf, "window", [], left)

    # -- the end --------------------------------------------------------------------------------

    def _stop(self, cut_short: bool = False) -> None:
        """Ask all to stop, wait for a bounded time, end those that do not, and take in the rest.

        A member that outlives SIGKILL is left behind. cut_short: the cell is over before its time,
        and who is still building need not finish.
        """
        for member in self.members:
            if not member.gone:
                member.stopping = True
                self.server.send(member.member, "stop")
        grace = min(self.timeouts["stop"], CUT_SHORT_S) if cut_short else self.timeouts["stop"]
        deadline, kills = time.monotonic() + grace, 0
        while left := [member for member in self.members if not member.gone]:
            self._take_in()
            if all(member.status == "timed_out" for member in left) and not kills:
                deadline = min(deadline, time.monotonic() + KILL_S)  # nobody has to be waited for
            if time.monotonic() < deadline:
                continue
            if kills == KILLS:
                self._see(self.server.abandon())
                break
            for member in left:
                if cut_short and member.status is None and "started" not in member.events:
                    member.status = "stopped"
            self._end_late(left, "did not stop within its time-out", "stop")
            deadline, kills = time.monotonic() + KILL_S, kills + 1
