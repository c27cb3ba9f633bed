"""Steps of somebody else's script as lines of its output, and how it is held at the barrier."""

import os
import re
import time
from array import array
from contextlib import suppress

import psutil

from models.jobs.script_steps import FOREVER, each, tree

STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


class Output:
    """Steps as lines of the script's output that match a pattern; the output goes on to our log.

    A group named `step` holds the number of steps made so far in a pass: those since the line
    before are taken to be evenly spaced. When it falls, a new pass has begun; the same number once
    more, as progress bars print it, is no step.
    """

    environment: dict[str, str] = {}
    facts: dict = {}  # of its device it says nothing

    def __init__(self, spec: dict):
        self.pattern = re.compile(spec["steps"])
        self.end_ns, self.number, self.rest = array("q"), 0, b""
        self.source, self.theirs = os.pipe()  # source: None when it has closed its output
        os.set_blocking(self.source, False)
        self.limit, self.held = FOREVER, False

    @property
    def done(self) -> int:
        """Steps made so far, but none beyond those asked for."""
        return min(len(self.end_ns), self.limit)

    def why_none(self) -> None:
        """Nothing: it says so itself when it looks."""

    def look(self) -> None:
        """Take in what was printed."""
        while self.source is not None:
            try:
                data = os.read(self.source, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.source = None
                return
            now = time.monotonic_ns()
            with suppress(OSError):  # a full disk does not end a measurement
                os.write(1, data)
            *lines, rest = re.split(rb"[\r\n]", self.rest + data)
            self.rest = rest[-(1 << 16) :]
            for line in lines:
                if found := self.pattern.search(line.decode(errors="replace")):
                    self._count(found, now)
            if self.done == self.limit and not self.held:
                self.hold()

    def _count(self, found: re.Match, now: int) -> None:
        steps = 1
        if "step" in self.pattern.groupindex and found["step"]:
            number = int(found["step"])
            steps = number - self.number if number >= self.number else number
            self.number = number
        if self.end_ns and steps > 1:
            gap = (now - self.end_ns[-1]) / steps
            self.end_ns.extend(round(now - gap * left) for left in range(steps - 1, 0, -1))
        if steps:
            self.end_ns.append(now)

    def hold(self) -> bool:
        """Stop the script and what it started where they are; True once they are."""
        self.held = True
        statuses = each(tree(self.child.pid), lambda process: process.suspend() or process.status())
        return all(status in STILL for status in statuses)

    def go(self, work: int | None) -> None:
        """Let it go on; after so many steps hold it again."""
        self.limit = len(self.end_ns) + work if work else FOREVER
        self.held = False
        each(tree(self.child.pid), psutil.Process.resume)

    def arrays(self, first: int, end: int) -> tuple:
        """Times of steps first ≤ step < end; the steps and values of losses that were kept."""
        return self.end_ns[first:end], [], []
