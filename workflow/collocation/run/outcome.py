"""How members and cells end: events, exit codes and signals become a status and a reason."""

import re
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workflow.collocation.record.run_json import MemberRecord
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.study.redaction import redacted

FAULTY = ("failed", "killed", "timed_out")
PHASES = ("build", "warm", "window", "stop")


@dataclass(eq=False)
class TrackedMember:
    """State of one member: the events it has sent, and how it ended.

    channel, process: used by fork_client.py alone, to read events and to kill it.
    """

    member: int
    workload: str
    batch_size: int
    pid: int | None = None
    events: dict[str, dict] = field(default_factory=dict)  # newest event of each kind
    status: str | None = None
    phase: str | None = None  # in which it ended, if it ended badly
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    ended_ns: int | None = None  # when it ended badly, on the monotonic clock
    last_step_ns: int = 0  # when its number of steps last grew, on the monotonic clock
    recent_rate: float = 0.0  # samples/s between its last two reports
    scripts: set[int] = field(default_factory=set)  # PIDs of the runs of its script
    stopping: bool = False  # it was told to stop
    gone: bool = False  # its process has ended
    channel: socket.socket | None = None
    process: psutil.Process | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs without a fault so far."""
        return not self.gone and self.status is None

    @property
    def current_phase(self) -> str:
        """The phase of the cell that it is in, by its events."""
        if self.stopping:
            return "stop"
        return PHASES[len({"built", "warm"} & self.events.keys())]

    @property
    def last_event_ns(self) -> int:
        """When it sent its last event, on the monotonic clock; 0 before the first."""
        return max((event["t"] for event in self.events.values()), default=0)

    @property
    def steps(self) -> int:
        """Steps since `go`, as last reported."""
        return self.events.get("progress", {}).get("steps", 0)

    @property
    def rate(self) -> float:
        """Samples/s from `go` to its last report; 0.0 before the first."""
        progress, started = self.events.get("progress"), self.events.get("started")
        if not progress or progress["t"] <= started["t"]:
            return 0.0
        return progress["samples"] / ((progress["t"] - started["t"]) / 1e9)

    def see(self, event: dict) -> None:
        """Update the state by one event of member/protocol.py."""
        kind = event["event"]
        if kind == "progress" and event["steps"] > self.steps:
            before = self.events.get("progress", {"samples": 0, "t": self.events["started"]["t"]})
            seconds = max(event["t"] - before["t"], 1) / 1e9
            self.recent_rate = (event["samples"] - before["samples"]) / seconds
            self.last_step_ns = event["t"]
        self.events[kind] = event
        if "script" in event:
            self.scripts.add(event["script"])
        if kind == "restarted" and "built" in self.events:
            self.events["built"]["script"] = event["script"]
        elif kind == "forked":
            self.pid = event["pid"]
        elif kind == "error":
            status = "out_of_memory" if event["out_of_memory"] else "failed"
            self.end(status, f"{event['class']}: {event['message']}", event["phase"], event["t"])
        elif kind == "exited":
            self._see_exit(event)

    def _see_exit(self, event: dict) -> None:
        self.gone, self.exit_code, self.signal = True, event["code"], event["signal"]
        if event["code"] == 0 and self.stopping and self.status is None:
            trained = self.events.keys() >= {"started", "stopped"}
            self.status = "completed" if trained else "stopped"
            return
        error = "ended, and nobody can say how: the fork server died"
        if self.signal is not None:
            error = f"ended by signal {self.signal} ({signal.Signals(self.signal).name})"
        elif self.exit_code is not None:
            error = f"ended by itself with exit code {self.exit_code}"
        self.end("killed" if self.signal else "failed", error, at_ns=event["t"])

    def end(
        self, status: str, error: str, phase: str | None = None, at_ns: int | None = None
    ) -> None:
        """Note that it ended badly, unless an earlier cause is noted already.

        phase: by default the current one. at_ns: by default now, on the monotonic clock.
        """
        if self.status is None:
            self.status, self.error = status, redacted(" ".join(error.split()))[:500]
            self.phase = phase if phase in PHASES else self.current_phase
            self.ended_ns = time.monotonic_ns() if at_ns is None else at_ns

    def report(self) -> Report:
        """What it said of its device when it was built."""
        built = self.events["built"]
        keys = ("device_uuid", "sm_count", "memory_free", "sm_source", "stream", "products")
        return Report(pid=self.pid, **{key: built.get(key) for key in keys})

    def record(self) -> MemberRecord:
        """Its entry in run.json: the fields of its events, and how it ended."""
        fields = {}
        for name in ("built", "warm", "stopped"):
            fields |= self.events.get(name, {})
        build_s = dict(fields.get("seconds", {}))
        if "autotuned" in self.events:
            build_s["autotune"] = self.events["autotuned"]["seconds"]
        fields |= vars(self) | {"status": self.status or "stopped", "build_s": build_s}
        return MemberRecord(
            **{name: fields[name] for name in MemberRecord.model_fields.keys() & fields.keys()}
        )


def cell_status(
    members: list[TrackedMember], method_problem: str | None = None
) -> tuple[str, str | None, str | None]:
    """Status, reason and phase of a cell whose members have all ended.

    The member that ended badly first decides; what happened to the others is its consequence, and
    the end of the reason. method_problem: what the method's evidence said after the fault.
    """
    bad = [member for member in members if member.status in (*FAULTY, "out_of_memory")]
    if not bad:
        return "completed", None, None
    first = min(bad, key=lambda member: member.ended_ns)
    sentences = [f"member {first.member} ({first.workload}), {first.phase}: {first.error}"]
    if method_problem:
        sentences.append(method_problem)
    counts = Counter(member.status for member in members if member is not first)
    if counts:
        statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
        sentences.append(f"the other {len(members) - 1}: {statuses}")
    status = "failed" if first.status == "killed" else first.status
    if first.events.get("error", {}).get("unsupported"):
        status = "unsupported"
    return status, "; ".join(sentences), first.phase


def verified(evidence: dict) -> bool | None:
    """Whether all evidence shows that the method was in force.

    False if some evidence is against it, None if some could not tell or there is none.
    """
    answers = [entry.get("verified") for entry in evidence.values()]
    if False in answers:
        return False
    return True if answers and all(answers) else None


def log_of(folder: Path, reason: str | None) -> Path:
    """The log file of an attempt's folder that says most about why the cell ended badly.

    That is the log of the member that the reason names, else the conductor's.
    """
    if match := re.match(r"member (\d+)\b", reason or ""):
        # Members in one process share the log of the first of them.
        for number in range(int(match[1]), -1, -1):
            log = folder / "log" / f"member{number}.log"
            if log.exists():
                return log
    return folder / "log" / "conductor.log"
