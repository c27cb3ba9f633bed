"""Clocks for training steps: when each ended on the device, in the host's monotonic time."""

import time
from array import array

import torch

# Most steps that may be under way. Two or three keep a GPU busy; more only delay a stop.
RING = 64
TIE_NS = 30_000_000_000  # The clocks of host and device may drift apart by 20 µs in every second.
TIE_TRIES = 4
MIN_STEPS_AHEAD = 2  # steps that may always be under way, however long they take
RECENT_STEPS = 8  # of which the mean duration of a step is taken


class HostClock:
    """The clock for steps that the host waits for (`loss.item()`, or training on the CPU)."""

    def __init__(self) -> None:
        self.end_ns = array("q")

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether another step may be launched; always, because none is under way."""
        return True

    def mark(self) -> None:
        """Note that the newest step has finished now."""
        self.end_ns.append(time.monotonic_ns())

    def finish(self) -> None:
        """Wait for all marked steps."""

    def resume(self) -> None:
        """Note that steps go on after a pause, in which none was under way."""


class EventClock:
    """The clock for steps that are only launched: a ring of CUDA events, read as they complete.

    A step's end is the host time of a tie plus the time that CUDA counts (float32 milliseconds)
    from the event of the tie to that of the step, or the time of reading if that is earlier. A new
    tie is made every TIE_NS, so that neither rounding nor drift of the device's clock adds up; it
    is on a stream of its own and waits for no step. `end_ns` never decreases, and holds finished
    steps only.

    ahead_s: seconds of work that may be under way, but at least MIN_STEPS_AHEAD steps; None: the
    whole ring. tie_stream: for ties; None: a new stream. A process has 32 streams, and torch hands
    out the same ones again after that.
    """

    def __init__(
        self,
        ring: int = RING,
        ahead_s: float | None = None,
        tie_stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._ahead_ns = None if ahead_s is None else ahead_s * 1e9
        self._max_steps_ahead = ring if ahead_s is None else MIN_STEPS_AHEAD
        self.end_ns = array("q")
        self.resume()
        self._ring = [torch.cuda.Event(enable_timing=True) for _ in range(ring)]
        self._tie_stream = tie_stream or torch.cuda.Stream()
        self._marked, self._tie = 0, self._new_tie()
        self._ties = [self._tie] * ring  # of the events in the ring

    def _new_tie(self) -> tuple[torch.cuda.Event, int]:
        """An event and the host time at which it happened: the quickest of a few tries.

        The event happened when the wait for it ended. Before that, this process may have waited
        for its turn on the GPU.
        """
        tries = []
        for _ in range(TIE_TRIES):
            event = torch.cuda.Event(enable_timing=True)
            before = time.monotonic_ns()
            event.record(self._tie_stream)
            event.synchronize()
            after = time.monotonic_ns()
            tries.append((after - before, event, after))
        _, event, host_ns = min(tries, key=lambda attempt: attempt[0])
        return event, host_ns

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether another step may be launched. None: wait until one may."""
        while self._marked - len(self.end_ns) >= self._max_steps_ahead:
            if seconds is None:
                self._oldest().synchronize()
            elif not self._oldest().query():
                return False
            self._read_oldest()
        return True

    def mark(self) -> None:
        """Note that the step launched last ends here. Call it only after `ready` was true."""
        if time.monotonic_ns() - self._tie[1] > TIE_NS:
            self._tie = self._new_tie()
        slot = self._marked % len(self._ring)
        self._ring[slot].record()
        self._ties[slot] = self._tie
        self._marked += 1
        while len(self.end_ns) < self._marked and self._oldest().query():
            self._read_oldest()

    def finish(self) -> None:
        """Wait for all marked steps."""
        while len(self.end_ns) < self._marked:
            self._oldest().synchronize()
            self._read_oldest()

    def resume(self) -> None:
        """Note that steps go on after a pause, in which none was under way."""
        self._resume_step, self._resume_ns = len(self.end_ns), time.monotonic_ns()

    def _oldest(self) -> torch.cuda.Event:
        return self._ring[len(self.end_ns) % len(self._ring)]

    def _read_oldest(self) -> None:
        """Read the time of the oldest event, which has completed."""
        tie, tie_ns = self._ties[len(self.end_ns) % len(self._ring)]
        end_ns = tie_ns + round(tie.elapsed_time(self._oldest()) * 1e6)
        end_ns = min(end_ns, time.monotonic_ns())
        self.end_ns.append(max(end_ns, self.end_ns[-1]) if self.end_ns else end_ns)
        if self._ahead_ns is not None:
            self._limit_steps_ahead()

    def _limit_steps_ahead(self) -> None:
        """Allow as many steps as take `ahead_s` at the recent speed."""
        steps = min(len(self.end_ns) - self._resume_step, RECENT_STEPS)
        previous = len(self.end_ns) - 1 - steps
        began_ns = self.end_ns[previous] if previous >= self._resume_step else self._resume_ns
        fitting = int(self._ahead_ns * steps / max(self.end_ns[-1] - began_ns, 1))
        self._max_steps_ahead = min(max(fitting, MIN_STEPS_AHEAD), len(self._ring))
