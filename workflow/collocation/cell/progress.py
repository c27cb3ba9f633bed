"""What a person sees of a running cell: a bar at a terminal, plain lines in a log file."""

import sys
import time
from pathlib import Path

from tqdm import tqdm


class Display:
    """Lines of one cell. `place` is its place in the run ('3/20'), `left_s` what follows it."""

    def __init__(self, cell: str, log: Path, place: str = "", left_s: float = 0.0):
        self.cell = cell
        self.place = f"[{place}] " if place else ""
        self.left_s = left_s
        self.log = log.open("a", buffering=1)
        self.started = time.monotonic()
        self.bar: tqdm | None = None

    def say(self, text: str, loud: bool = True) -> None:
        """A line in the log; on stderr too if `loud`."""
        self.log.write(f"{time.monotonic() - self.started:8.2f} s  {text}\n")
        if loud:
            left = f" (then about {self.left_s / 60:.0f} min)" if self.left_s >= 60 else ""
            tqdm.write(f"{self.place}{self.cell}: {text}{left}", file=sys.stderr)

    def open_bar(self, total: float, unit: str) -> None:
        """Start a bar of `total` units in place of any other; only where stderr is a terminal."""
        if self.bar is not None:
            self.bar.close()
        self.bar = tqdm(
            total=round(total, 1),
            desc=f"{self.place}{self.cell}"[-60:],
            unit=unit,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            leave=False,
            dynamic_ncols=True,
            bar_format="{desc} |{bar}| {n:.0f}/{total:.0f} {unit}{postfix}",
        )

    def update(self, done: float, samples_per_s: float) -> None:
        if self.bar is None:
            return
        self.bar.n = min(done, self.bar.total)
        left = f", then about {self.left_s / 60:.0f} min" if self.left_s else ""
        self.bar.set_postfix_str(f"{samples_per_s:,.0f} samples/s{left}", refresh=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        self.log.close()
