"""What a person sees of a running cell: at a terminal one line that is rewritten, else lines."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workflow.collocation.record.run_json import Record

REFRESH_S = 1.0
MAX_LENGTH = 200  # characters of a line on stderr; the log has all of it
CLEAR = "\r\x1b[K"
# What a cell does in each phase.
NOW = {
    "build": "building",
    "autotune": "tuning",
    "warm": "warming up",
    "window": "measuring",
    "stop": "stopping",
}


class Display:
    """Writes the lines of one cell to its log and to stderr.

    position: of the cell in the run, such as "3/20". estimate_s: how long the cell takes.
    remaining_s: how long the cells after it take.
    """

    def __init__(
        self,
        cell: str,
        log: Path,
        position: str = "",
        remaining_s: float = 0.0,
        estimate_s: float = 0.0,
    ):
        self.name = f"[{position}] {cell}" if position else cell
        self.remaining_s, self.estimate_s = remaining_s, estimate_s
        self.log = log.open("a", buffering=1, encoding="utf-8")
        self.started = self._next_refresh = time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def say(self, text: str, loud: bool = True) -> None:
        """Write a line to the log, and to stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            minutes = self.remaining_s / 60
            remaining = f" (~{minutes:.0f} min left)" if minutes >= 1 else ""
            short = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"
            self._write(f"{self.name}: {short}{remaining}\n")

    def show(self, describe: Callable[[], str]) -> None:
        """Rewrite the terminal's line with what `describe` returns, at most once a second."""
        now = time.monotonic()
        if now < self._next_refresh:
            return
        self._next_refresh, state = now + REFRESH_S, describe()
        if not self._terminal:
            return
        remaining_s = max(self.started + self.estimate_s - now, 0) + self.remaining_s
        duration = f"{remaining_s:.0f} s" if remaining_s < 90 else f"{remaining_s / 60:.0f} min"
        text = f": {state}; about {duration} left"
        room = shutil.get_terminal_size().columns - 1 - len(text)
        self._write(f"{self.name[: max(room, 0)]}{text}")

    def close(self) -> None:
        """Clear the terminal's line, and close the log."""
        self._write("")
        self.log.close()

    def _write(self, text: str) -> None:
        with suppress(OSError, AttributeError):  # stderr may be closed: the cell goes on
            sys.stderr.write(CLEAR + text if self._terminal else text)
            sys.stderr.flush()


def summary(record: Record) -> str:
    """One line on how a cell ended: its status and why, or its samples/s in each window."""
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    totals = []
    for window in record.windows:
        rates = [m.windows[window.name] for m in record.members if window.name in m.windows]
        total = sum(rate.samples_per_s or 0 for rate in rates)
        totals.append(f"{window.name} {total:,.0f}")
    return f"completed in {record.timing['total_s']:.0f} s, samples/s: {', '.join(totals)}"
