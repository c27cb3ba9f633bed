"""Runs a module like `python -m`, but prints no traceback for Ctrl-C and failures of the system.

Usage: python -m workflow.collocation.plan.terminal MODULE ARGUMENTS
"""

import os
import runpy
import signal
import sys

from workflow.collocation.process_lifetime import end_with_starter

INTERRUPTED = "interrupted; the same command carries on"


def quiet_end() -> None:
    """Print one line instead of a traceback when Ctrl-C or an OSError ends this process."""
    sys.excepthook = _print_error


def _print_error(kind, error, trace) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
    elif issubclass(kind, OSError):
        print(error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def main() -> None:
    """Run the module that the first argument names."""
    end_with_starter()
    quiet_end()
    del sys.argv[0]
    try:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            if sys.stdout is not None:  # it is None if it was closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would print a traceback
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
