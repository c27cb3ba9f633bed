"""What a person sees of a running cell: at a terminal one line that lives, else plain lines."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workflow.collocation.record.run_json import PROGRESS_FILE, Record

REFRESH_S = 1.0
LONGEST = 200  # characters of what is said on stderr; the log has it all
CLEAR = "\r\x1b[K"
# What a cell does in each phase.
NOW = {"build": "building", "autotune": "tuning", "warm": "warming up", "window": "measuring"}
NOW["stop"] = "stopping"


class Display:
    """Lines of one cell, in its log and on stderr.

    place: its place in the run ('3/20'). estimate_s: how long it will take. left_s: what follows.
    """

    def __init__(
        self, cell: str, log: Path, place: str = "", left_s: float = 0.0, estimate_s: float = 0.0
    ):
        self.name = f"[{place}] {cell}" if place else cell
        self.left_s, self.estimate_s = left_s, estimate_s
        self.log = log.open("a", buffering=1, encoding="utf-8")
        self._now = log.with_name(PROGRESS_FILE)
        self.started = self._due = time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def say(self, text: str, loud: bool = True) -> None:
        """A line in the log; on stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            left = f" (~{self.left_s / 60:.0f} min left)" if self.left_s >= 60 else ""
            short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            self._write(f"{self.name}: {short}{left}\n")

    def show(self, what: Callable[[], str]) -> None:
        """Have the line that lives say `what()`, which is asked once a second."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due, state = now + REFRESH_S, what()
        with suppress(OSError):  # a full disk costs the line, not the cell
            self._now.write_text(state, encoding="utf-8")
        if not self._terminal:
            return
        left = max(self.started + self.estimate_s - now, 0) + self.left_s
        told = f"; about {f'{left:.0f} s' if left < 90 else f'{left / 60:.0f} min'} left"
        said = f": {state}{told}"
        room = shutil.get_terminal_size().columns - 1 - len(said)
        self._write(f"{self.name[: max(room, 0)]}{said}")

    def close(self) -> None:
        self._write("")
        with suppress(OSError):
            self._now.unlink(missing_ok=True)
        self.log.close()

    def _write(self, text: str) -> None:
        with suppress(OSError, AttributeError):  # stderr was closed: what is measured goes on
            sys.stderr.write(CLEAR + text if self._terminal else text)
            sys.stderr.flush()


def summary(record: Record) -> str:
    """How a cell ended, in a line."""
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    rates = []
    for window in record.windows:
        inside = [m.windows[window.name] for m in record.members if window.name in m.windows]
        rates.append(f"{window.name} {sum(rate.samples_per_s or 0 for rate in inside):,.0f}")
    return f"completed in {record.timing['total_s']:.0f} s, samples/s: {', '.join(rates)}"
