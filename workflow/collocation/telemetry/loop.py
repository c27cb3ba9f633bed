"""How the sampler's threads work: on a schedule."""

import queue
import threading
import time
from collections.abc import Callable

from workflow.collocation.telemetry.lines import Output


class Loop(threading.Thread):
    """Takes a step at each t0 + k / hz and, at once in between, what it is asked for.

    A step that is late by half a period or more is skipped, not caught up. One that returns a time
    (ns) is the new t0: what had to wait is not followed too soon.
    """

    def __init__(self, name: str, hz: float, step: Callable[[], int | None], output: Output):
        super().__init__(name=name, daemon=True)
        self._period, self._step, self._output = round(1e9 / hz), step, output
        self._asked: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        self.took_ns: list[int] = []  # how long each step took
        self.skipped = 0

    def ask(self, call: Callable, *args) -> None:
        self._asked.put((call, *args))

    def stop(self) -> None:
        """End after what has been asked for by now."""
        self._asked.put(None)

    def run(self) -> None:
        due = time.monotonic_ns()
        while True:
            wait = due - time.monotonic_ns()
            try:
                asked = self._asked.get(block=wait > 0, timeout=max(wait, 0) / 1e9)
            except queue.Empty:
                due = self._tick(due)
                continue
            if asked is None:
                return
            self._output.attempt(self.name, *asked)

    def _tick(self, due: int) -> int:
        """The step that is due, if it is not too late for it; when the next one is."""
        began = time.monotonic_ns()
        late = (began - due + self._period // 2) // self._period
        if late > 0:
            self.skipped += late
            return due + late * self._period
        taken = self._output.attempt(self.name, self._step)
        self.took_ns.append(time.monotonic_ns() - began)
        return (taken or due) + self._period

    def cost(self) -> dict[str, float | None]:
        """How long steps took, ms."""
        took = sorted(self.took_ns)
        if not took:
            return {"p50": None, "p95": None, "max": None}
        ranks = {"p50": len(took) // 2, "p95": int(len(took) * 0.95), "max": -1}
        return {name: round(took[rank] / 1e6, 3) for name, rank in ranks.items()}
