"""One collocated run: start the members, hold them at the barrier, measure, stop, account.

The conductor knows members by their events only (member/protocol.py says which), so every kind of
end shows as an event, an exit or a time-out of a phase, and nothing can hang.
"""

import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from workflow.collocation.gpu.second_context import second_context
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.record.values import Window
from workflow.collocation.run.environment import server_environment
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.loader import Loader
from workflow.collocation.run.outcome import FAULTY, Tracked, cell_status
from workflow.collocation.run.progress import NOW, Display
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import (
    NO_DAEMON,
    PIPE_FOLDER,
    GpuBusy,
    NotInForce,
    Report,
    Unsupported,
)
from workflow.collocation.study.cell import MeasureSpec
from workflow.collocation.telemetry.watch import Watch

# Seconds that a phase may take; `window` is what a window may take beyond its own length, and for
# a completion how long a member may show no progress.
TIMEOUTS = {"build": 900.0, "warm": 900.0, "window": 900.0, "stop": 120.0}
FALLOUT_S = 0.5  # for what a fault does to the others to show
CUT_SHORT_S = 10.0  # for the others to stop after a fault
RELEASE_S = 8.0  # for the method to drop all who are late
KILL_S = 3.0  # for a member to end by what it was sent
KILLS = 2  # as many signals, then one that has not ended is left behind
POLL_S = 0.2


class CellOver(Exception):
    """A member failed, or none is left: nothing more can be measured in this cell."""


