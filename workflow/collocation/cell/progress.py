"""What a person sees of a running cell: at a terminal one line that lives, else plain lines."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

REFRESH_S = 1.0
LONGEST = 200  # characters of what is said on stderr; the log has it all
CLEAR = "\r\x1b[K"


class Display:
    """Lines of one cell. place: its place in the run ('3/20'); estimate_s: how long it will take;
    left_s: what follows it.
    """

    def __init__(
        self, cell: str, log: Path, place: str = "", left_s: float = 0.0, estimate_s: float = 0.0
    ):
        self.place, self.cell = f"[{place}] " if place else "", cell
        self.name = f"{self.place}{cell}"
        self.left_s, self.estimate_s = left_s, estimate_s
        self.log = log.open("a", buffering=1)
        self.started = time.monotonic()
        self._due = self.started if sys.stderr.isatty() else float("inf")
        self._shown = False

    def say(self, text: str, loud: bool = True) -> None:
        """A line in the log; on stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            left = f" (then about {self.left_s / 60:.0f} min)" if self.left_s >= 60 else ""
            short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            self._clear()
            _write(f"{self.name}: {short}{left}\n")

    def show(self, what: Callable[[], str]) -> None:
        """Have the line that lives say `what()`: asked once a second, at a terminal only."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due, self._shown = now + REFRESH_S, True
        left = max(self.started + self.estimate_s - now, 0) + self.left_s
        told = f": {what()}; about {f'{left:.0f} s' if left < 90 else f'{left / 60:.0f} min'} left"
        try:
            room = os.get_terminal_size(sys.stderr.fileno()).columns - 1 - len(told)
        except OSError:
            room = 60
        room = max(room - len(self.place) - 1, 0)
        cell = self.cell if len(self.cell) <= room else f"…{self.cell[len(self.cell) - room + 1 :]}"
        name = f"{self.place}{cell}"
        _write(f"{CLEAR}{name}{told}")

    def close(self) -> None:
        self._clear()
        self.log.close()

    def _clear(self) -> None:
        if self._shown:
            _write(CLEAR)
            self._shown = False


def _write(text: str) -> None:
    with suppress(OSError):  # a terminal that was closed: what is measured goes on
        sys.stderr.write(text)
        sys.stderr.flush()
