"""How the sampler's threads work: on a schedule, and all of them write to one file of lines."""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Output:
    """The file of lines. Each is there whole as soon as it is written, whatever follows."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._said: set[tuple[str, type | str]] = set()

    def line(self, kind: str, **fields) -> None:
        """Write one line; ends the process where that fails: nothing it could say would be read."""
        data = json.dumps({"k": kind} | fields, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._file, data) == len(data):
                return
            print("the disk took half a line", file=sys.stderr)
        except OSError as error:
            print(f"cannot write: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)

    def error(self, where: str, error: Exception | str) -> None:
        """Say it once per place and kind: what fails at one tick may fail at every one."""
        kind = type(error) if isinstance(error, Exception) else error
        if (where, kind) not in self._said:
            self._said.add((where, kind))
            self.line("error", t=time.monotonic_ns(), where=where, message=sentence(error))


class Loop(threading.Thread):
    """Takes a step at each t0 + k / hz and, at once in between, what it is asked for.

    `begin` is done before t0. A step that is late by half a period or more is skipped, not caught
    up. One that returns a time (ns) is the new t0: what had to wait is not followed too soon.
    """

    def __init__(
        self,
        name: str,
        hz: float,
        step: Callable[[], int | None],
        output: Output,
        begin: Callable[[], None] | None = None,
    ):
        super().__init__(name=name, daemon=True)
        self._period, self._step, self._output = round(1e9 / hz), step, output
        self._begin = begin
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.took_ns: list[int] = []  # how long each step took
        self.skipped = 0
        self.last_ns = time.monotonic_ns()  # when something here last came to its end

    def ask(self, call: Callable[[], None]) -> None:
        self._asked.put(call)

    def stop(self) -> None:
        """End after what has been asked for by now."""
        self._asked.put(None)

    def run(self) -> None:
        if self._begin is not None:
            self._do(self._begin)
        due = time.monotonic_ns()
        while True:
            wait = due - time.monotonic_ns()
            try:
                call = self._asked.get(block=wait > 0, timeout=max(wait, 0) / 1e9)
            except queue.Empty:
                due = self._tick(due)
                continue
            if call is None:
                return
            self._do(call)

    def _tick(self, due: int) -> int:
        """The step that is due, if it is not too late for it; when the next one is."""
        began = time.monotonic_ns()
        late = (began - due + self._period // 2) // self._period
        if late > 0:
            self.skipped += late
            return due + late * self._period
        taken = self._do(self._step)
        self.took_ns.append(time.monotonic_ns() - began)
        return (taken or due) + self._period

    def _do(self, call: Callable[[], int | None]) -> int | None:
        taken = None
        try:
            taken = call()
        except Exception as error:  # of one reading: the others go on
            self._output.error(self.name, error)
        self.last_ns = time.monotonic_ns()
        return taken

    def cost(self) -> dict[str, float | None]:
        """How long steps took, ms."""
        took = sorted(self.took_ns)
        if not took:
            return {"p50": None, "p95": None, "max": None}
        ranks = {"p50": len(took) // 2, "p95": int(len(took) * 0.95), "max": -1}
        return {name: round(took[rank] / 1e6, 3) for name, rank in ranks.items()}


def sentence(error: Exception | str) -> str:
    """One line of what went wrong."""
    name = "" if isinstance(error, str) else f"{type(error).__name__}: "
    return " ".join(f"{name}{error}".split())[:500]
