"""How text reaches a terminal: wrapped between words, never wider than a reader wants it."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WIDEST = 72  # columns
CLEAR = "\r\x1b[K"
HANGING = 2  # columns by which a line's continuation is moved to the right


def width() -> int:
    """Columns of a line: the terminal's, 72 at most."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def wrapped(text: str, columns: int | None = None) -> str:
    """`text` with each line cut between words; what follows a cut is indented a little more.

    A word that is longer than a line, such as a path, stays whole: it can be copied.
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
    """Print an answer."""
    if text:
        print(wrapped(text))


@contextmanager
def live(budget_s: float) -> Iterator[Callable[[str, str], None]]:
    """While something is measured: gives what to call often with what it is and its newest state,
    such as its rate.

    At a terminal that is one line which lives; elsewhere a line for each new thing. budget_s: how
    long all of it takes.
    """
    began, shown, at_terminal = time.monotonic(), "", sys.stderr.isatty()

    def progress(what: str, state: str) -> None:
        nonlocal shown
        if not at_terminal:
            if what != shown:
                print(f"{what} ...", file=sys.stderr)
            shown = what
            return
        left = budget_s - (time.monotonic() - began)
        about = f"about {left:.0f} s left" if left > 0 else "soon done"
        line = f"{about}: {what}{f': {state}' if state else ''}"
        columns = shutil.get_terminal_size().columns - 1
        print(f"{CLEAR}{line[:columns]}", end="", file=sys.stderr, flush=True)

    try:
        yield progress
    finally:
        if at_terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """Print why a command ended: one line, which a terminal sees wrapped."""
    message = "".join(c if c.isprintable() or c == "\n" else "?" for c in message)
    at_terminal = sys.stderr is not None and sys.stderr.isatty()
    print(wrapped(message) if at_terminal else message, file=sys.stderr)
