"""When did each step finish on the device, on the host's monotonic clock?"""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

# Steps that may be under way at once. Two or three keep a GPU busy; more only delay a stop.
RING = 64
TIE_NS = 30_000_000_000  # the clocks of host and device may differ by 20 µs in every second
TRIES = 4
AT_LEAST = 2  # steps under way, however long they take
RECENT = 8  # steps by which it is judged how long they take


class HostClock:
    """For steps that end with the host waiting for them (`loss.item()`, or training on the CPU)."""

    def __init__(self) -> None:
        self.end_ns = array("q")

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether another step may be launched: none is under way."""
        return True

    def mark(self) -> None:
        """The step just made has finished now."""
        self.end_ns.append(time.monotonic_ns())

    def finish(self) -> None:
        """Wait for all marked steps."""

    def resume(self) -> None:
        """Steps go on after a rest, in which none was under way."""


class EventClock:
    """For steps that are only launched: a ring of reused CUDA events, read as they complete.

    `end_ns` never decreases, and holds only finished steps. A step ended at the host's time of a
    tie plus what CUDA counts (float32 milliseconds) from the tie's event to the step's, or when it
    was read, if this was earlier. A new tie comes every TIE_NS, so that neither rounding nor the
    device's clock adds up; it is made on a stream of its own and waits for no step.

    ahead_s: seconds of work that may be under way, but always AT_LEAST steps; None: the whole ring.
    ties: the stream for ties; None: one of its own. A process has 32 streams, then some come again.
    """

    def __init__(
        self,
        ring: int = RING,
        ahead_s: float | None = None,
        ties: torch.cuda.Stream | None = None,
    ) -> None:
        self._ahead_ns = None if ahead_s is None else ahead_s * 1e9
        self._most = ring if ahead_s is None else AT_LEAST
        self.end_ns = array("q")
        self.resume()
        self._ring = [torch.cuda.Event(enable_timing=True) for _ in range(ring)]
        self._stream = ties or torch.cuda.Stream()
        self._marked, self._tie = 0, self._new_tie()
        self._ties = [self._tie] * ring  # of the events in the ring

    def _new_tie(self) -> tuple[torch.cuda.Event, int]:
        """An event and the host time at which it happened: the quickest of a few tries.

        It happened as the wait for it ended; before, it may have waited for our turn on the GPU.
        """
        tries = []
        for _ in range(TRIES):
            event = torch.cuda.Event(enable_timing=True)
            before = time.monotonic_ns()
            event.record(self._stream)
            event.synchronize()
            after = time.monotonic_ns()
            tries.append((after - before, event, after))
        return min(tries, key=lambda one: one[0])[1:]

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether another step may be launched: not too many are under way. None: wait until so."""
        while self._marked - len(self.end_ns) >= self._most:
            if seconds is None:
                self._oldest().synchronize()
            elif not self._oldest().query():
                return False
            self._read()
        return True

    def mark(self) -> None:
        """The step just launched ends here. Only where it was `ready` for one."""
        if time.monotonic_ns() - self._tie[1] > TIE_NS:
            self._tie = self._new_tie()
        slot = self._marked % len(self._ring)
        self._ring[slot].record()
        self._ties[slot] = self._tie
        self._marked += 1
        while len(self.end_ns) < self._marked and self._oldest().query():
            self._read()

    def finish(self) -> None:
        while len(self.end_ns) < self._marked:
            self._oldest().synchronize()
            self._read()

    def resume(self) -> None:
        self._first, self._since = len(self.end_ns), time.monotonic_ns()

    def _oldest(self) -> torch.cuda.Event:
        return self._ring[len(self.end_ns) % len(self._ring)]

    def _read(self) -> None:
        """Take the time of the oldest event, which has completed."""
        tie, tie_ns = self._ties[len(self.end_ns) % len(self._ring)]
        end = tie_ns + round(tie.elapsed_time(self._oldest()) * 1e6)
        end = min(end, time.monotonic_ns())
        self.end_ns.append(max(end, self.end_ns[-1]) if self.end_ns else end)
        if self._ahead_ns is not None:
            steps = min(len(self.end_ns) - self._first, RECENT)
            before = len(self.end_ns) - 1 - steps
            since = self.end_ns[before] if before >= self._first else self._since
            most = int(self._ahead_ns * steps / max(self.end_ns[-1] - since, 1))
            self._most = min(max(most, AT_LEAST), len(self._ring))


def step_clock(
    device: torch.device, sync: bool, ahead_s: float | None = None, ties=None
) -> HostClock | EventClock:
    """The clock for steps on `device`; `sync` says that the host waits for each step anyway."""
    host = sync or device.type == "cpu"
    return HostClock() if host else EventClock(ahead_s=ahead_s, ties=ties)


def save_steps(
    folder: str, end_ns, wait_ns, loss_step: Sequence[int], loss: Sequence, samples: Sequence = ()
) -> None:
    """Write steps.npz, whole or not at all. samples: numbers of each step's, of files."""
    target = Path(folder) / "steps.npz"
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(
            file,
            end_ns=np.array(end_ns, np.int64),
            wait_ns=np.array(wait_ns, np.int64),
            loss_step=np.array(loss_step, np.int64),
            loss=np.array(loss, np.float32),
            samples=np.array(samples, np.int32),
        )
    partial.replace(target)


def save_requests(folder: str, at_ns, wanted, tokens, token_ns) -> None:
    """Write requests.npz: when each was to arrive, how many tokens it wanted, how many it has, and
    their times one after another (ns of the monotonic clock).
    """
    told = {"at_ns": at_ns, "wanted": wanted, "tokens": tokens, "token_ns": token_ns}
    arrays = {name: np.array(values, np.int64) for name, values in told.items()}
    np.savez(Path(folder) / "requests.npz", **arrays)
