"""Steps by a pattern over a script's output: one counter, or a line that says why it is none."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from models.jobs import output_steps, script_output  # noqa: E402
from models.jobs.output_steps import OutputSteps  # noqa: E402
from models.jobs.script_output import ScriptOutput  # noqa: E402
from tests.fakes.members import script_spec  # noqa: E402
from tests.studio import until  # noqa: E402

STEP, OF = r"step (?P<step>[\d,]+)", r"(?P<step>\d+)/(?P<total>\d+)"
BAR = r" (?P<step>\d+)/\d+ \["
NOBODY = 1 << 30  # no process has this PID


class Clock:
    """Time that stands still until it is told to go."""

    def __init__(self):
        self.now_ns = 10**15

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(output_steps, "time", clock)
    return clock


@pytest.fixture
def told(clock):
    """An OutputSteps to which these lines came, 100 ms after each other."""

    def tell(pattern: str, lines) -> OutputSteps:
        output = OutputSteps(script_spec("", [], steps=pattern, step_timeout_s=30))
        output.child = SimpleNamespace(pid=NOBODY, poll=lambda: None)
        for line in lines:
            output.take_line(line)
            clock.sleep(0.1)
        return output

    return tell


@pytest.mark.parametrize(
    ("pattern", "lines", "steps"),
    [
        (STEP, ["step 10", "step 20", "loss 30", "step 50"], 40),  # of the first nobody knows
        (STEP, ["step 10", "step 10", "step 20", "step 20"], 10),
        (STEP, ["step 990", "step 1,000", "step 1,010"], 20),
        (r"step (?P<step>[ \d_]+)", ["step  999", "step 1_000"], 1),
        (OF, ["0/3", "1/3", "2/3", "3/3", "0/3", "1/3"], 4),
        (OF, ["3/3", "1/3", "2/3", "3/3"], 3),
        (OF, ["0/3", "1/3", "2/3", "0/3", "1/3"], 4),  # a pass that starts at 0
        (OF, ["50/100", "100/100", "50/100", "100/100"], 150),
        (rf"^(?:{OF}|eval)", ["1/9", "eval", "2/9"], 1),
        (STEP, ["step 1", "step 2", "step 102", "step 202"], 201),  # the first ones were slow
        (r"^(?P<step>\d+),", ["1,234,x", "2,345,x"], 1),  # a table with commas
    ],
)
def test_one_counter_is_steps(told, pattern, lines, steps):
    output = told(pattern, lines)
    assert output.done == steps


@pytest.mark.parametrize(
    ("pattern", "lines", "words"),
    [
        (BAR, [" 99/1000 [", " 100/1000 [", " 1/10 ["], "fell from 100 to 1, .*'1/10 "),
        (OF, ["100/130", "50/130"], "fell from 100 to 50, .*pass of 130"),
        (OF, ["949/990", "0/990"], "fell"),
        (OF, ["1/3", "2/3", "1/3"], "fell"),  # it may have begun at 1, and 3 is missing
        (OF, ["99/1000", "100/10"], "total from 1000 to 10"),
        (STEP, [*(f"step {n}" for n in range(9)), "step 900"], "jumped from 8 by 892, .*'step 900"),
        (STEP, [f"step {8192 * n}" for n in range(900)], "something other than steps"),
        (r"step (?P<step>\S+)", ["step 1.00k"], "'1.00k'.*no whole number.*'step 1.00k'"),
        (r"(?P<step>\d+)", ["1.00k/10"], "part of a number"),
        (r"(?P<step>\d+)", ["10k/10"], "part of a number"),
        (r"step (?P<step>\d+)", ["step 50,010"], "part of a number"),
        (r".*(?P<step>\d+)/", ["step 57/"], "part of a number"),
        (r"(?P<step>\d+?)", ["57"], "part of a number"),
        (STEP, ["step 10", "step 5\x1b\x07" + "yx" * 900], r"'step 5\?\?[yx]+…'"),
        (STEP, ["step 9", f"|{'#' * 99}{' ' * 99}| step 5"], r"'\|# \| step 5'"),  # a wide bar
    ],
)
def test_anything_else_is_refused_with_its_line(told, pattern, lines, words):
    with pytest.raises(RuntimeError, match=words) as caught:
        told(pattern, lines)
    assert len(str(caught.value)) < 500 and "steps: auto" in str(caught.value)


def test_time_held_is_no_steps_time(told, clock):
    """Lines every 50 steps of 10 ms; held for 20 s at the 130th."""
    output = told(STEP, [])
    for number in range(0, 101, 50):
        output.take_line(f"step {number}")
        clock.sleep(0.5 if number < 100 else 0.3)
    assert output.hold()
    first, held_ns = output.done, clock.now_ns
    clock.sleep(20)
    output.go(None)
    gone_ns = clock.now_ns
    clock.sleep(0.2)
    for number in range(150, 301, 50):
        output.take_line(f"step {number}")
        clock.sleep(0.5)
    ends, *losses = output.arrays(first, output.done)
    assert held_ns < gone_ns < ends[0] and losses == [[], []]
    assert len(ends) == 170 and ends[0] - gone_ns == pytest.approx(1e7, abs=10)
    assert np.diff(ends) == pytest.approx(1e7, abs=10)


def test_lines_that_arrive_together_are_spread_over_the_time_before(told, clock):
    """Eighty a second, all at once."""
    output = told(STEP, ["step 0"])
    output.hold()
    output.go(None)
    for burst in range(5):
        clock.sleep(1)
        for number in range(80):
            output.take_line(f"step {burst * 80 + number + 1}")
    ends, *_ = output.arrays(0, output.done)
    assert np.diff(ends)[1:] == pytest.approx(1e9 / 80, rel=0.11)


@pytest.mark.parametrize(
    ("prints", "words"),
    [
        (["a", "\x1b[1mb\x1b[0m"], r"no line.*'step \(\?P.*30 s.*'a' \| 'b'"),
        (["step 50", "step 50"], "the group step stayed 50"),
        (["step 50"], None),
        ([], None),
    ],
)
def test_a_script_without_a_step_is_not_waited_for(clock, prints, words):
    output, printed = (
        OutputSteps(script_spec("", [], steps=STEP, step_timeout_s=30)),
        ScriptOutput(),
    )
    for line in prints:
        os.write(printed.script_end, f"{line}\n".encode())
        printed.began_s = clock.monotonic()
        for line in printed.read_lines():
            output.take_line(line)
    clock.sleep(29)
    assert output.problem(printed) is None
    clock.sleep(2)
    why = output.problem(printed)
    assert why is None if words is None else re.search(words, why) and "first_step_s" in why


# -- the terminal ----------------------------------------------------------------------------------


def test_lines_are_whole_across_reads_and_without_colours(capfd):
    output, lines = ScriptOutput(), []
    for text in ("epoch 1\nloss 1\nlo", "ss 2\rloss 3\x1b[1A\r", "\x1b[32mstep \x1b[1;36m4", "\n"):
        os.write(output.script_end, text.encode())
        lines += output.read_lines()
    assert lines == ["epoch 1", "loss 1", "loss 2", "loss 3", "step 4"]
    assert capfd.readouterr().out.startswith("epoch 1\nloss 1\nloss 2\rloss 3\x1b")


def test_a_program_that_does_not_flush_is_heard_at_once():
    output, lines = ScriptOutput(), []
    code = "import sys, time; print('step 1'); print(sys.stdout.isatty()); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=output.script_end, stderr=output.script_end) as script:
        until(lambda: lines.extend(output.read_lines()) or len(lines) == 2, lambda: str(lines))
        script.kill()
    assert lines == ["step 1", "True"]


def test_output_without_end_fills_neither_memory_nor_log(capfd, monkeypatch):
    monkeypatch.setattr(script_output, "MAX_LOG", 10_000)
    output = ScriptOutput()
    with subprocess.Popen(["yes", "x" * 999], stdout=output.script_end) as script:
        while output.size < 1 << 20:
            output.read_lines()  # returns, though there is always more
        script.kill()
    while output.read_lines():
        pass
    os.write(output.script_end, b"y" * 500)
    output.read_lines()
    assert len(output.partial_line) + len(output.tail) < 1 << 18 and output.newest(2)[-1].endswith(
        "y" * 9
    )
    assert len(capfd.readouterr().out) == 10_000