@dataclass
class Conductor:
    """Members of one cell, from their start to their end.

    specs: one member spec each. timeouts: seconds by phase.
    """

    server: ForkServerClient
    sharing: Method
    specs: list[MemberSpec]
    measure: MeasureSpec
    log: Path
    display: Display
    timeouts: dict[str, float]
    watch: Watch
    loader: Loader
    members: list[Tracked] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    evidence: dict = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    phase: str = "build"
    deadline: float = 0.0  # of what is waited for, on the monotonic clock
    turn: str = ""  # what a person reads of the slice under way
    not_in_force: tuple[str, str] | None = None  # what the evidence failed with, after which phase
    released: set[int] = field(default_factory=set)  # PIDs that the method was told to drop
    no_second_context: str | None = None  # why the visit that the measure asks for failed

    def run(self) -> None:
        """Go through all phases. Afterwards every member has ended and carries its status.

        An interruption passes through here at once: the server's context ends the members. Raises
        GpuBusy if others came to the card: then nothing of this counts.
        """
        cut_short = True
        try:
            self._timed("build", self._build)
            self._timed("autotune", self._autotune)
            self._timed("warm", lambda: self._reach("warm"))
            if self.measure.second_context:
                self._second_context()
            self._ask("barrier")
            self._timed("window", self._measure)
            self._ask("end")
            cut_short = False
        except CellOver:
            self._ask_after_fault()
        except GpuBusy:
            self._stop(cut_short)
            raise
        except NotInForce as error:
            self.not_in_force = str(error), "window" if "window_s" in self.timing else "warm"
        self._timed("stop", lambda: self._stop(cut_short))

    def outcome(self) -> tuple[str, str | None, str | None]:
        """Status, reason and phase of the cell, after run()."""
        sentence = self.loader.lost or self.evidence.get("fault", {}).get("reason")
        status, reason, phase = cell_status(self.members, sentence)
        if self.not_in_force:
            found, phase = self.not_in_force
            status, reason = "failed", "; ".join(filter(None, (found, reason)))
        return status, reason, phase

    def _timed(self, name: str, step) -> None:
        self.phase, began = name, time.monotonic()
        self.deadline = began + self.timeouts["warm" if name == "autotune" else name]
        self.watch.phase(name)
        try:
            step()
        finally:
            self.timing[f"{name}_s"] = round(time.monotonic() - began, 3)

    @property
    def alive(self) -> list[Tracked]:
        return [member for member in self.members if member.alive]

    def _tell(self, members: list[Tracked], *commands: str) -> None:
        for member in members:
            member.stopping |= "stop" in commands
            for command in commands:
                self.server.send(member.member, command)

    def _build(self) -> None:
        self.loader.start(self.server, self.log)
        for _, group in groupby(self.specs, lambda spec: spec.process):
            specs = [*group]
            self.members += self.server.start(specs, self.log / f"member{specs[0].index}.log")
        self._reach("built")
        # Of a command its script is looked at, and not what starts and ends it.
        seen = {m.events["built"].get("script", m.pid): m.member for m in reversed(self.alive)}
        pids = {member: pid for pid, member in seen.items()}  # a process once
        if (beside := self.loader.member) and beside.pid:
            pids[beside.member] = beside.pid
        self.watch.members(pids)
        if self.measure.kind == "interleaved" and len(self._able("hold")) < len(self.alive):
            raise NotInForce("interleaved: a member does not know the command 'hold'")

    def _able(self, command: str) -> list[Tracked]:
        return [m for m in self.alive if command in m.events["built"].get("commands", [])]

    def _autotune(self) -> None:
        """Have cuDNN choose kernels for one member after the other, or for all at once (a control).

        The others rest, but for scripts: those choose when they like.
        """
        able = self._able("autotune")
        for turn in [able] if self.measure.autotune == "concurrent" else [[m] for m in able]:
            self._tell(turn, "autotune")
            while late := [m for m in turn if m.alive and "autotuned" not in m.events]:
                self._pump(late)
        self._tell(able, "warm")

    def _second_context(self) -> None:
        """Have the GPU, or each MIG device, leave the members' context for a moment."""
        began = time.monotonic()
        environments = (self.sharing.environment(member.member) for member in self.alive)
        for place in sorted({found["CUDA_VISIBLE_DEVICES"] for found in environments}):
            there = {"CUDA_VISIBLE_DEVICES": place, PIPE_FOLDER: NO_DAEMON}
            why = second_context(server_environment() | there)
            if why and not self.no_second_context:
                self.no_second_context = why
                self.display.say(f"nobody could visit {place}: {why}", loud=False)
        self.timing["second_context_s"] = round(time.monotonic() - began, 3)

    def _reach(self, event: str) -> None:
        """Wait until every living member has sent `event`."""
        while late := [member for member in self.alive if event not in member.events]:
            self._pump(late)
        self._go_on_or_give_up()
        self.display.say(f"{event}: {len(self.alive)} of {len(self.members)}", loud=False)

    def _pump(self, late: list[Tracked], seconds: float = POLL_S) -> None:
        """Take in what arrives within `seconds`; after the deadline, end those who are late."""
        self._take_in(seconds)
        if time.monotonic() > self.deadline:
            self._end_late(late)
        self._go_on_or_give_up()

    def _pump_until(self, until_ns: int) -> None:
        while (left := until_ns - time.monotonic_ns()) > 0:
            self._pump([], left / 1e9)

    def _take_in(self, seconds: float = POLL_S) -> None:
        self.display.show(self._now)
        for event in self.server.wait(min(seconds, POLL_S)):
            member = self.server.members[event["member"]]
            if event["event"] in ("error", "exited") and member.error:
                words = f"member {member.member}: {member.status}: {member.error}"
                self.display.say(words, loud=False)

    def _end_late(self, late: list[Tracked]) -> None:
        until = time.monotonic() + RELEASE_S
        for member in late:
            known = member.pid is not None and member.pid not in self.released
            if known and time.monotonic() < until:
                self.released.add(member.pid)
                self.sharing.release(member.pid)  # or its death could harm the others
            # The first signal leaves the Python stack of the hang in the member's log.
            number = signal.SIGABRT if member.status is None else signal.SIGKILL
            why = f"no end of phase '{member.current_phase}' within its time-out"
            member.end("timed_out", why)
            self.server.kill(member.member, number)

    def _go_on_or_give_up(self) -> None:
        """Out-of-memory leaves the survivors running, but not where conditions are compared or a
        loader is shared; any other fault ends the cell.
        """
        together = self.loader.spec or self.measure.kind == "interleaved"
        over = (*FAULTY, *["out_of_memory"] * bool(together))
        if not self.alive or any(member.status in over for member in self.members):
            raise CellOver
        self.loader.require()

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

    # -- the measures ---------------------------------------------------------------------------

    def _measure(self) -> None:
        held = ["hold"] if self.measure.kind == "interleaved" else []
        self._tell(self.alive, "go", *held)
        self._reach("started")
        started = max(member.events["started"]["t"] for member in self.alive)
        if self.measure.kind == "completion":  # who is early waits idly for the others
            self._completion(started)
        elif self.measure.kind == "departure":
            self._departure(started + int(self.measure.settle_s * 1e9))
        elif held:
            self._interleaved()
        else:
            self._window(started + int(self.measure.settle_s * 1e9))

    def _window(self, start_ns: int, name: str = "window") -> None:
        """[start, start + W), longer until the slowest member has its least number of steps, and
        while one pauses that waits for nothing: by W, or its longest pause in warm-up, at most.
        """
        seconds, least = self.measure.window_s, self.measure.min_steps
        end_ns = start_ns + int(seconds * 1e9)
        pauses = (member.events["warm"].get("pause_s", 0.0) for member in self.alive)
        last_ns = end_ns + int(max(seconds, *pauses) * 1e9)
        steady = [member for member in self.alive if self.specs[member.member].arrival_seed is None]
        self.deadline = time.monotonic() + self.measure.settle_s + seconds + self.timeouts["window"]
        first: dict[int, int] = {}  # steps of each member when the window had opened
        self._pump_until(start_ns)
        self.watch.open(name)
        while True:
            now = time.monotonic_ns()
            for member in self.alive:
                progress = member.events.get("progress")
                if progress and progress["t"] >= start_ns:
                    first.setdefault(member.member, progress["steps"])
            slow = [m for m in self.alive if m.steps - first.get(m.member, m.steps) < least]
            paused = [m for m in steady if m.alive and 2 * m.stepped_ns < start_ns + now]
            if now >= end_ns and not slow and not (paused and now < last_ns):
                break
            self._pump(slow)
        self.watch.close(name)
        self._close_window(name, start_ns, now, time.monotonic())

    def _completion(self, start_ns: int) -> None:
        """Until every member has done its work; the window ends with the last one's."""
        self.watch.open("completion")
        while late := [member for member in self.alive if "done" not in member.events]:
            stalest = min(late, key=lambda member: member.heard_ns)
            self.deadline = stalest.heard_ns / 1e9 + self.timeouts["window"]
            self._pump([stalest])
        self.watch.close("completion")
        closed = time.monotonic()
        ends = [member.events["done"]["t"] for member in self.alive]
        self._close_window("completion", start_ns, max(ends) + 1, closed)

    def _departure(self, start_ns: int) -> None:
        """A window with all, then one member leaves, with those that train the same if others
        stay, then a window with who is left.
        """
        self._window(start_ns, "before")
        first = self.members[self.measure.leaving_member]
        alike = [member for member in self.members if member.workload == first.workload]
        leaving = alike if len(alike) < len(self.members) else [first]
        self._tell(leaving, "stop")
        self.deadline = time.monotonic() + self.timeouts["stop"]
        while late := [member for member in leaving if not member.gone]:
            self._pump(late)
        for member in leaving:
            if member.status == "completed":
                member.status = "departed"
        self._go_on_or_give_up()
        self._window(time.monotonic_ns() + int(self.measure.settle_s * 1e9), "after")

    def _close_window(self, name: str, start_ns: int, end_ns: int, closed: float) -> None:
        """Note a window that was closed; members train on for its last readings and answers."""
        seconds = round((end_ns - start_ns) / 1e9, 6)
        self.windows.append(Window(name=name, start_ns=start_ns, end_ns=end_ns, seconds=seconds))
        linger_s = max(self.watch.linger_s, *(spec.linger_s for spec in self.specs))
        self._pump_until(int((closed + linger_s) * 1e9))

    def _interleaved(self) -> None:
        """The conditions of a cell train in turns: in a round each has one slice, in random order.

        Whoever is not at work blocks and has nothing under way, so that a condition has card and
        cores to itself, as if the others were not there.
        """
        conditions = self.sharing.conditions
        self._await_held()
        self.display.say(f"held: {len(self.alive)} of {len(self.members)}", loud=False)
        shuffle = random.Random(self.specs[0].seed).sample
        spans = {condition: [] for condition in conditions}
        for number in range(self.measure.slices):
            for condition in shuffle(list(conditions), len(conditions)):
                self.turn = f"{condition}, round {number + 1} of {self.measure.slices}"
                its = [self.members[m] for m in conditions[condition]]
                spans[condition].append(self._slice(its))
        for name, those in spans.items():
            seconds = round(sum(end - start for start, end in those) / 1e9, 6)
            whole = {"start_ns": those[0][0], "end_ns": those[-1][1], "seconds": seconds}
            whole |= {"members": conditions[name], "spans": those}
            self.windows.append(Window(name=name, **whole))

    def _slice(self, condition: list[Tracked]) -> tuple[int, int]:
        """Let these members train for slice_s, and wait until nothing of theirs is under way.

        Gives what counts of it (ns): from drop_s after `resume` was sent, until `hold` is sent.
        """
        resumed = time.monotonic_ns()
        for member in condition:
            del member.events["held"]
        self._tell(condition, "resume")
        self._pump_until(resumed + round(self.measure.slice_s * 1e9))
        held = time.monotonic_ns()
        self._tell(condition, "hold")
        self._await_held()
        return resumed + round(self.measure.drop_s * 1e9), held

    def _await_held(self) -> None:
        self.deadline = time.monotonic() + self.timeouts["window"]
        while late := [member for member in self.alive if "held" not in member.events]:
            self._pump(late)

    def _now(self) -> str:
        """For who watches: the phase, members, what they do."""
        said = f"{NOW[self.phase]} {len(self.alive)} of {len(self.specs)} members"
        if self.phase != "window":
            return said
        rate = sum(member.rate for member in self.alive)
        return f"{said}, {self.turn or f'{rate:,.0f} samples/s'}"

    # -- the end --------------------------------------------------------------------------------

    def _stop(self, cut_short: bool) -> None:
        """Ask all to stop, wait for a bounded time, end those that do not, and take in the rest.

        A member that outlives SIGKILL is left behind. cut_short: the cell is over before its time,
        and who is still building need not finish.
        """
        self._tell([member for member in self.members if not member.gone], "stop")
        grace = min(self.timeouts["stop"], CUT_SHORT_S) if cut_short else self.timeouts["stop"]
        deadline, kills = time.monotonic() + grace, 0
        while left := [member for member in self.members if not member.gone]:
            self._take_in()
            if all(member.status == "timed_out" for member in left) and not kills:
                deadline = min(deadline, time.monotonic() + KILL_S)  # nobody has to be waited for
            if time.monotonic() < deadline:
                continue
            if kills == KILLS:
                pids = ", ".join(str(member.pid) for member in left)
                self.display.say(f"process {pids} outlives SIGKILL and was left behind")
                break
            for member in left:
                if cut_short and member.status is None and "started" not in member.events:
                    member.status = "stopped"
            self._end_late(left)
            deadline, kills = time.monotonic() + KILL_S, kills + 1
