"""What somebody else's script prints: read from a terminal of its own, into a log that ends."""

import os
import re
import termios
import time
import tty
from contextlib import suppress

LOG = 10 << 20  # bytes of output that go to the log
LINE = 1 << 14  # bytes of a line that are kept while it has no end
READS = 64  # in one look: who prints without end must not keep us from commands
SIZE = (50, 200)  # rows and columns: a narrow terminal has progress bars cut
# Progress bars begin a line anew by a carriage return, or by moving the cursor.
END = re.compile(rb"[\r\n]|\x1b\[[\d;]*[A-Hf]")
CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\].*?(?:\x07|\x1b\\)|[@-Z\\^_=>])")  # as of colours


class ScriptOutput:
    """A script's stdout and stderr, which go on to our own stdout (the log).

    They are a terminal, without which C and Python hold lines back in blocks. `theirs` is the
    script's end, and `source` ours to wait on; None once the script has closed its own.
    """

    def __init__(self):
        self.source, self.theirs = os.openpty()
        tty.setraw(self.theirs)
        termios.tcsetwinsize(self.theirs, SIZE)
        os.set_blocking(self.source, False)
        self.began_s: float | None = None  # when it first printed, on the monotonic clock
        self.rest, self.tail, self.size = b"", b"", 0

    def read(self) -> list[str]:
        """The lines that have ended since the last call, without codes of colour."""
        lines: list[bytes] = []
        for _ in range(READS):
            try:
                data = os.read(self.source, 1 << 16) if self.source is not None else b""
            except BlockingIOError:
                break
            except OSError:  # nobody has its other end open
                data = b""
            if not data:
                self.source = None
                break
            self.began_s = self.began_s or time.monotonic()
            with suppress(OSError):  # a full disk does not end a measurement
                os.write(1, data[: max(LOG - self.size, 0)])
            self.size += len(data)
            self.tail = (self.tail + data)[-LINE:]
            first, *others = END.split(data)
            *ended, self.rest = [self.rest + first, *others]
            self.rest = self.rest[-LINE:]
            lines += ended
        return [_plain(line) for line in lines if line]

    def newest(self, count: int) -> list[str]:
        """The last lines that are not empty, oldest first."""
        lines = (_plain(line).strip() for line in END.split(self.tail))
        return [line for line in lines if line][-count:]


def _plain(line: bytes) -> str:
    return CODE.sub("", line.decode(errors="replace"))
