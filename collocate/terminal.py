"""Output on a terminal: text with broken lines, and the progress of measurements."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable

WIDEST = 72  # columns
CLEAR = "\r\x1b[K"
HANGING = 2  # columns by which a line's continuation is moved to the right


def width() -> int:
    """Columns of a line: the terminal's, 72 at most."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def wrapped(text: str, columns: int | None = None) -> str:
    """Break long lines between words, and indent what follows a break.

    A word that is longer than a line, such as a path, stays whole, so that it can be copied.
    columns: of a line; by default the terminal's.
    """
    columns = columns or width()
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        pieces = textwrap.wrap(
            line.strip(),
            columns,
            initial_indent=indent,
            subsequent_indent=indent + " " * HANGING,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        fits = len(line) <= columns  # columns of a table keep their blanks
        lines += [line.rstrip()] if fits or not pieces else pieces
    return "\n".join(lines)


def show(text: str) -> None:
    """Print text on stdout, with lines broken."""
    if text:
        print(wrapped(text))


class Progress:
    """Shows the progress of measurements on stderr; a context that clears its line.

    Call it often, with the name of what is measured and its newest state, such as its rate. At a
    terminal it rewrites one line; elsewhere it prints a line for each new name. budget_s: how long
    all of it takes, None if that is not known.
    """

    def __init__(self, budget_s: float | None):
        self.set_seconds_left(budget_s)
        self.printed, self.at_terminal = "", sys.stderr.isatty()

    def set_seconds_left(self, seconds: float | None) -> None:
        """Change how long it still takes."""
        self.end_s = None if seconds is None else time.monotonic() + seconds

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.at_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def __call__(self, name: str, state: str) -> None:
        if not self.at_terminal:
            if name != self.printed:
                print(f"{name} ...", file=sys.stderr, flush=True)
            self.printed = name
            return
        line = ": ".join(filter(None, [self._remaining(), name, state]))
        columns = shutil.get_terminal_size().columns - 1
        print(f"{CLEAR}{line[:columns]}", end="", file=sys.stderr, flush=True)

    def with_unit(self, unit: str) -> Callable[[str, str], None]:
        """As this, for states that count samples; unit: what they are called, such as steps."""
        return lambda name, state: self(name, state.replace("samples", unit))

    def _remaining(self) -> str:
        if self.end_s is None:
            return ""
        seconds = self.end_s - time.monotonic()
        if seconds <= 0:
            return "soon done"
        for unit, name in ((3600, "h"), (60, "min")):
            if seconds >= 10 * unit:
                return f"about {seconds / unit:.0f} {name} left"
        return f"about {seconds:.0f} s left"

    def note(self, text: str) -> None:
        """Print a line that stays."""
        clear = CLEAR if self.at_terminal else ""
        print(f"{clear}{wrapped(text)}", file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """Print why a command failed on stderr: one line, which is wrapped at a terminal."""
    message = "".join(c if c.isprintable() or c == "\n" else "?" for c in message)
    at_terminal = sys.stderr is not None and sys.stderr.isatty()
    print(wrapped(message) if at_terminal else message, file=sys.stderr)
