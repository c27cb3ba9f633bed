"""The keeper of one run: starts its command, and ends it with every process that came of it.

It lives until standard input ends, which is when its supervisor asks for the run's end or dies, or
until the command has ended. Its argument is JSON: command, environment (variables to set, null for
those to unset), cores, pipe (folder of the MPS daemon, null without one). Standard error is the log
of the command's output. It prints a line of JSON when the command runs ({"pid": n}), and one when
all of it has ended: {"code": n or null, "signal": n or null, "by_itself": whether nobody asked for
it, "left": PIDs that outlived the command}, or {"error": why it did not start}.
Descriptors that it inherits (locks) stay with it: they are free once nothing is left.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.process_lifetime import (
    END_SIGNALS,
    adopt_orphans,
    end_with_parent,
    is_running,
)

# Not by `python -m`: the command has to find the environment as the user has it.
PROGRAM = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from workflow.collocation.sweep.keeper import main
main()"""
GRACE_S, KILL_S = 10.0, 5.0  # after SIGTERM, and for the kernel to end what was killed
LEAVE_S = 2.0  # for helpers of a command to end after it
KILLS = 3


def main() -> None:
    task, supervisor = json.loads(sys.argv[1]), os.getppid()
    for number in END_SIGNALS:  # a terminal's are for the command to handle
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    try:
        child = _start(task)
    except OSError as error:
        _say(error=f"{task['command'][0]} did not start: {error.strerror}")
        return
    _say(pid=child.pid)
    ended = os.pidfd_open(child.pid)
    readable, _, _ = select.select([sys.stdin, ended], [], [])
    left: list[int] = []
    if ended in readable:
        wait_for_end(LEAVE_S)
        left = [process.pid for process in _descendants(frozenset())]
    else:  # alone, for it may save a checkpoint, and would fail without its helpers
        _signal([psutil.Process(child.pid)], signal.SIGTERM, task["pipe"])
        select.select([ended], [], [], GRACE_S)
    end_descendants(pipe=task["pipe"])
    code, number = child.wait(), None
    if code < 0:
        code, number = None, -code
    reap()
    _say(code=code, signal=number, by_itself=ended in readable, left=left)
    if os.getppid() != supervisor:  # it was killed, and its daemon with it: the server may live
        from workflow.collocation.sharing import mps_daemon

        mps_daemon.sweep()


def _start(task: dict) -> subprocess.Popen:
    keeper = os.getpid()
    environment = {**os.environ, **task["environment"]}

    def prepare() -> None:
        end_with_parent(keeper)
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.sched_setaffinity(0, task["cores"])

    return subprocess.Popen(
        task["command"],
        env={name: value for name, value in environment.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=prepare,
        process_group=0,
    )


def end_descendants(spared: frozenset[int] = frozenset(), pipe: str | None = None) -> None:
    """End all processes that descend from this one: by SIGTERM, then by SIGKILL.

    spared: PIDs of children that go on, with theirs. pipe: folder of their MPS daemon.
    """
    steps = [(signal.SIGTERM, GRACE_S), *[(signal.SIGKILL, KILL_S)] * KILLS]
    for number, seconds in steps:  # a killed process may just have started another
        _signal(_descendants(spared), number, pipe)
        if wait_for_end(seconds, spared):
            return


def _signal(processes: list[psutil.Process], number: int, pipe: str | None) -> None:
    """Send a signal; before, the MPS daemon drops those that it ends at once. Others may save."""
    ending = {process.pid for process in processes if _is_ended_by(number, process.pid)}
    if pipe and ending:
        with suppress(Exception):  # whatever it is, the signal is sent
            from workflow.collocation.sharing import mps_daemon  # it takes long to import

            mps_daemon.Daemon("", Path(pipe), Path(pipe)).release(ending)
    for process in processes:
        with suppress(psutil.Error):  # such as a program with another user's rights
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)


def _is_ended_by(number: int, pid: int) -> bool:
    """Whether a process neither handles this signal nor ignores nor blocks it."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = re.findall(r"^Sig(?:Blk|Ign|Cgt):\s*(\w+)$", status, re.M)
        return not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def wait_for_end(seconds: float, spared: frozenset[int] = frozenset()) -> bool:
    """Wait so long until all that descends from this process has ended; whether it has."""
    deadline = time.monotonic() + seconds
    while _descendants(spared):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def reap(spared: frozenset[int] = frozenset()) -> None:
    """Collect children that have ended, but for those `spared`, whose starters wait for them."""
    for child in psutil.Process().children():
        if child.pid not in spared:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _descendants(spared: frozenset[int]) -> list[psutil.Process]:
    running = []
    for child in psutil.Process().children():
        if child.pid not in spared:
            with suppress(psutil.Error):
                running += [child, *child.children(recursive=True)]
    return [process for process in running if is_running(process)]


def _say(**fields) -> None:
    with suppress(OSError):  # nobody listens any more
        print(json.dumps(fields), flush=True)
