"""Keeps Snakemake quiet while all is well; what a person ends leaves no traceback.

`snakemake --quiet host` shows everything that Snakemake says. `python -m
workflow.collocation.plan.terminal MODULE ARGUMENTS` runs a module as `python -m` does.
"""

import logging
import os
import re
import runpy
import signal
import sys

from workflow.collocation.process_lifetime import end_with_starter

INTERRUPTED = "interrupted; the same command carries on"
# Snakemake on a job that has failed: our commands, which end with these, have said why.
TOLD = re.compile(
    r"CalledProcessError.*(exit status (1|2|130|143)\b|Signals\.SIG(INT|TERM))"
    r"|^(Exiting because a job|At least one job did not|WorkflowError:\nAt least one job did not)",
    re.S,
)


def _matters(record: logging.LogRecord) -> bool:
    if getattr(record, "event", None) == "group_error":  # a replicate on a cluster
        logs = ", ".join(map(str, record.aux_logs)) or "none: the scheduler refused it"
        record.event, record.msg = None, f"{record.groupid}: ended early; log: {logs}"
        return True
    said = record.getMessage()
    if record.levelno < logging.WARNING:
        return said.startswith("Nothing to be done")
    return not TOLD.search(said)


def hush(workflow) -> None:
    """Keep Snakemake quiet, unless it was asked to speak: `quiet` is then not the profile's. What
    a dry run prints is Snakemake's own.
    """
    from snakemake.logging import logger
    from snakemake.settings.enums import Quietness

    sys.excepthook = _end
    # On a second Ctrl-C, which Snakemake tells when its handlers are gone.
    logger.addFilter(lambda record: "\nKeyboardInterrupt" not in record.getMessage())
    settings = workflow.output_settings
    if Quietness.RULES in (settings.quiet or ()) and not settings.dryrun:
        for handler in logger.handlers:
            if handler.name == "DefaultStreamHandler":
                handler.filters.insert(0, _matters)


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
    sys.excepthook = _end
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
