"""The member's side of the event protocol: JSON lines out, commands in, a line and a pipe each."""

import ctypes
import json
import os
import select
import signal
import time

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent` (a pid) ends; die now if it has.

    Forked children do not inherit the request: each process calls this itself.
    Raises OSError when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class Channel:
    """Events to the conductor and commands from it, over two inherited file descriptors."""

    def __init__(self, member: int, events_fd: int, commands_fd: int):
        self.member = member
        self._events = events_fd
        self._commands = commands_fd
        self._buffer = b""
        self._ended = False
        self._readable = select.poll()
        self._readable.register(commands_fd, select.POLLIN)
        os.set_blocking(commands_fd, False)

    def emit(self, event: str, **fields) -> None:
        """Send one event, with `member` and `t` (CLOCK_MONOTONIC, ns; `fields` may bring its own).

        Raises TypeError for a field that JSON cannot hold, BrokenPipeError without a conductor.
        """
        record = {"event": event, "member": self.member, "t": time.monotonic_ns(), **fields}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        while line:  # one write; a second only for a line longer than the pipe's free space
            line = line[os.write(self._events, line) :]

    @property
    def commands(self) -> int:
        """The descriptor to wait on together with others; `poll` reads it."""
        return self._commands

    def poll(self) -> str | None:
        """A waiting command or None; never blocks. End of file on the pipe reads as "stop"."""
        if b"\n" not in self._buffer and not self._ended:
            try:
                data = os.read(self._commands, 4096)
            except BlockingIOError:
                return None
            self._buffer += data
            self._ended = not data
        line, newline, rest = self._buffer.partition(b"\n")
        if newline:
            self._buffer = rest
            return line.decode()
        return "stop" if self._ended else None

    def wait(self) -> str:
        """Block until there is a command; end of file reads as "stop"."""
        while (command := self.poll()) is None:
            self._readable.poll()
        return command
