"""How members and cells end: from events, exit codes and signals to a status and a reason."""

import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation.record.run_json import Member
from workflow.collocation.sharing.evidence import Report

FAULTY = ("failed", "killed", "timed_out")
# A member that ended badly → the status of its cell.
_CELL = {status: status for status in ("out_of_memory", "timed_out", "failed")}
_CELL["killed"] = "failed"
_WORDS = {"completed": "stopped cleanly", "out_of_memory": "out of memory", "timed_out": "hung"}
_SHORT = 100  # characters of a neighbour's error in its cell's reason
# Fields of a member's record that are as we have them, and as its events have them.
_KNOWN = ("member", "workload", "pid", "phase", "exit_code", "signal", "error", "epochs")
_TOLD = {"cores", "threads", "parameters", "parameter_bytes", "resident_bytes", "sm_count"}
_TOLD |= {"sm_source", "device_uuid", "memory_free", "memory_peak_allocated"}
_TOLD |= {"memory_peak_reserved", "input_share", "data_wait_share"}
PHASES = ("build", "warm", "window", "stop")


@dataclass
class Tracked:
    """One member while it lives: what it has said so far, and how it ended."""

    member: int
    workload: str
    batch_size: int
    pid: int | None = None
    events: dict[str, dict] = field(default_factory=dict)  # newest event of each kind
    epochs: list[dict] = field(default_factory=list)
    status: str | None = None
    phase: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    ended_ns: int | None = None  # when it ended badly, on the monotonic clock
    stopping: bool = False  # it was told to stop
    gone: bool = False

    @property
    def alive(self) -> bool:
        return not self.gone and self.status is None

    @property
    def current_phase(self) -> str:
        if self.stopping:
            return "stop"
        return PHASES[len({"built", "warm"} & self.events.keys())]

    @property
    def heard_ns(self) -> int:
        """When it last said anything, on the monotonic clock."""
        return max((event["t"] for event in self.events.values()), default=0)

    @property
    def steps(self) -> int:
        return self.events.get("progress", {}).get("steps", 0)

    def see(self, event: dict) -> None:
        """Take in an event of the member's, or its end ('exited')."""
        kind = event["event"]
        self.events[kind] = event
        if kind == "forked":
            self.pid = event["pid"]
        elif kind == "built":
            self.pid = event.get("script", self.pid)  # the process of a command, a child of ours
        elif kind == "epoch":
            frame = ("event", "member", "t")
            self.epochs.append({key: value for key, value in event.items() if key not in frame})
        elif kind == "error":
            self.end(
                "out_of_memory" if event.get("out_of_memory") else "failed",
                f"{event.get('class', 'error')}: {event.get('message', '')}".strip(),
                event.get("phase"),
                event.get("t"),
            )
        elif kind == "exited" and "stuck" in event:
            self.gone = True
            what = f"process {event['stuck']} outlives SIGKILL and was left behind"
            if not self.error:
                self.status = None  # whatever it did before
                self.end("killed", what, at_ns=event.get("t"))
            else:
                self.error += f"; {what}"
        elif kind == "exited":
            self._exited(event.get("code"), event.get("signal"), event.get("t"))

    def _exited(self, code: int | None, number: int | None, at_ns: int | None) -> None:
        self.gone, self.exit_code, self.signal = True, code, number
        if self.status is not None:
            return
        if code == 0 and self.stopping:
            trained = self.events.keys() >= {"started", "stopped"}
            self.status = "completed" if trained else "stopped"
            return
        if code is None and number is None:
            what = "ended, and nobody can say how: the fork server died or is silent"
        elif number is not None:
            names = {known.value: known.name for known in signal.Signals}
            what = f"ended by signal {number} ({names.get(number, 'unknown')})"
        elif code == 0:
            what = "ended before it was told to"
        else:
            what = f"exited with code {code} without an error message"
        self.end("failed" if number is None else "killed", what, at_ns=at_ns)

    def end(
        self, status: str, error: str, phase: str | None = None, at_ns: int | None = None
    ) -> None:
        """Note how it ended, and when (by default now); the first cause stays."""
        if self.status is None:
            self.status, self.error = status, " ".join(error.split())[:500]
            self.phase = phase if phase in PHASES else self.current_phase
            self.ended_ns = time.monotonic_ns() if at_ns is None else at_ns

    def report(self) -> Report:
        """What it said of itself when it was built."""
        built = self.events["built"]
        keys = ("device_uuid", "sm_count", "memory_free", "sm_source")
        return Report(pid=self.pid, **{key: built.get(key) for key in keys})

    def record(self) -> Member:
        known = {name: getattr(self, name) for name in _KNOWN}
        for name in ("built", "warm", "stopped"):
            event = self.events.get(name, {})
            known |= {key: value for key, value in event.items() if key in _TOLD}
        build_s = dict(self.events.get("built", {}).get("seconds", {}))
        if "tuned" in self.events:
            build_s["tune"] = self.events["tuned"]["seconds"]
        return Member(status=self.status or "stopped", build_s=build_s, **known)


def cell_status(
    members: list[Tracked], sentence: str | None = None
) -> tuple[str, str | None, str | None]:
    """(status, reason, phase) of a cell whose members have all ended.

    The one that ended badly first decides: what it did to the others is its consequence, and the
    reason's tail. sentence: what the method had to say after that, if anything.
    """
    bad = [member for member in members if member.status in _CELL]
    if not bad:
        return "completed", None, None
    first = min(bad, key=lambda member: member.ended_ns)
    others = [member for member in members if member is not first]
    what = f"member {first.member} ({first.workload}), {first.phase}: {first.error}"
    fates = ", ".join(f"{count} {fate}" for fate, count in Counter(map(_fate, others)).items())
    tail = f"the other {len(others)}: {fates}" if others else None
    told = "unsupported" if first.events.get("error", {}).get("unsupported") else None
    return told or _CELL[first.status], "; ".join(filter(None, (what, sentence, tail))), first.phase


def _fate(member: Tracked) -> str:
    """How it ended, in a few words: "stopped cleanly", "failed: AcceleratorError: …"."""
    if member.status == "stopped":
        # What was still being built cannot hear that it is to stop.
        return "stopped cleanly" if member.signal is None else "ended while being built"
    words = _WORDS.get(member.status, member.status)
    if not member.error:
        return words
    short = member.error if len(member.error) <= _SHORT else f"{member.error[:_SHORT].rstrip()}…"
    return f"{words}: {short}"


def verified(evidence: dict) -> bool | None:
    """True if every witness was, false if one was not, null if one could not tell or none was."""
    answers = [entry.get("verified") for entry in evidence.values()]
    if False in answers:
        return False
    return all(answers) or None if answers else None


def log_of(folder: Path, reason: str | None) -> Path:
    """Where an attempt that went wrong says more: the log of the member that its reason names."""
    member = re.match(r"member (\d+)\b", reason or "")
    log = folder / "log" / (f"member{member[1]}.log" if member else "conductor.log")
    return log if log.exists() else folder / "log" / "conductor.log"
