"""A run that runs: its claim, its keeper, and what the keeper says."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workflow.collocation.sweep import keeper
from workflow.collocation.sweep.journal import LOG, RunClaim
from workflow.collocation.sweep.record import RunAttempt

TAIL_BYTES = 1 << 16


@dataclass(eq=False)
class Running:
    """A run whose keeper lives.

    log_begin: size of its log when it began. report: what the keeper said. is_seen: whether its
    memory and the proof of its method are known. on_gpu: PIDs of its processes seen on the GPU.
    is_late: whether it is being ended as it takes too long.
    """

    claim: RunClaim
    keeper: subprocess.Popen
    log_begin: int
    started_s: float
    output: bytes = b""
    report: dict = field(default_factory=dict)
    is_seen: bool = False
    is_late: bool = False
    on_gpu: set[int] = field(default_factory=set)

    @property
    def attempt(self) -> RunAttempt:
        return self.claim.run.attempts[-1]

    def read(self) -> bool:
        """Take in what the keeper prints; whether it has ended."""
        news = os.read(self.keeper.stdout.fileno(), TAIL_BYTES)
        *lines, self.output = (self.output + news).split(b"\n")
        for line in lines:
            self.report |= json.loads(line)
        if self.attempt.pid is None and "pid" in self.report:
            self.attempt.pid = self.report["pid"]
            self.claim.save()
        return not news

    def tail(self) -> tuple[str, ...]:
        """The newest lines of this attempt's output, without empty ones."""
        lines: list[str] = []
        with suppress(OSError), (self.claim.folder / LOG).open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_begin, end - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return tuple(line.strip() for line in lines if line.strip())

    def close(self) -> None:
        """Close the pipes of a keeper that has ended."""
        self.keeper.stdin.close()
        self.keeper.stdout.close()


def start_run(claim: RunClaim, task: dict, working: Path, locks: tuple[int, ...]) -> Running:
    """Start the keeper of a run. Raises OSError.

    task: as keeper.py has it. working: folder in which the command runs. locks: descriptors that
    the keeper holds for as long as it lives.
    """
    with (claim.folder / LOG).open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", keeper.PROGRAM, json.dumps(task)],
            cwd=working,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=locks,
            start_new_session=True,
        )
    return Running(claim, process, begin, time.monotonic())
