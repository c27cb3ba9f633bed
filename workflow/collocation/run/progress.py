"""What a person sees of a running cell: at a terminal one line that lives, else plain lines."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workflow.collocation.record.run_json import Record

REFRESH_S = 1.0
LONGEST = 200  # characters of what is said on stderr; the log has it all
CLEAR = "\r\x1b[K"


class Display:
    """Lines of one cell. place: its place in the run ('3/20'); estimate_s: how long it will take;
    left_s: what follows it; live: a folder by which cells that run side by side share a line.
    Both times are as foreseen, and told as far off as those of the run's cells were so far.
    """

    def __init__(
        self,
        cell: str,
        log: Path,
        place: str = "",
        left_s: float = 0.0,
        estimate_s: float = 0.0,
        live: Path | None = None,
    ):
        self.place, self.cell = f"[{place}] " if place else "", cell
        self.name = f"{self.place}{cell}"
        self.left_s, self.estimate_s = left_s, estimate_s
        self.log = log.open("a", buffering=1)
        self.started = time.monotonic()
        self._due = self.started if sys.stderr.isatty() else float("inf")
        self._live = live and live / str(os.getpid())
        self._took = live.with_name("took") if live else Path(os.devnull)

    def say(self, text: str, loud: bool = True) -> None:
        """A line in the log; on stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            left_s = self.left_s * self._off()
            left = f" (then about {left_s / 60:.0f} min)" if left_s >= 60 else ""
            short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
            self._clear()
            _write(f"{self.name}: {short}{left}\n")

    def show(self, what: Callable[[], str]) -> None:
        """Have the line that lives say `what()`: asked once a second, at a terminal only."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + REFRESH_S
        said, off = what(), self._off()
        left = max(self.started + self.estimate_s * off - now, 0) + self.left_s * off
        others, longest = self._others(f"{self.place}{said}", time.time() + left)
        told = f"; about {f'{longest:.0f} s' if longest < 90 else f'{longest / 60:.0f} min'} left"
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except OSError:
            columns = 80
        room = columns - 1 - len(told)
        if others:
            each = max(room // len(others) - 3, 1)
            line = " | ".join(t if len(t) <= each else f"{t[: each - 1]}…" for t in others)
        else:
            room, cell = max(room - len(self.place) - len(said) - 3, 0), self.cell
            cell = cell if len(cell) <= room else f"…{cell[len(cell) - room + 1 :]}"
            line = f"{self.place}{cell}: {said}"
        _write(f"{CLEAR}{line}{told}")

    def took(self, seconds: float) -> None:
        """What the cell took in all: tells of those that follow."""
        with suppress(OSError), self._took.open("a") as file:
            file.write(f"{seconds} {self.estimate_s}\n")

    def _off(self) -> float:
        """What this run's cells took, over what was foreseen."""
        with suppress(OSError, ValueError, ZeroDivisionError):  # none has ended
            rows = [map(float, line.split()) for line in self._took.read_text().splitlines()]
            took, foreseen = map(sum, zip(*rows, strict=True))
            return took / foreseen
        return 1.0

    def _others(self, own: str, end: float) -> tuple[list[str], float]:
        """What all cells that run now say, this one's `own` among them, none if it is alone; and
        after how many seconds the last of them and what follows them ends. end: a Unix time.
        """
        if self._live is None:
            return [], end - time.time()
        now, found = time.time(), {"": (end, own)}
        with suppress(OSError):  # of a full disk
            self._live.parent.mkdir(exist_ok=True)
            self._live.write_text(f"{end} {own}")
            for path in self._live.parent.iterdir():
                with suppress(FileNotFoundError, ValueError):  # it has just ended; is being written
                    then, text = path.read_text().split(" ", 1)
                    if now - path.stat().st_mtime < 3 * REFRESH_S:  # or it was killed
                        found[path.name] = float(then), text
            del found[""]
        ends = [then for then, _ in found.values()]
        texts = sorted(text for _, text in found.values())
        return texts if len(texts) > 1 else [], max(max(ends, default=end) - now, 0)

    def close(self) -> None:
        self._clear()
        if self._live:
            self._live.unlink(missing_ok=True)
        self.log.close()

    def _clear(self) -> None:
        if self._due != float("inf"):  # at a terminal: what is there may be another cell's
            _write(CLEAR)


def _write(text: str) -> None:
    with suppress(OSError):  # a terminal that was closed: what is measured goes on
        sys.stderr.write(text)
        sys.stderr.flush()


def summary(record: Record) -> str:
    """How a cell ended, in a line."""
    if record.status != "completed":
        capped = any(member.get("memory_limit_mb") for member in record.spec["members"])
        meant = capped and record.status == "out_of_memory"
        return f"{record.status}{', on purpose (memory_limit_mb)' * meant}: {record.reason}"
    rates = []
    for window in record.windows:
        inside = [m.windows[window.name] for m in record.members if window.name in m.windows]
        rates.append(f"{window.name} {sum(rate.samples_per_s or 0 for rate in inside):,.0f}")
    return f"completed in {record.timing['total_s']:.0f} s, samples/s: {', '.join(rates)}"
