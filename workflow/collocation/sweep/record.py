"""The record of a run and its attempts, and what follows from how an attempt ended."""

import re
import signal
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from workflow.collocation.member.failures import says_out_of_memory
from workflow.collocation.study.errors import printable
from workflow.collocation.study.methods import MAX_MEMBERS

ALL_SLOTS = MAX_MEMBERS  # that a supervisor may have; a run that asks for so many runs alone
# In a line that names a cause; torchrun adds one that does not.
ERROR = re.compile(r"(?<!ChildFailed)(Error|Exception)\b")


class State(StrEnum):
    """What a run is at: as far as its record says, for one that runs may have been killed."""

    waiting = "waiting"
    running = "running"
    ended = "ended"
    failed = "failed"


class Outcome(StrEnum):
    """How an attempt ended; after the last four the run is tried again at once."""

    ended = "ended"
    failed = "failed"
    out_of_memory = "out_of_memory"
    server_fault = "server_fault"
    stopped = "stopped"
    lost = "lost"


@dataclass
class RunAttempt:
    """One attempt at a run.

    session: number of the session of the sweep. gpu: UUID or "cpu". slots: those of its supervisor
    that it took; wanted: how many it asked for. shared: whether other runs ran beside it. pid: of
    the command. start, end: UTC. exit: code, null after a signal. peak_memory_mb: most GPU memory
    of all its processes, null where NVML does not list them. mps: whether the MPS daemon listed
    one of them; null if none was seen on the GPU. retry_slots: how many slots the next attempt
    asks for; null if this session makes none.
    """

    session: int
    host: str
    gpu: str
    method: str
    slots: list[int]
    cores: list[int]
    wanted: int = 1
    shared: bool = False
    pid: int | None = None
    start: str = ""
    end: str | None = None
    exit: int | None = None
    signal: int | None = None
    peak_memory_mb: float | None = None
    mps: bool | None = None
    outcome: str | None = None
    reason: str = ""
    retry_slots: int | None = None


@dataclass
class Run:
    """A run of a sweep, as its run.json holds it."""

    run: int
    command: list[str]
    attempts: list[RunAttempt] = field(default_factory=list)

    @classmethod
    def from_json(cls, content: dict) -> "Run":
        attempts = [RunAttempt(**attempt) for attempt in content["attempts"]]
        return cls(content["run"], content["command"], attempts)

    def to_json(self) -> dict:
        return asdict(self)

    def state(self, session: int) -> State:
        """What it is at in this session: one that failed in an earlier one waits again."""
        if not self.attempts:
            return State.waiting
        newest = self.attempts[-1]
        if newest.outcome is None:
            return State.running
        if newest.outcome == Outcome.ended:
            return State.ended
        again = newest.retry_slots is not None or newest.session < session
        return State.waiting if again else State.failed

    @property
    def wanted(self) -> int:
        """How many slots its next attempt asks for."""
        return (self.attempts[-1].retry_slots if self.attempts else None) or 1


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class End:
    """How the processes of an attempt ended.

    code: of the command, None after a signal, or if it did not start. error: why it did not start,
    or how its keeper was lost. stopped: whether it was ended on purpose. fault: whether the MPS
    server failed before; first: whether no other run had failed since then. lines: the newest of
    its output. left: how many of its processes outlived the command; left_on_gpu: of those seen on
    the GPU. limit_s: seconds after which it was ended, as it took too long; None if it was not.
    """

    code: int | None = None
    signal: int | None = None
    error: str = ""
    stopped: bool = False
    fault: bool = False
    first: bool = False
    lines: tuple[str, ...] = ()
    left: int = 0
    left_on_gpu: int = 0
    limit_s: float | None = None


def conclude(run: Run, end: End, any_size: bool) -> None:
    """Enter into a run's newest attempt how it ended, and whether it is tried again.

    any_size: whether runs are of any size, admitted by what they show; slots say nothing of their
    memory then.
    """
    attempt = run.attempts[-1]
    attempt.end, attempt.exit, attempt.signal = timestamp(), end.code, end.signal
    attempt.outcome, attempt.reason, attempt.retry_slots = _judge(run, end, any_size)


def _judge(run: Run, end: End, any_size: bool) -> tuple[Outcome, str, int | None]:
    """Outcome, reason, and slots for the next attempt, None without one.

    SIGTERM that is not ours is of somebody who ends the job; a run that gets it twice has failed.
    The first to fail in a fault of the MPS server is suspected of it, and as any that was in two
    faults it runs alone next: so a run that causes faults harms nobody twice on end, and one that
    causes none ends well.
    """
    attempt = run.attempts[-1]
    earlier = [a.outcome for a in run.attempts[:-1] if a.session == attempt.session]
    cause = end.error or (f"signal {end.signal}" if end.signal else f"exit code {end.code}")
    telling = [line for line in end.lines if ERROR.search(line)] or end.lines
    words = f"{cause}: {printable(telling[-1])[:300]}" if telling else cause
    left = f"processes that it left were ended: {end.left}" if end.left else ""
    is_terminated = end.signal == signal.SIGTERM and Outcome.stopped not in earlier
    if end.limit_s:
        return Outcome.failed, f"it was ended, as it took longer than {end.limit_s:g} s", None
    if end.stopped or is_terminated:  # one that heeds SIGTERM may end with 0, and is not done
        return Outcome.stopped, f"it was stopped ({cause})", attempt.wanted
    if end.code == 0 and end.left_on_gpu:
        return Outcome.failed, f"{left}, on the GPU: {end.left_on_gpu}", None
    if end.code == 0:
        return Outcome.ended, left, None
    if end.fault and attempt.shared:
        alone = end.first or Outcome.server_fault in earlier
        reason = f"the MPS server failed under it and others ({words})"
        return Outcome.server_fault, reason, ALL_SLOTS if alone else attempt.wanted
    memory = next((line for line in end.lines if says_out_of_memory(line)), "")
    if memory and attempt.shared and Outcome.out_of_memory not in earlier:
        slots = ALL_SLOTS if any_size else min(attempt.wanted + 1, ALL_SLOTS)
        return Outcome.out_of_memory, printable(memory)[:300], slots
    if memory:
        words = f"out of memory: {printable(memory)[:300]}"
    fault = "the MPS server failed under it alone: " if end.fault else ""
    return Outcome.failed, fault + words, None


def lose(run: Run) -> bool:
    """Close an attempt whose supervisor was killed; whether there was one."""
    if not run.attempts or run.attempts[-1].outcome is not None:
        return False
    attempt = run.attempts[-1]
    attempt.outcome, attempt.reason = Outcome.lost, "collocate was killed while it ran"
    attempt.retry_slots = attempt.wanted
    return True
