"""Messages between a member process and its conductor: JSON events out, commands in, one a line.

Events, in this order: `forked` (pid), `built` (parameters, device, seconds), `autotuned` (seconds),
`warm` (steps; of a script `pause_s`, its longest pause), `started`, any number of `progress`
(steps, samples), `held` (steps) and `saved`, `done` where its work is a number of steps, `stopped`
(steps, peaks of memory; of a script `starts_ns`, when each of its runs was started, and
`optimizer`, the class of the one that counts; steps.npz is written).
`restarted` (script) may come at any time: a script that had ended runs again, with this PID.
`error` (class, message, phase, out_of_memory, unsupported) may come at any time. `exited` (code,
signal) is the last; the fork server sends it.

Commands: `go`, `stop`. A member whose `built` lists "autotune" among its commands waits for
`autotune` before its first step, and then for `warm`. A member that lists "hold" can get `hold`
after `go`: it finishes the work under way, sends `held`, and waits for `resume`. After `go`, such a
member also takes `save`, held or not: it writes the steps so far to steps.npz, and sends `saved`.
"""

import json
import os
import select
import time
import traceback
from contextlib import suppress


def event_line(event: str, member: int, **fields) -> bytes:
    """Encode one event as a line; `t` (CLOCK_MONOTONIC, ns) is now unless `fields` have it."""
    record = {"event": event, "member": member, "t": time.monotonic_ns(), **fields}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Channel:
    """A member's connection to its conductor: sends events, receives commands.

    member: its index in the set. events_fd, commands_fd: descriptors of pipes, or of one socket.
    `commands` is the descriptor to select on; `poll` reads it.
    """

    def __init__(self, member: int, events_fd: int, commands_fd: int):
        self.member, self._events, self.commands = member, events_fd, commands_fd
        self._buffer, self._at_end = b"", False

    def emit(self, event: str, **fields) -> None:
        """Send one event. Raises ConnectionError where the conductor has ended."""
        line = event_line(event, self.member, **fields)
        while line:  # A second write is needed only for a line longer than the pipe's free space.
            line = line[os.write(self._events, line) :]

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Wait up to `seconds` (None: for ever) for a command or the end of the connection."""
        return self._is_buffered or bool(select.select([self.commands], [], [], seconds)[0])

    @property
    def _is_buffered(self) -> bool:
        return b"\n" in self._buffer or self._at_end

    def failed(self, error: BaseException) -> int:
        """Send an exception as an `error` event; returns the exit code that goes with it.

        Of the message only the first line is sent, because CUDA appends advice. `phase`,
        `out_of_memory` and `unsupported` are attributes of the exception, if it has them.
        """
        out_of_memory = getattr(error, "out_of_memory", isinstance(error, MemoryError))
        fields = {
            "class": type(error).__name__,
            "message": " ".join(str(error).strip().partition("\n")[0].split())[:500],
            "phase": getattr(error, "phase", "build"),
            "out_of_memory": out_of_memory,
            "unsupported": getattr(error, "unsupported", False),
        }
        with suppress(ConnectionError):  # Without a conductor, the log still gets it.
            self.emit("error", **fields)
        with suppress(OSError):  # A full disk must not hide the error.
            traceback.print_exception(error)
        return 3 if out_of_memory else 1

    def poll(self, seconds: float | None = 0.0) -> str | None:
        """A command, or None if none comes within `seconds`. End of file reads as "stop"."""
        if not self._is_buffered and self.ready(seconds):
            chunk = b""
            with suppress(ConnectionResetError):
                chunk = os.read(self.commands, 4096)
            self._buffer += chunk
            self._at_end = not chunk
        if b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            return line.decode()
        return "stop" if self._at_end else None

    def wait(self) -> str:
        """Block until there is a command; end of file reads as "stop"."""
        while (command := self.poll(None)) is None:
            pass
        return command
