"""How members and cells end: from events, exit codes and signals to a status and a reason."""

import signal
from dataclasses import dataclass, field

from workflow.collocation.record import Member

FAULTY = ("failed", "killed", "timed_out")
PHASES = ("build", "warm", "window", "stop")
_PHASE_AFTER = {None: "build", "built": "warm", "warm": "window", "started": "window"}


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
    stopping: bool = False  # it was told to stop
    gone: bool = False

    @property
    def alive(self) -> bool:
        return not self.gone and self.status is None

    @property
    def current_phase(self) -> str:
        if self.stopping:
            return "stop"
        reached = [name for name in ("built", "warm", "started") if name in self.events]
        return _PHASE_AFTER[reached[-1] if reached else None]

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
        elif kind == "epoch":
            self.epochs.append(
                {key: value for key, value in event.items() if key not in ("event", "member", "t")}
            )
        elif kind == "error":
            self.end(
                "out_of_memory" if event.get("out_of_memory") else "failed",
                f"{event.get('class', 'error')}: {event.get('message', '')}".strip(),
                event.get("phase"),
            )
        elif kind == "exited":
            self._exited(event.get("code"), event.get("signal"))

    def _exited(self, code: int | None, number: int | None) -> None:
        self.gone, self.exit_code, self.signal = True, code, number
        if self.status is not None:
            return
        if code == 0 and self.stopping:
            self.status = "completed" if "stopped" in self.events else "stopped"
        elif code is None and number is None:
            self.end("failed", "the fork server died, and its members with it")
        elif number is not None:
            self.end("killed", f"ended by signal {number} ({_signal_name(number)})")
        elif code == 0:
            self.end("failed", "ended before it was told to")
        else:
            self.end("failed", f"exited with code {code} without an error message")

    def end(self, status: str, error: str, phase: str | None = None) -> None:
        """Note how it ended; the first cause stays."""
        if self.status is None:
            self.status, self.error = status, " ".join(error.split())[:500]
            self.phase = phase if phase in PHASES else self.current_phase

    def record(self) -> Member:
        built, warm = self.events.get("built", {}), self.events.get("warm", {})
        stopped = self.events.get("stopped", {})
        return Member(
            member=self.member,
            workload=self.workload,
            pid=self.pid,
            status=self.status or "stopped",
            phase=self.phase,
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            cores=built.get("cores", []),
            threads=built.get("threads"),
            parameters=built.get("parameters"),
            parameter_bytes=built.get("parameter_bytes"),
            resident_bytes=built.get("resident_bytes"),
            memory_peak_allocated=stopped.get("memory_peak_allocated"),
            memory_peak_reserved=stopped.get("memory_peak_reserved"),
            device_uuid=built.get("device_uuid"),
            sm_count=built.get("sm_count"),
            build_s=built.get("seconds", {}),
            input_share=warm.get("input_share"),
            data_wait_share=stopped.get("data_wait_share"),
            epochs=self.epochs,
        )


def cell_status(members: list[Tracked]) -> tuple[str, str | None, str | None]:
    """(status, reason, phase) of a cell whose members have all ended.

    An out-of-memory of any member decides: what it does to the others is its consequence.
    """
    for status, kinds in (
        ("out_of_memory", ("out_of_memory",)),
        ("failed", ("failed", "killed")),
        ("timed_out", ("timed_out",)),
    ):
        for member in members:
            if member.status in kinds:
                where = f"member {member.member} ({member.workload}), {member.phase}"
                return status, f"{where}: {member.error}", member.phase
    return "completed", None, None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
