"""What a person sees of a running cell: a line as it begins, at a terminal, and one at its end."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from workflow.collocation.record.run_json import Record

LONGEST = 200  # characters of what is said on stderr; the log has it all


class Display:
    """Lines of one cell, in its log and on stderr.

    place: its place in the run ('3/20'). left_s: what follows it takes.
    """

    def __init__(self, cell: str, log: Path, place: str = "", left_s: float = 0.0):
        self.name = f"[{place}] {cell}" if place else cell
        self.left_s, self.started = left_s, time.monotonic()
        self.log = log.open("a", buffering=1, encoding="utf-8")
        self.watched = sys.stderr is not None and sys.stderr.isatty()

    def say(self, text: str, loud: bool = True) -> None:
        """A line in the log; on stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            left = f" (~{self.left_s / 60:.0f} min left)" if self.left_s >= 60 else ""
            short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            with suppress(OSError, AttributeError):  # stderr was closed: what is measured goes on
                sys.stderr.write(f"{self.name}: {short}{left}\n")
                sys.stderr.flush()

    def close(self) -> None:
        self.log.close()


def summary(record: Record) -> str:
    """How a cell ended, in a line."""
    if record.status != "completed":
        return f"{record.status}: {record.reason}"
    rates = []
    for window in record.windows:
        inside = [m.windows[window.name] for m in record.members if window.name in m.windows]
        rates.append(f"{window.name} {sum(rate.samples_per_s or 0 for rate in inside):,.0f}")
    return f"completed in {record.timing['total_s']:.0f} s, samples/s: {', '.join(rates)}"
