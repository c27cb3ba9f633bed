"""Steps of a user's script, counted by a pattern over its output."""

import re
import time
from array import array

import numpy as np
import psutil

from models import hook
from models.jobs.script_output import ScriptOutput
from models.jobs.script_steps import act_on_living
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.process_lifetime import process_trees

NOT_RUNNING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
TOGETHER_NS = 5_000_000  # Lines that arrive within this time count as simultaneous.
# A jump of the counter is JUMP_RATE times the steps of the usual rate and JUMP_MOST times the most
# so far, once JUMP_AFTER lines have come.
JUMP_RATE, JUMP_MOST, JUMP_AFTER = 20, 10, 5
MAX_STEPS_PER_S = 20_000  # No training makes more.
MAX_SHOWN = 75  # characters of a line in a message
WHOLE = re.compile(r"\d+|\d{1,3}([,_]\d{3})+")
GOES_ON = re.compile(r"\d|\.\d|[kKMG](?![A-Za-z])")  # A number, after the end of the group.
THOUSANDS = re.compile(r"[,_']\d{3}")
ADVICE = "count by steps: auto"


class OutputSteps:
    """Steps by lines that match a pattern, whose group `step` is a counter of steps.

    A line adds the rise of the counter since the line before; these steps are evenly spaced over
    the time in which the script was not held. The first number is no step. Where a group `total` is
    the length of a pass, the counter may begin again at the end of one. Anything else is no counter
    of steps, and raises RuntimeError with the line.
    """

    descriptors = ()  # that the script inherits
    facts: dict = {}  # The script reports nothing about its device.

    def __init__(self, spec: MemberSpec):
        self.pattern = re.compile(spec.job.steps)
        self.step_timeout_s = spec.job.step_timeout_s
        self.number = self.total = self.lowest = None
        # When lines came, in ns of the time that the script ran, and how many steps had been made.
        self.ran_ns, self.steps_made = array("q"), array("q")
        self.lines = self.most_steps = self.last_ns = 0
        self.holds: list[tuple[int, int]] = []  # (when, for how long), ns of the time that it ran
        self.held_ns: int | None = None

    def environment(self, pid: int) -> dict[str, str]:
        """The variables by which the script reports steps: none."""
        return {}

    def begin_run(self) -> None:
        """Expect the counter to begin anew, as the script is started (again)."""
        self.number = self.total = self.lowest = None

    @property
    def done(self) -> int:
        """Steps made so far, according to the output."""
        return self.steps_made[-1] if self.steps_made else 0

    def take_line(self, line: str) -> None:
        """Count the steps of a new line. Raises RuntimeError if its number cannot be right."""
        match = self.pattern.search(line)
        if not match or match["step"] is None:
            return
        number, total = _whole_number(match, "step"), self.total
        if match.groupdict().get("total"):
            total = _whole_number(match, "total")
        if self.total not in (None, total):
            raise _wrong(f"changed its total from {self.total} to {total}", line)
        steps = 0 if self.number is None else self._rise(number, total, line)
        now_ns = (self.held_ns or time.monotonic_ns()) - self._total_held_ns()
        self._check_jump(steps, now_ns, line)
        begins_run = self.number is None
        self.number, self.total, self.lines = number, total, self.lines + 1
        self.lowest = number if self.lowest is None else min(number, self.lowest)
        self.most_steps = max(self.most_steps, steps)
        if begins_run or (steps and now_ns - self.last_ns > TOGETHER_NS):
            self.last_ns = now_ns
            self.ran_ns.append(now_ns)
            self.steps_made.append(self.done + steps)
        elif steps:
            self.ran_ns[-1] = now_ns
            self.steps_made[-1] += steps

    def _total_held_ns(self) -> int:
        return sum(duration_ns for _, duration_ns in self.holds)

    def _rise(self, number: int, total: int | None, line: str) -> int:
        """Steps since the line before."""
        if number >= self.number:
            return number - self.number
        counts_from_0 = self.number == (total or 0) - 1 and 0 in (number, self.lowest)
        if self.number != total and not counts_from_0:
            of_total = " (name the group total if passes end)" if total is None else f" of {total}"
            fall = f"fell from {self.number} to {number}"
            raise _wrong(f"{fall}, not at the end of a pass{of_total}", line)
        return total - self.number + number

    def _check_jump(self, steps: int, now_ns: int, line: str) -> None:
        """Raise RuntimeError for a rise that no training makes."""
        total_steps = self.done + steps
        ran_s = (now_ns - self.ran_ns[0]) / 1e9 if self.steps_made else 0
        if total_steps > min(hook.STEPS, MAX_STEPS_PER_S * max(ran_s, 1)):
            raise _wrong(f"rose by {total_steps}: something other than steps", line)
        if steps <= JUMP_MOST * self.most_steps or self.lines <= JUMP_AFTER:
            return
        steps_per_ns = self.done / max(self.ran_ns[-1] - self.ran_ns[0], 1)
        if steps > JUMP_RATE * steps_per_ns * (now_ns - self.ran_ns[-1]):
            raise _wrong(f"jumped from {self.number} by {steps}, as of two counters", line)

    def problem(self, output: ScriptOutput) -> str | None:
        """Why there was no step for too long; None if there was one, or one may still come.

        After a first number, the second may take as long again.
        """
        since_s = self.last_ns / 1e9 if self.steps_made else output.began_s
        if since_s is None or self.done or self.lines == 1:
            return None
        if time.monotonic() - since_s < self.step_timeout_s:
            return None
        reason = f"no line matched {_shortened(self.pattern.pattern)}"
        if self.lines:
            reason = f"the group step stayed {self.number}"
        lines = " | ".join(_shortened(line) for line in output.newest(3))
        return (
            f"{reason} for {self.step_timeout_s:g} s: mend the pattern, {ADVICE}, or raise "
            f"first_step_s. It said last: {lines}"
        )

    def hold(self) -> bool:
        """Stop the script and all that it started (SIGSTOP); True once they are stopped."""
        self.held_ns = self.held_ns or time.monotonic_ns()
        processes = process_trees([self.child.pid])
        act_on_living(processes, psutil.Process.suspend)
        statuses = act_on_living(processes, psutil.Process.status)
        # A script that has ended is not held: it may be started again.
        return all(status in NOT_RUNNING for status in statuses) and self.child.poll() is None

    def go(self, window_steps: None) -> None:
        """Let the script go on. It cannot be held after some steps: its lines come too late."""
        held_after_ns = self.held_ns - self._total_held_ns()
        self.holds.append((held_after_ns, time.monotonic_ns() - self.held_ns))
        self.held_ns = None
        act_on_living(process_trees([self.child.pid]), psutil.Process.resume)

    def arrays(self, first: int, end: int) -> tuple:
        """Times of steps first ≤ step < end, but of none before it was first held; no losses."""
        if end <= first:
            return [], [], []
        steps = np.arange(first + 1, end + 1)
        ran_ns = np.interp(steps, self.steps_made, self.ran_ns)
        ran_ns = np.rint(ran_ns[ran_ns > self.holds[0][0]]).astype(np.int64)
        end_ns = ran_ns.copy()
        for held_after_ns, duration_ns in self.holds:
            end_ns += duration_ns * (ran_ns > held_after_ns)
        return end_ns, [], []


def _whole_number(match: re.Match, group: str) -> int:
    """The number in a group. Raises RuntimeError if it is none, or only a part of one."""
    line, text = match.string, match[group].strip()
    start, end = match.span(group)
    if not WHOLE.fullmatch(text):
        raise _wrong(f"'{text}' is no whole number", line)
    more_digits = match.end() == end and THOUSANDS.match(line, end)
    if more_digits or GOES_ON.match(line, end) or line[:start][-1:].isdigit():
        raise _wrong(f"'{text}' is a part of a number", line)
    return int(re.sub("[,_]", "", text))


def _wrong(problem: str, line: str) -> RuntimeError:
    return RuntimeError(
        f"the script's count {problem}: give a stricter pattern, or {ADVICE}; "
        f"the line: {_shortened(line)}"
    )


def _shortened(text: str) -> str:
    """The text in quotes, printable, without long bars, and of limited length."""
    words = " ".join(text.split())
    text = "".join(character if character.isprintable() else "?" for character in words)
    text = re.sub(r"([^\w?])\1{3,}", r"\1", text)
    return f"'{text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + '…'}'"
