"""How members and cells end: from events, exit codes and signals to a status and a reason."""

import re
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workflow.collocation.record.run_json import Member
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study.redaction import redacted

FAULTY = ("failed", "killed", "timed_out")
PHASES = ("build", "warm", "window", "stop")


@dataclass(eq=False)
class Tracked:
    """One member while it lives: what it has said so far, and how it ended. channel, process: by
    which its fork server's client (fork_client.py) hears it and ends it.
    """

    member: int
    workload: str
    batch_size: int
    pid: int | None = None
    events: dict[str, dict] = field(default_factory=dict)  # newest event of each kind
    status: str | None = None
    phase: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    ended_ns: int | None = None  # when it ended badly, on the monotonic clock
    stepped_ns: int = 0  # when its count of steps last rose, on the monotonic clock
    stopping: bool = False  # it was told to stop
    gone: bool = False
    channel: socket.socket | None = None
    process: psutil.Process | None = None

    @property
    def alive(self) -> bool:
        return not self.gone and self.status is None

    @property
    def current_phase(self) -> str:
        reached = PHASES[len({"built", "warm"} & self.events.keys())]
        return "stop" if self.stopping else reached

    @property
    def heard_ns(self) -> int:
        """When it last said anything, on the monotonic clock."""
        return max((event["t"] for event in self.events.values()), default=0)

    @property
    def steps(self) -> int:
        return self.events.get("progress", {}).get("steps", 0)

    @property
    def rate(self) -> float:
        """Samples/s since go, as far as it has told."""
        progress, started = self.events.get("progress"), self.events.get("started")
        if not progress or progress["t"] <= started["t"]:
            return 0.0
        return progress["samples"] / ((progress["t"] - started["t"]) / 1e9)

    def see(self, event: dict) -> None:
        """Take in an event of the member's, or its end ('exited')."""
        kind = event["event"]
        if kind == "progress" and event["steps"] > self.steps:
            self.stepped_ns = event["t"]
        self.events[kind] = event
        if kind == "forked":
            self.pid = event["pid"]
        elif kind == "error":
            status = "out_of_memory" if event["out_of_memory"] else "failed"
            self.end(status, f"{event['class']}: {event['message']}", event["phase"], event["t"])
        elif kind == "exited":
            self.gone, self.exit_code, self.signal = True, event["code"], event["signal"]
            if event["code"] == 0 and self.stopping and self.status is None:
                trained = self.events.keys() >= {"started", "stopped"}
                self.status = "completed" if trained else "stopped"
                return
            said = "ended, and nobody can say how: the fork server died"
            if self.signal is not None:
                said = f"ended by signal {self.signal} ({signal.Signals(self.signal).name})"
            elif self.exit_code is not None:
                said = f"ended by itself with exit code {self.exit_code}"
            self.end("killed" if self.signal else "failed", said, at_ns=event["t"])

    def end(
        self, status: str, error: str, phase: str | None = None, at_ns: int | None = None
    ) -> None:
        """Note how it ended, and when (by default now); the first cause stays."""
        if self.status is None:
            self.status, self.error = status, redacted(" ".join(error.split()))[:500]
            self.phase = phase if phase in PHASES else self.current_phase
            self.ended_ns = time.monotonic_ns() if at_ns is None else at_ns

    def report(self) -> Report:
        """What it said of itself when it was built."""
        built = self.events["built"]
        keys = ("device_uuid", "sm_count", "memory_free", "sm_source", "stream")
        return Report(pid=self.pid, **{key: built.get(key) for key in keys})

    def record(self) -> Member:
        """What it said that a record has a field for, and how it ended."""
        told = {}
        for name in ("built", "warm", "stopped"):
            told |= self.events.get(name, {})
        build_s = dict(told.get("seconds", {}))
        if "autotuned" in self.events:
            build_s["autotune"] = self.events["autotuned"]["seconds"]
        told |= vars(self) | {"status": self.status or "stopped", "build_s": build_s}
        return Member(**{name: told[name] for name in Member.model_fields.keys() & told.keys()})


def cell_status(
    members: list[Tracked], sentence: str | None = None
) -> tuple[str, str | None, str | None]:
    """(status, reason, phase) of a cell whose members have all ended.

    The one that ended badly first decides: what it did to the others is its consequence, and the
    reason's tail. sentence: what the method had to say after that, if anything.
    """
    bad = [member for member in members if member.status in (*FAULTY, "out_of_memory")]
    if not bad:
        return "completed", None, None
    first = min(bad, key=lambda member: member.ended_ns)
    fates = Counter(member.status for member in members if member is not first)
    tail = ", ".join(f"{count} {status}" for status, count in fates.items())
    what = f"member {first.member} ({first.workload}), {first.phase}: {first.error}"
    others = tail and f"the other {len(members) - 1}: {tail}"
    reason = "; ".join(filter(None, (what, sentence, others)))
    if first.events.get("error", {}).get("unsupported"):
        return "unsupported", reason, first.phase
    return "failed" if first.status == "killed" else first.status, reason, first.phase


def verified(evidence: dict) -> bool | None:
    """True if every witness was, false if one was not, null if one could not tell or none was."""
    answers = [entry.get("verified") for entry in evidence.values()]
    if False in answers:
        return False
    return all(answers) or None if answers else None


def log_of(folder: Path, reason: str | None) -> Path:
    """Where an attempt that went wrong says more: the log of the member that its reason names."""
    member = re.match(r"member (\d+)\b", reason or "")
    # Of one process for several the first member has it.
    numbers = range(int(member[1]), -1, -1) if member else ()
    logs = (folder / "log" / f"member{number}.log" for number in numbers)
    return next((log for log in logs if log.exists()), folder / "log" / "conductor.log")
