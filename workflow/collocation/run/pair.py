"""A probe of two different jobs: each alone, then both together by each method."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from workflow.collocation.record.cycles import LEAST_CYCLES
from workflow.collocation.record.probe import MEMORY_ROOM, JobSet, pair_alone, pair_in_turns
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.run.probe import STOP_S, Probe
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.naive import Naive

ALONE_SHARE, LEAST_ALONE_S = 0.15, 8.0  # of the time, for each job alone
MOST_ALONE_SHARE = 0.25  # of the time, to learn how a job pauses
LONE, CLIENTS = (0, 1), (2, 3)  # indices of the two jobs as separate processes, and under MPS


@dataclass
class PairProbe(Probe):
    """Conducts two jobs, and a copy of each under MPS.

    card_bytes: memory of the card; None without a GPU, and without MPS.
    """

    lone: Sequence[int] = LONE
    card_bytes: int | None = None

    def measure_all(self) -> None:
        jobs = [self._measure_alone(index) for index in LONE]
        if self.needed_s:
            return
        telemetry, self.peak_bytes = self.read_telemetry()
        conditions: dict[str, list[TrackedMember]] = {
            pair_in_turns(index): [job] for index, job in enumerate(jobs)
        }
        conditions[self._add_set(Naive.family)] = jobs
        idle_bytes = telemetry.idle.get("memory_used") or 0
        clients: list[TrackedMember] = []
        # The copies under MPS take as much memory again.
        needed_bytes = 2 * (self.peak_bytes or 0) - idle_bytes
        if self.card_bytes and self.peak_bytes and needed_bytes <= MEMORY_ROOM * self.card_bytes:
            clients = self.start_held(CLIENTS)
        if len(clients) == len(CLIENTS):
            conditions[self._add_set(Mps.family)] = clients
            self._collect_evidence("under MPS")
        in_turns = all(self.takes_turns(pair_alone(index), jobs[index], 2) for index in LONE)
        if not in_turns:
            conditions = {name: members for name, members in conditions.items() if len(members) > 1}
        self.measure_together(conditions, self.until_s - STOP_S, in_turns)

    def _measure_alone(self, index: int) -> TrackedMember:
        """Start a job, and measure it while those that were started before wait."""
        began_s = time.monotonic()
        started = self.start([index])
        self.raise_if_over()
        self._collect_evidence(f"start of job {index + 1}")
        if self.on_gpu and index == 0:
            self._open_second_contexts()
        self.send(started, "go")
        self.await_event("started", started)
        start_s, whole_s = time.monotonic() - began_s, self.until_s - self.began_s
        least_s, most_s = max(ALONE_SHARE * whole_s, LEAST_ALONE_S), MOST_ALONE_SHARE * whole_s
        self._run_phase(
            "window",
            lambda: self.measure_window(pair_alone(index), started, least_s, most_s),
        )
        self.hold(started)
        progress = self.progress(pair_alone(index), started[0])
        if len(progress.steps):
            least_s = (LEAST_CYCLES + 1) * float(progress.seconds.mean())
            self.least_window_s = max(self.least_window_s, least_s)
        if len(progress.steps) < LEAST_CYCLES:
            cycle_s = progress.seconds.mean() if len(progress.steps) else most_s
            windows_s = (LEAST_CYCLES + 1) * float(cycle_s) / MOST_ALONE_SHARE
            self.needed_s = max(self.needed_s or 0.0, 4 * start_s + windows_s)
        return started[0]

    def _add_set(self, method: str) -> str:
        job_set = JobSet(n=2, method=method)
        self.sets.append(job_set)
        return job_set.name
