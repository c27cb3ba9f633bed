"""The conductor's side of the sampler: starts it, sends it commands, ends it, reads its output.

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
from workflow.collocation.telemetry.lines import SamplerOutput, one_line, read_output

PROGRAM = "workflow.collocation.telemetry.sampler"
SLOW_HZ = 2.0  # for members, machine and the card's lists of processes
END_S = 2.0  # for a sampler that was told to end
KILL_S = 1.0  # for the kernel to end one that was killed
IDLE_ROWS, IDLE_S = 3, 4.0  # of a card before members are built, and how long to wait for them
LINGER_S = 0.2  # for a window's last readings: energy and activity move in steps of some 100 ms


class Watch:
    """One sampler process, from construction to end(); leaving the context ends it too.

    folder: for its output until that is read. log: file for what it prints. config: "source" and
    "hz" as a study's config has them; "gpu": UUID of the card, None without; "entities": "gpu" and,
    under MIG, "gi:<id>"; "cores": where it may run, None for anywhere. To be made on the main
    thread: the kernel kills the sampler when that ends.

    path: its output so far. phases: when each began, ns of the monotonic clock, and its name.
    problem: what was wrong with it, or how it ended. linger_s: how long members should go on when a
    window has closed, for its last readings.
    """

    def __init__(self, folder: Path, log: Path, config: dict):
        self.problem: str | None = None
        self.off = config["source"] == "off"
        self.linger_s = 0.0 if self.off else LINGER_S
        self.process: subprocess.Popen | None = None
        self._idle = ("gpu", IDLE_ROWS) if config["gpu"] else ("host", 1)
        # Without a GPU it hardly computes.
        self._flags = ["sampler_shares_cores"] if config["gpu"] and not config["cores"] else []
        self.path, self._log = folder / "telemetry.jsonl", log
        self._output: SamplerOutput | None = None
        self.phases = [(time.monotonic_ns(), "idle")]
        if self.off:
            return
        path = str(self.path.resolve())
        config = {**config, "output": path, "slow_hz": SLOW_HZ, "parent": os.getpid()}
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
        """Wait until card or machine was read without members for a moment, IDLE_S at most."""
        if self.off:
            return
        kind, row_count = self._idle
        deadline = self.phases[0][0] / 1e9 + IDLE_S
        while time.monotonic() < deadline and self._rows_written(kind) < row_count:
            time.sleep(0.02)

    def members(self, pids: dict[int, int]) -> None:
        """Read these members and no others from now on; pids: by index."""
        self._send(members=pids)

    def phase(self, name: str) -> None:
        """Note the cell's phase from now on; before the first it is "idle"."""
        self.phases.append((time.monotonic_ns(), name))

    def open(self, window: str) -> None:
        """Have the sampler take the readings of a window's start."""
        self._send(open=window)

    def close(self, window: str) -> None:
        """Have the sampler take the readings of a window's end."""
        self._send(close=window)

    def _rows_written(self, kind: str) -> int:
        with suppress(OSError):
            return self.path.read_bytes().count(f'{{"k":"{kind}"'.encode())
        return 0

    def end(self) -> SamplerOutput:
        """End the sampler, and read its output; a second call returns the same.

        Takes END_S for it to quit, and KILL_S after SIGKILL, at most.
        """
        if self._output is not None:
            return self._output
        if self.process is None:
            self._output = SamplerOutput()
            return self._output
        self.process.stdin.close()  # which it takes as the command to end
        try:
            if code := self.process.wait(END_S):
                words = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2][:300]
                self.problem = f"the sampler ended too early: exit code {code} {words}".strip()
        except subprocess.TimeoutExpired:
            self.problem = self.problem or "the sampler did not end when told to; it was killed"
            os.killpg(self.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it is left behind
                self.process.wait(KILL_S)
        self._output = read_output(self.path)
        self._output.phases = self.phases
        self._output.problem = self.problem = self.problem or self._output.problem
        return self._output

    def account(
        self, folder: Path, windows: list[Window], say: Callable[[str], None], **facts
    ) -> tuple[Telemetry, list[str], dict[str, FileDigest]]:
        """End the sampler; returns the record's `telemetry`, and additions to `flags` and `files`.

        folder: for the files. say: takes the traceback of an error in here. facts: further
        arguments of TelemetrySummary. Raises OSError where the files cannot be written.
        """
        if self.off:
            return Telemetry(status="off"), [], {}
        output = self.end()
        try:
            # Arrow, which the conductor imports while the fork server starts.
            from workflow.collocation.telemetry.files import write_tables
            from workflow.collocation.telemetry.summary import TelemetrySummary

            telemetry, flags = TelemetrySummary(output, windows, **facts).telemetry()
            return telemetry, self._flags + flags, write_tables(folder, output, windows)
        except OSError:
            raise
        except Exception as error:
            say(traceback.format_exc())
            telemetry = Telemetry(status="incomplete", reason=one_line(error))
            return telemetry, [*self._flags, "telemetry_incomplete"], {}

    def _send(self, **command) -> None:
        """Send one command, as a whole or not at all: a pipe takes so short a line in one piece."""
        if self.problem is None and self.process is not None:
            try:
                os.write(self.process.stdin.fileno(), json.dumps(command).encode() + b"\n")
            except OSError as error:  # it has ended, or does not read its commands
                self.problem = f"the sampler cannot be reached: {error}"
