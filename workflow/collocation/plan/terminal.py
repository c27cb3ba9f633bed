"""What a person ends leaves no traceback.

`python -m workflow.collocation.plan.terminal MODULE ARGUMENTS` runs a module as `python -m` does.
"""

import os
import runpy
import signal
import sys

from workflow.collocation.process_lifetime import end_with_starter

INTERRUPTED = "interrupted; the same command carries on"


def quiet_end() -> None:
    """Have an interruption and a failure of the system end in one line, not in a traceback."""
    sys.excepthook = _end


def _end(kind, error, trace) -> None:
    """In place of a traceback, one line for what is no mistake in a program."""
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
            if sys.stdout is not None:  # it may be closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing left to end
        sys.exit(130)
    except BrokenPipeError:  # of a pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
