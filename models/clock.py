"""When did each step finish on the device, on the host's monotonic clock?"""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

# Steps that may be under way at once. Two or three keep a GPU busy; more only delay a stop.
RING = 64
REANCHOR_NS = 5_000_000_000


class HostClock:
    """For steps that end with the host waiting for them (`loss.item()`, or training on the CPU)."""

    def __init__(self) -> None:
        self.end_ns = array("q")

    def mark(self) -> None:
        """The step just made has finished now."""
        self.end_ns.append(time.monotonic_ns())

    def finish(self) -> None:
        """Wait for all marked steps."""


class EventClock:
    """For steps that are only launched: a ring of reused CUDA events, read as they complete.

    `end_ns` grows in the order of steps, never decreases, and holds only finished steps. CUDA
    counts float32 milliseconds between two events, so the event that ties the device's time to
    the host's is renewed every few seconds; a time later than its reading is cut to the reading.
    """

    def __init__(self, ring: int = RING) -> None:
        self.end_ns = array("q")
        self._ring = [torch.cuda.Event(enable_timing=True) for _ in range(ring)]
        self._marked = 0
        self._anchor, self._anchor_ns = self._tie()

    @staticmethod
    def _tie() -> tuple[torch.cuda.Event, int]:
        """An event and the host time at which it happened: the tightest of a few tries."""
        tries = []
        torch.cuda.synchronize()
        for _ in range(8):
            event = torch.cuda.Event(enable_timing=True)
            before = time.monotonic_ns()
            event.record()
            event.synchronize()
            after = time.monotonic_ns()
            tries.append((after - before, event, (before + after) // 2))
        return min(tries, key=lambda one: one[0])[1:]

    def mark(self) -> None:
        """The step just launched ends here; waits only when the ring is full."""
        if self._marked - len(self.end_ns) == len(self._ring):
            self._oldest().synchronize()
            self._read()
        self._ring[self._marked % len(self._ring)].record()
        self._marked += 1
        while len(self.end_ns) < self._marked and self._oldest().query():
            self._read()

    def finish(self) -> None:
        """Wait for all marked steps."""
        while len(self.end_ns) < self._marked:
            self._oldest().synchronize()
            self._read()

    def _oldest(self) -> torch.cuda.Event:
        return self._ring[len(self.end_ns) % len(self._ring)]

    def _read(self) -> None:
        """Take the time of the oldest event, which has completed."""
        event = self._oldest()
        end = self._anchor_ns + round(self._anchor.elapsed_time(event) * 1e6)
        end = min(end, time.monotonic_ns())
        if self.end_ns:
            end = max(end, self.end_ns[-1])
        if end - self._anchor_ns > REANCHOR_NS:
            self._ring[len(self.end_ns) % len(self._ring)] = self._anchor
            self._anchor, self._anchor_ns = event, end
        self.end_ns.append(end)


def step_clock(device: torch.device, sync: bool) -> HostClock | EventClock:
    """The clock for steps on `device`; `sync` says that the host waits for each step anyway."""
    return HostClock() if sync or device.type == "cpu" else EventClock()


def typical_step_s(end_ns: Sequence[int]) -> float | None:
    """Seconds a step takes: the median of the later half, without what the first ones wait for."""
    durations = np.diff(end_ns)
    later = durations[len(durations) // 2 :]
    return float(np.median(later)) / 1e9 if len(later) else None


def save_steps(
    folder: str,
    end_ns: Sequence[int],
    wait_ns: Sequence[int],
    loss_step: Sequence[int],
    loss: Sequence[float],
) -> str:
    """Write steps.npz, whole or not at all; its name."""
    target = Path(folder) / "steps.npz"
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(
            file,
            end_ns=np.array(end_ns, np.int64),
            wait_ns=np.array(wait_ns, np.int64),
            loss_step=np.array(loss_step, np.int64),
            loss=np.array(loss, np.float32),
        )
    partial.replace(target)
    return target.name
