"""What a person sees: at a terminal (a pseudo-terminal, with a real Ctrl-C), in a log file."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time

import pytest

from tests.fakes import machine
from tests.studio import PATIENCE, REPOSITORY, alone, study, workload

CHATTER = ("Job stats", "Select jobs", "Execute ", "Finished jobid", "steps (", "Building DAG")
CHATTER += ("Removing output", "RuleException", "WorkflowError", "Elapsed time", "rule collocate")


def at_terminal(studio, *arguments: str, stop_at: str = "", times: int = 1, **config):
    """Run snakemake as `make study` does, on a terminal, and type Ctrl-C once `stop_at` is shown.

    times: how often it is typed, each 0.3 s after the other. The first is typed at once: later, a
    Python that is only starting would meet it, and print a traceback of its own. Returns the exit
    code, and the output before and after the first Ctrl-C.
    """
    command = [sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake"]
    command += ["--snakefile", str(REPOSITORY / "Snakefile"), "--directory", ".", "--cores", "1"]
    command += ["--config", *studio.config(**config), *arguments]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=studio.folder,
        env=studio.environment(),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY),
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
    )
    os.close(theirs)
    output, stopped_at, due = b"", None, None
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                output += os.read(ours, 1 << 16)
            except OSError:  # nobody holds the other end any more
                break
        if due is None and stop_at and re.search(stop_at.encode(), output):
            due = time.monotonic()
        if due is not None and times and time.monotonic() >= due:
            stopped_at = len(output) if stopped_at is None else stopped_at
            os.write(ours, b"\x03")
            times, due = times - 1, due + 0.3
    os.close(ours)
    before, after = output[:stopped_at], output[stopped_at:] if stopped_at else b""
    return process.wait(PATIENCE), before.decode(), after.decode()


def screen(text: str) -> list[str]:
    """The lines that stay on the screen: a line that is rewritten leaves its last text."""
    lines = (re.split(r"\r\x1b\[K", line.rstrip("\r"))[-1] for line in text.split("\n"))
    plain = (re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in lines)
    return [line for line in plain if line]


@pytest.fixture(scope="module")
def longer(module_studio):
    """A study of two cells, of a few seconds each."""
    studio = module_studio()
    lasting = study(ladders=alone("plain"), measure={"kind": "window", "window_s": 3})
    short = study(ladders=alone("plain", "second"))
    return studio.write({"plain": workload(), "second": workload()}, drill=lasting, short=short)


@pytest.mark.parametrize(
    ("stop_at", "times"),
    [("study 'drill'", 1), ("measuring", 1), ("measuring", 2)],
    ids=["planning", "measuring", "measuring_twice"],
)
def test_ctrl_c_takes_three_lines_and_no_traceback(longer, stop_at, times):
    code, before, after = at_terminal(longer, stop_at=stop_at, times=times)
    lines = screen(after.replace("^C", ""))
    # make adds one; Snakemake has its own words for a second Ctrl-C that comes late.
    assert code in (1, 130, -2) and (len(lines) <= 2 or times == 2), before + after
    assert "Traceback" not in after and not any(word in after for word in CHATTER)
    assert not list(longer.results.glob("cells/*/*/*/*/*/run.json"))


def test_who_reads_the_first_lines_of_a_plan_alone_sees_no_traceback():
    """As `make plan | head`: nobody reads what comes, from the first line on."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    module = "workflow.collocation.plan."
    command = [sys.executable, "-m", f"{module}terminal", f"{module}show", "--config"]
    command += ["study=methods", "gpu=cpu"]
    run = subprocess.run(
        command, cwd=REPOSITORY, stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert not run.stderr


def test_a_log_file_has_plain_lines_and_on_request_all_that_snakemake_says(longer):
    short = longer.snakemake("--until", "collocate", config={"study": "short"})
    assert short.code == 0 and short.output.count("completed in") == 2, short.output
    assert "\x1b" not in short.output and "\r" not in short.output
    verbose = longer.snakemake("--until", "dataset", "--quiet", "host", "-F")
    for output, complete in ((short.output, False), (verbose.output, True)):
        assert ("Job stats" in output and "Finished jobid" in output) == complete, output


def test_a_terminal_shows_one_line_that_lives_and_a_line_for_each_result(studio):
    lasting = study(ladders=alone("plain"), measure={"kind": "window", "window_s": 3})
    studio.write({"plain": workload()}, drill=lasting).with_card()
    machine.does(studio.card, gract=0.93)
    code, output, _ = at_terminal(studio, "--until", "collocate")
    assert code == 0, output
    rewritten = re.findall(r"\r\x1b\[K([^\r\n]+)", output)
    pattern = "measuring 1 of 1 members, [1-9][0-9,]* samples/s; about [0-9]+ s left"
    assert any(re.search(pattern, line) for line in rewritten), output
    lines = screen(output)
    assert sum("completed in" in line for line in lines) == 1 and len(lines) < 12, lines
    assert not any(word in output for word in CHATTER)
