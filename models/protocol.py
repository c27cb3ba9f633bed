"""What a member and its conductor say to each other: JSON lines out, commands in, a line each.

Events, in this order: `forked` (pid), `built` (parameters, device, seconds), `autotuned` (seconds),
`warm` (steps; of a script `pause_s`, its longest pause), `started`, any number of `progress`
(steps, samples) and `held` (steps), `done` where its work is a number of steps, `stopped` (steps,
peaks of memory; steps.npz is written).
`error` (class, message, phase, out_of_memory, unsupported) may come at any time; `exited` (code,
signal) is the last, told by the fork server.

Commands: `go`, `stop`. A member whose `built` lists "autotune" among its commands rests until it is
told to `autotune`, which is its first step, and then until `warm`. One that lists "hold" can be
told so after `go`: it finishes what is under way, says `held`, and blocks until `resume`.
"""

import json
import os
import select
import time
import traceback
from contextlib import suppress


def to_line(event: str, member: int, **fields) -> bytes:
    """One event, with `t` (CLOCK_MONOTONIC, ns; `fields` may bring its own)."""
    record = {"event": event, "member": member, "t": time.monotonic_ns(), **fields}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Channel:
    """Events to the conductor and commands from it, over inherited descriptors or a socket's.

    `commands` is the one to wait on together with others; `poll` reads it.
    """

    def __init__(self, member: int, events_fd: int, commands_fd: int):
        self.member, self._events, self.commands = member, events_fd, commands_fd
        self._buffer, self._ended = b"", False

    def emit(self, event: str, **fields) -> None:
        """Send one event. Raises ConnectionError without a conductor."""
        line = to_line(event, self.member, **fields)
        while line:  # one write; a second only for a line longer than the pipe's free space
            line = line[os.write(self._events, line) :]

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether there is a command, or its end, within `seconds`; None: wait until so."""
        return self._has_one or bool(select.select([self.commands], [], [], seconds)[0])

    @property
    def _has_one(self) -> bool:
        """Whether a command, or the end, was read already."""
        return b"\n" in self._buffer or self._ended

    def failed(self, error: BaseException) -> int:
        """Send what was raised: the first line of its message (what CUDA's errors add is advice),
        and what it carries: the phase, whether memory did not suffice, and whether another try
        would go wrong in the same way. Gives the exit code that goes with it.
        """
        out_of_memory = getattr(error, "out_of_memory", isinstance(error, MemoryError))
        said = {
            "class": type(error).__name__,
            "message": " ".join(str(error).strip().partition("\n")[0].split())[:500],
            "phase": getattr(error, "phase", "build"),
            "out_of_memory": out_of_memory,
            "unsupported": getattr(error, "unsupported", False),
        }
        with suppress(ConnectionError):  # no conductor: the log still gets it
            self.emit("error", **said)
        with suppress(OSError):  # nor may a full disk hide what happened
            traceback.print_exception(error)
        return 3 if out_of_memory else 1

    def poll(self, seconds: float | None = 0.0) -> str | None:
        """A command, or None if none comes within `seconds`. End of file reads as "stop"."""
        if not self._has_one and self.ready(seconds):
            data = b""
            with suppress(ConnectionResetError):
                data = os.read(self.commands, 4096)
            self._buffer += data
            self._ended = not data
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return line.decode()
        return "stop" if self._ended else None

    def wait(self) -> str:
        """Block until there is a command; end of file reads as "stop"."""
        while (command := self.poll(None)) is None:
            pass
        return command
