"""The conductor's side of the sampler: starts it, tells it what goes on, ends it, and what it saw.

Nothing here waits for the sampler but see_idle() and end(), some seconds at worst, and nothing that
goes wrong with it costs a cell its result: it is a sentence in `problem`.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workflow.collocation import ROOT
from workflow.collocation.record.values import FileDigest, Telemetry, Window
from workflow.collocation.telemetry.lines import Lines, one_line, read

PROGRAM = "workflow.collocation.telemetry.sampler"
SLOW_HZ = 2.0  # for members, machine and the card's lists of processes
END_S = 2.0  # for a sampler that was told to end
KILL_S = 1.0  # for the kernel to end one that was killed
IDLE_ROWS, IDLE_S = 3, 4.0  # of a card before members are built, and how long to wait for them
LINGER_S = 0.2  # for a window's last readings: energy and activity move in steps of some 100 ms


class Watch:
    """One sampler, from construction to end(); leaving the context ends it too.

    folder: where its lines go until they are read. log: file that takes what it prints. config:
    "source" and "hz" as a study's config has them; "gpu", the card's UUID, None without;
    "entities", "gpu" and, under MIG, "gi:<id>"; "cores", where it may run, None for anywhere. To be
    made on the main thread: the kernel kills the sampler when that ends.

    problem: what was wrong with it, or how it ended. linger_s: how long members should go on when a
    window has closed, for its last readings.
    """

    def __init__(self, folder: Path, log: Path, config: dict):
        self.problem: str | None = None
        self.off = config["source"] == "off"
        self.linger_s = 0.0 if self.off else LINGER_S
        self.process: subprocess.Popen | None = None
        self._idle = ("gpu", IDLE_ROWS) if config["gpu"] else ("host", 1)
        self._output, self._log = folder / "telemetry.jsonl", log
        self._lines: Lines | None = None
        self._phases = [(time.monotonic_ns(), "idle")]
        if self.off:
            return
        output = str(self._output.resolve())
        config = {**config, "output": output, "slow_hz": SLOW_HZ, "parent": os.getpid()}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                process_group=0,  # Ctrl-C is for the conductor alone
            )
        os.set_blocking(self.process.stdin.fileno(), False)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def see_idle(self) -> None:
        """Wait until card or machine has been seen without members for a moment."""
        (kind, least), began_ns = self._idle, self._phases[0][0]
        until = began_ns / 1e9 + (0 if self.off else IDLE_S)
        while time.monotonic() < until and self.rows(kind) < least:
            time.sleep(0.02)

    def members(self, pids: dict[int, int]) -> None:
        """The members' PIDs by index; these and no others are looked at from now on."""
        self._send(members=pids)

    def phase(self, name: str) -> None:
        """The cell's phase from now on; before the first it is "idle"."""
        self._phases.append((time.monotonic_ns(), name))

    def open(self, window: str) -> None:
        self._send(open=window)

    def close(self, window: str) -> None:
        self._send(close=window)

    def rows(self, kind: str) -> int:
        """How many rows of a kind, such as "gpu", it has written by now."""
        with suppress(OSError):
            return self._output.read_bytes().count(f'{{"k":"{kind}"'.encode())
        return 0

    def end(self) -> Lines:
        """End the sampler, and all that it wrote. The second call gives the same again.

        Bounded: END_S for it to quit, KILL_S after SIGKILL.
        """
        if self._lines is None and self.process is None:
            self._lines = Lines()
        elif self._lines is None:
            self.process.stdin.close()  # by which it knows
            try:
                if code := self.process.wait(END_S):
                    said = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2][:300]
                    self.problem = f"the sampler ended too early: exit code {code} {said}".strip()
            except subprocess.TimeoutExpired:
                self.problem = self.problem or "the sampler did not end when told to; it was killed"
                os.killpg(self.process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it is left behind
                    self.process.wait(KILL_S)
            self._lines = read(self._output)
            self._lines.phases = self._phases
            self._lines.problem = self.problem = self.problem or self._lines.problem
        return self._lines

    def account(
        self, folder: Path, windows: list[Window], say: Callable[[str], None], **about
    ) -> tuple[Telemetry, list[str], dict[str, FileDigest]]:
        """End the sampler; the record's `telemetry`, and what is to add to its `flags` and `files`.

        folder: for the files. say: takes the traceback of what goes wrong in here. about: what
        Summary is to know of the cell. Raises OSError where the files cannot be written.
        """
        if self.off:
            return Telemetry(status="off"), [], {}
        lines = self.end()
        try:
            # Arrow, which the conductor imports while the fork server starts
            from workflow.collocation.telemetry import files
            from workflow.collocation.telemetry.summary import Summary

            telemetry, flags = Summary(lines, windows, **about).telemetry()
            return telemetry, flags, files.write(folder, lines, windows)
        except OSError:
            raise
        except Exception as error:
            say(traceback.format_exc())
            telemetry = Telemetry(status="incomplete", reason=one_line(error))
            return telemetry, ["telemetry_incomplete"], {}

    def _send(self, **command) -> None:
        """One command, as a whole or not at all: a pipe takes what is this short in one piece."""
        if self.problem is None and self.process is not None:
            try:
                os.write(self.process.stdin.fileno(), json.dumps(command).encode() + b"\n")
            except OSError as error:  # it is gone, or does not read its commands
                self.problem = f"the sampler cannot be reached: {error}"
