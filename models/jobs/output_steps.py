"""Steps of somebody else's script by a pattern over its output, and how it is held."""

import re
import time
from array import array

import numpy as np
import psutil

from models import hook
from models.jobs.script_output import ScriptOutput
from models.jobs.script_steps import each
from workflow.collocation.process_lifetime import process_trees

STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
TOGETHER_NS = 5_000_000  # lines that arrive within it arrive at one time
# More steps between two lines than so many times the usual rate, and the most so far, are a jump.
JUMP_RATE, JUMP_MOST, JUMP_AFTER = 20, 10, 5  # the last: lines that must have been seen
MOST_RATE = 20_000  # steps/s; no training makes more
SHOWN = 75  # characters of a line in a message
WHOLE = re.compile(r"\d+|\d{1,3}([,_]\d{3})+")
GOES_ON = re.compile(r"\d|\.\d|[kKMG](?![A-Za-z])")  # a number, after the group's end
THOUSANDS = re.compile(r"[,_']\d{3}")
EXACT = "count by steps: auto"


class Output:
    """Steps by lines that match a pattern, whose group `step` is a counter of them.

    One counter that rises by what was done since the line before; between lines steps are evenly
    spaced over the time in which the script was not held. Its first number is no step. Where a
    group `total` is the length of a pass, the counter may begin anew at the end of one. Anything
    else is no counter of steps: RuntimeError, with the line.
    """

    environment: dict[str, str] = {}
    facts: dict = {}  # of its device it says nothing

    def __init__(self, spec: dict):
        self.pattern = re.compile(spec["steps"])
        self.most_s = spec["first_step_s"] * spec["beside"]
        self.number = self.total = self.lowest = None
        # When lines came, in ns of the time that it ran, and how many steps had been made by then.
        self.ran_ns, self.made = array("q"), array("q")
        self.lines = self.most = self.together_ns = 0
        self.holds: list[tuple[int, int]] = []  # when, of that time, and for how many ns
        self.held_ns: int | None = None

    @property
    def done(self) -> int:
        """Steps made so far, as far as it has told."""
        return self.made[-1] if self.made else 0

    def see(self, line: str) -> None:
        """Take in a line that has just come. Raises RuntimeError if its number cannot be right."""
        found = self.pattern.search(line)
        if not found or found["step"] is None:
            return
        number, total = _whole(found, "step"), self.total
        if found.groupdict().get("total"):
            total = _whole(found, "total")
        if self.total not in (None, total):
            raise _wrong(f"changed its total from {self.total} to {total}", line)
        steps = 0 if self.number is None else self._since(number, total, line)
        now = (self.held_ns or time.monotonic_ns()) - sum(took for _, took in self.holds)
        self._has_not_jumped(steps, now, line)
        self.number, self.total, self.lines = number, total, self.lines + 1
        self.lowest = number if self.lowest is None else min(number, self.lowest)
        self.most = max(self.most, steps)
        if not self.made or (steps and now - self.together_ns > TOGETHER_NS):
            self.together_ns = now
            self.ran_ns.append(now)
            self.made.append(self.done + steps)
        elif steps:
            self.ran_ns[-1] = now
            self.made[-1] += steps

    def _since(self, number: int, total: int | None, line: str) -> int:
        """Steps since the line before."""
        if number >= self.number:
            return number - self.number
        from_0 = self.number == (total or 0) - 1 and 0 in (number, self.lowest)
        if self.number != total and not from_0:
            of = " (name the group total if passes end)" if total is None else f" of {total}"
            fell = f"fell from {self.number} to {number}"
            raise _wrong(f"{fell}, not at the end of a pass{of}", line)
        return total - self.number + number

    def _has_not_jumped(self, steps: int, now: int, line: str) -> None:
        made = self.done + steps
        ran_s = (now - self.ran_ns[0]) / 1e9 if self.made else 0
        if made > min(hook.STEPS, MOST_RATE * max(ran_s, 1)):
            raise _wrong(f"rose by {made}: something other than steps", line)
        if steps <= JUMP_MOST * self.most or self.lines <= JUMP_AFTER:
            return
        usual = self.done / max(self.ran_ns[-1] - self.ran_ns[0], 1)
        if steps > JUMP_RATE * usual * (now - self.ran_ns[-1]):
            raise _wrong(f"jumped from {self.number} by {steps}, as of two counters", line)

    def why_none(self, output: ScriptOutput) -> str | None:
        """Why there was no step for so long after it first printed; None if there was one, or one
        may still come: after a first number, the second may be as far away.
        """
        since = self.together_ns / 1e9 if self.made else output.began_s
        if since is None or self.done or self.lines == 1 or time.monotonic() - since < self.most_s:
            return None
        what = f"no line matched {_shown(self.pattern.pattern)}"
        if self.lines:
            what = f"the group step stayed {self.number}"
        ways = f"mend the pattern, {EXACT}, or raise first_step_s"
        said = " | ".join(map(_shown, output.newest(3)))
        return f"{what} for {self.most_s:g} s: {ways}. It said last: {said}"

    def hold(self) -> bool:
        """Stop the script and what it started where they are; True once they are."""
        self.held_ns = self.held_ns or time.monotonic_ns()
        statuses = each(
            process_trees([self.child.pid]), lambda process: process.suspend() or process.status()
        )
        return all(status in STILL for status in statuses)

    def go(self, work: None) -> None:
        """Let it go on. It cannot be held after a number of steps: lines tell of them too late."""
        before = sum(took for _, took in self.holds)
        self.holds.append((self.held_ns - before, time.monotonic_ns() - self.held_ns))
        self.held_ns = None
        each(process_trees([self.child.pid]), psutil.Process.resume)

    def arrays(self, first: int, end: int) -> tuple:
        """Times of steps first ≤ step < end, but of none before it was last held; no losses."""
        if end <= first:
            return [], [], []
        ran = np.interp(np.arange(first + 1, end + 1), self.made, self.ran_ns)
        ran = np.rint(ran[ran > self.holds[-1][0]]).astype(np.int64)
        return sum((took * (ran > at) for at, took in self.holds), ran), [], []


def _whole(found: re.Match, group: str) -> int:
    """The number in a group. Raises RuntimeError if it is none, or a part of one."""
    line, text = found.string, found[group].strip()
    start, end = found.span(group)
    if not WHOLE.fullmatch(text):
        raise _wrong(f"'{text}' is no whole number", line)
    after = THOUSANDS.match(line, end) if found.end() == end else None
    if after or GOES_ON.match(line, end) or line[:start][-1:].isdigit():
        raise _wrong(f"'{text}' is a part of a number", line)
    return int(re.sub("[,_]", "", text))


def _wrong(what: str, line: str) -> RuntimeError:
    ways = f"give a stricter pattern, or {EXACT}"
    return RuntimeError(f"the script's count {what}: {ways}; the line: {_shown(line)}")


def _shown(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    text = re.sub(r"([^\w?])\1{3,}", r"\1", text)  # a bar
    return f"'{text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}'"
