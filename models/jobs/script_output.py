"""The output of a user's script: read from a terminal, and copied into a log of limited size."""

import os
import re
import termios
import time
import tty
from contextlib import suppress

MAX_LOG = 10 << 20  # bytes of output that go to the log
MAX_LINE = 1 << 14  # bytes that are buffered of a line without an end
MAX_READS = 64  # in one call: a script that prints without end must not keep us from commands
TERMINAL_SIZE = (50, 200)  # rows and columns: in a narrow terminal, progress bars are cut
# Progress bars begin a line again by a carriage return, or by moving the cursor.
LINE_END = re.compile(rb"[\r\n]|\x1b\[[\d;]*[A-Hf]")
# Terminal codes, such as those of colours.
CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\)|[@-Z\\^_=>])")


class ScriptOutput:
    """A script's stdout and stderr, which are copied to our own stdout (the log).

    They are a terminal, because C and Python otherwise hold lines back in blocks. `script_end` and
    `our_end` are its descriptors; both stay open, for a script may be started again.
    """

    def __init__(self):
        self.our_end, self.script_end = os.openpty()
        tty.setraw(self.script_end)
        termios.tcsetwinsize(self.script_end, TERMINAL_SIZE)
        os.set_blocking(self.our_end, False)
        self.began_s: float | None = None  # monotonic time of the first output
        self.partial_line, self.tail, self.size = b"", b"", 0

    def read_lines(self) -> list[str]:
        """The lines that have ended since the last call, without terminal codes."""
        lines: list[bytes] = []
        for _ in range(MAX_READS):
            try:
                chunk = os.read(self.our_end, 1 << 16)
            except BlockingIOError:
                break
            self.began_s = self.began_s or time.monotonic()
            with suppress(OSError):  # A full disk does not end a measurement.
                os.write(1, chunk[: max(MAX_LOG - self.size, 0)])
            self.size += len(chunk)
            self.tail = (self.tail + chunk)[-MAX_LINE:]
            pieces = LINE_END.split(chunk)
            pieces[0] = self.partial_line + pieces[0]
            self.partial_line = pieces.pop()[-MAX_LINE:]
            lines += pieces
        return [_plain(line) for line in lines if line]

    def newest(self, count: int) -> list[str]:
        """The last lines that are not empty, oldest first."""
        lines = [_plain(line).strip() for line in LINE_END.split(self.tail)]
        return [line for line in lines if line][-count:]


def _plain(line: bytes) -> str:
    return CODE.sub("", line.decode(errors="replace"))
