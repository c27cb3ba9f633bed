"""From the files that members leave to the rates and losses in a cell's record."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workflow.collocation.record import latency, step_times
from workflow.collocation.record.run_json import MemberRecord
from workflow.collocation.record.values import FileDigest, Window
from workflow.collocation.run.outcome import TrackedMember

Arrays = dict[str, np.ndarray]


@dataclass
class StepRecords:
    """Step times of a cell's members, and what follows from them.

    add() fills the rates of one member. Afterwards `flags` has those of the cell.
    """

    windows: list[Window]
    drop_s: float  # of a slice, before the part that counts
    flags: set[str] = field(default_factory=set)
    steps: dict[int, Arrays] = field(default_factory=dict)  # by member
    requests: dict[int, Arrays] = field(default_factory=dict)  # by member, of servers
    # by member and window: shares of the window between the ends of two steps
    pauses: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)

    def add(
        self, tracked: TrackedMember, member: MemberRecord, slo_ms: dict | None, folder: Path
    ) -> None:
        """Read a member's files in `folder`, and fill loss and windows of its record.

        slo_ms: the objective of a server's latencies. Raises RuntimeError if a file is unreadable.
        """
        # Without `stopped` the file may be cut off; without `warm` it holds no step.
        if not tracked.events.keys() >= {"warm", "stopped"}:
            return
        try:
            arrays = step_times.load_step_arrays(folder / "steps.npz")
        except (OSError, ValueError) as error:
            raise RuntimeError(f"member {tracked.member}: no steps.npz: {error}") from error
        requests = None
        if (folder / "requests.npz").exists():
            requests = self.requests[tracked.member] = step_times.load_step_arrays(
                folder / "requests.npz"
            )
        arrays["first_step"] = tracked.events["warm"]["steps"]
        self.steps[tracked.member] = arrays
        member.loss = step_times.first_losses(arrays)
        windows = self.windows[:1] if tracked.status == "departed" else self.windows
        for window in windows:
            if not window.has(tracked.member):
                continue
            end_ns = arrays["end_ns"]
            rate = step_times.member_rate(window, end_ns, tracked.batch_size, self.drop_s)
            if requests:
                # A server does what arrives: pauses and drift are no fault of its own.
                rate.latency = latency.window_latencies(requests, window, slo_ms)
                rate.drift = rate.drift_error = None
            else:
                if flag := step_times.window_flag(window, end_ns, rate.slices):
                    self.flags.add(flag)
                pauses = step_times.pause_shares(window, end_ns, rate.slices)
                self.pauses[tracked.member, window.name] = pauses
            rate.distinct_samples = step_times.distinct_samples(window, arrays)
            member.windows[window.name] = rate

    def fault(self, workloads: list[str]) -> str | None:
        """A sentence if a member made no step in the last half of a window; else None.

        workloads: of all members.
        """
        ceased = step_times.find_stopped_member(self.windows, self.pauses, workloads)
        if ceased is None:
            return None
        member, window = ceased
        who = f"member {member} ({workloads[member]})"
        return f"{who}, window: no step in the last half of '{window}'"

    def write(self, folder: Path) -> dict[str, FileDigest]:
        """Write steps.parquet and requests.parquet, as far as there is anything to write."""
        files = {}
        if self.windows and self.steps:
            path, origin_ns = folder / step_times.STEPS_FILE, self.windows[0].start_ns
            files[path.name] = step_times.write_steps(path, self.steps, origin_ns)
            if self.requests:
                files[latency.REQUESTS_FILE] = latency.write_requests(
                    folder / latency.REQUESTS_FILE, self.requests
                )
        return files
