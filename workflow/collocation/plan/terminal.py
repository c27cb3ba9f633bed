"""Keeps Snakemake quiet while all is well, and makes each error one line.

`snakemake --quiet host` shows everything that Snakemake says. `python -m
workflow.collocation.plan.terminal MODULE ARGUMENTS` runs a module as `python -m` does; Ctrl-C, a
closed pipe and a file that cannot be used end it without a traceback.
"""

import logging
import os
import re
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path

INTERRUPTED = "interrupted; the same command carries on"
ENDED = re.compile(r"CalledProcessError.*(?:exit status (\d+)|died with <Signals\.(\w+))", re.S)
LAST_WORD = re.compile(r"(\S+)' (?:died|returned)")  # of a command: its log, or the file of its job
REFUSED = re.compile(r"ConfigError: (.+)")  # raised by an input function of a rule
OURS = 126  # commands that end with a status up to this one have said why
# How Snakemake repeats at the end that a job has failed.
ECHOES = ("Exiting because a job", "At least one job did not complete", "WorkflowError:\nAt least")


class Quiet(logging.Filter):
    """Lets through the messages of rules, and errors that no command of ours has told."""

    def filter(self, record: logging.LogRecord) -> bool:
        said, event = record.getMessage(), getattr(record, "event", None)
        if event == "job_info" and getattr(record, "rule_msg", None):
            record.event, record.msg = None, record.rule_msg
            return True
        if event == "group_error":  # a replicate on a cluster
            logs = ", ".join(map(str, record.aux_logs))
            why = "the scheduler refused it: is it the partition, account, minutes or memory?"
            why = f"ended early; log: {logs}" if logs else why
            record.event, record.msg = None, f"{record.groupid}: {why}"
            return True
        if getattr(record, "exception", "") == "RuleException" and (found := ENDED.search(said)):
            status, name = found.groups()
            known = name in ("SIGINT", "SIGTERM") or status in ("130", "143")
            record.msg = f"ended by {name or f'exit status {status}'}: {LAST_WORD.search(said)[1]}"
            return not known and not (status and int(status) <= OURS)
        return record.levelno >= logging.WARNING and not said.startswith(ECHOES)


def _one_line(record: logging.LogRecord) -> bool:
    """Of a target that the session refuses Snakemake would say ten lines."""
    refused = getattr(record, "exception", "") == "InputFunctionException"
    if refused and (found := REFUSED.search(record.getMessage())):
        record.msg = found[1]
    return True


def hush(workflow) -> None:
    """Keep Snakemake quiet, unless it was asked to speak: `quiet` is then not the profile's. What
    a dry run prints is Snakemake's own.
    """
    from snakemake.logging import logger
    from snakemake.settings.enums import Quietness

    sys.excepthook = _end
    settings = workflow.output_settings
    quiet = Quietness.RULES in (settings.quiet or ()) and not settings.dryrun
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.filters[:0] = [_one_line, Quiet()] if quiet else [_one_line]


def _end(kind, error, trace) -> None:
    """In place of a traceback, one line for what is no mistake in a program."""
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
    elif issubclass(kind, OSError):
        print(error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _have_a_cache() -> None:
    """Snakemake wants a cache in the home folder; if that is read-only, it is beside the rest."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    if not os.access(cache, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(".snakemake", "cache").resolve())


def main() -> None:
    """Run the module that the first argument names."""
    sys.excepthook = _end
    del sys.argv[0]
    if sys.argv[0] == "snakemake":
        _have_a_cache()
    try:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            if sys.stdout is not None:  # it may be closed
                sys.stdout.flush()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing left to end
        sys.exit(130)
    except BrokenPipeError:  # as of `make plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
