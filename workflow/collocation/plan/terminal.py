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


def _interrupt(number, frame) -> None:
    """Stop in order at the first Ctrl-C, at once at the second; the cells end with this process."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    raise KeyboardInterrupt


def main() -> None:
    """Run the module that the first argument names."""
    end_with_starter()
    quiet_end()
    del sys.argv[0]
    if sys.argv[0] == "snakemake":  # at a second Ctrl-C it prints tracebacks of its threads
        signal.signal(signal.SIGINT, _interrupt)
    try:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            # Python restores the default on its way out: a second Ctrl-C would look like a failure.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if sys.stdout is not None:  # it is None if it was closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
