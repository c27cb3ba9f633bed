"""`collocate run` as its user sees it: what it says of the time left, and what it leaves behind."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.gpu import Device

LEFT = re.compile(r"about (\d+) (s|min|h) left: (\d+) of \d+ runs done")
DONE = re.compile(r"(\d+) of \d+ runs done")
UNITS = {"s": 1, "min": 60, "h": 3600}
END_S = 40.0  # after Ctrl-C, for runs to end
GONE_S = 20.0  # for what was killed to leave


@dataclass
class Watched:
    """A call of the command. code: its exit code. seconds: how long it took.

    estimates: [seconds since its start, runs done, seconds that it said are left].
    """

    code: int = 0
    seconds: float = 0.0
    estimates: list[list[float]] = field(default_factory=list)

    def to_json(self) -> dict:
        """With the first estimate after each run that ended, and what was taken from then on."""
        first = {int(done): (since, left) for since, done, left in reversed(self.estimates)}
        by_runs_done = {
            done: {"told_s": left, "taken_s": round(self.seconds - since, 1)}
            for done, (since, left) in sorted(first.items())
        }
        return asdict(self) | {"told": by_runs_done}


def watch(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
    kill_at: int | None = None,
) -> Watched:
    """Run the command at a terminal of its own, for limit_s at most, and add its output to `log`.

    kill_at: SIGKILL the command and its supervisors once so many runs are done.
    """
    watched, began_s = Watched(), time.monotonic()
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    asked_s, text = None, ""
    with log.open("a", encoding="utf-8") as file:
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            now_s = time.monotonic() - began_s
            if select.select([master], [], [], 0.2)[0]:
                try:
                    text = os.read(master, 1 << 16).decode(errors="replace")
                except OSError:  # the terminal's other end is closed
                    break
                file.write(text)
                file.flush()
                for number, unit, done in LEFT.findall(text):
                    watched.estimates.append([now_s, int(done), int(number) * UNITS[unit]])
            if kill_at is not None and any(int(n) >= kill_at for n in DONE.findall(text)):
                kill_command(process)
                break
            if now_s > limit_s and asked_s is None:
                print(f"{limit_s:.0f} s are over: it is interrupted", flush=True)
                process.send_signal(signal.SIGINT)
                asked_s = now_s
            if asked_s is not None and now_s - asked_s > END_S:
                kill_command(process)
    os.close(master)
    watched.code = process.wait(END_S)
    watched.seconds = time.monotonic() - began_s
    return watched


def kill_command(process: subprocess.Popen) -> None:
    """SIGKILL the command with its supervisors, and nothing of what these started."""
    with suppress(psutil.NoSuchProcess):
        ours = [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]
        for each in ours:
            each.suspend()  # so that none sees another's end
        for each in ours:
            each.kill()


def left_behind(folder: Path, temporary: Path, device: Device | None) -> list[str]:
    """What of a policy is still there, once it had some time to go; none of it is ended.

    folder: that its runs' commands name. temporary: where its daemons had their pipes.
    """
    deadline = time.monotonic() + GONE_S
    while (left := _left(folder, temporary, device)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def _left(folder: Path, temporary: Path, device: Device | None) -> list[str]:
    left = [str(path) for path in temporary.glob("mps-*")]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            is_mps = process.name().startswith("nvidia-cuda-mps")
            ours = is_mps and str(temporary) in " ".join(process.environ().values())
            if process.pid != os.getpid() and (ours or str(folder) + "/" in words):
                left.append(f"{process.pid}: {words[:200]}")
    if device:
        lists = device.processes()
        left += [f"on the GPU: {pid}" for pid in sorted({*(lists["compute"] or [])})]
    return left
