"""What a person sees of a run: what our commands say, and of Snakemake's words only what helps.

`snakemake --quiet host` shows all of them. `python -m workflow.collocation.plan.terminal MODULE
ARGUMENTS` runs a module as `python -m` does, and ends at Ctrl-C without a traceback.
"""

import logging
import os
import re
import runpy
import sys

INTERRUPTED = "interrupted; the same command carries on"
# What Snakemake says of itself while all is well: how it begins, and kinds of events.
CHATTER = (
    *("Config file ", "Assuming unrestricted", "Building DAG", "Using shell", "Select jobs to"),
    *("Touching output", "Removing output files of failed", "Shutting down", "Terminating "),
    *("Complete log", "Elapsed time"),
)
EVENTS = {"run_info", "resources_info", "job_started", "job_finished", "progress"}
# What it says in the end of a job that failed: onerror's line, and the job's own, have said it.
ECHOES = ("Exiting because a job", "At least one job did not complete", "WorkflowError:\nAt least")
ENDED = re.compile(r"CalledProcessError.*(?:exit status (\d+)|died with <Signals\.(\w+))", re.S)
REFUSED = re.compile(r"ConfigError: (.+)")  # by what a rule asks of the session
OURS = 126  # exit statuses up to this one are our commands', which said why


class Hush(logging.Filter):
    """Lets through what Snakemake has to say of an error that no command of ours has said."""

    def __init__(self):
        super().__init__()
        self._how: dict[int, str] = {}  # thread → how its job was ended
        self._over = False  # whether the user ended it all

    def filter(self, record: logging.LogRecord) -> bool:
        said, event = record.getMessage(), getattr(record, "event", None)
        if event == "job_info" and record.rule_name == "merge":
            record.event, record.msg = None, "merging, estimating, drawing"
            return True
        if record.levelno < logging.WARNING:
            self._over |= said.startswith("Terminating ")
            return event not in EVENTS and not said.startswith(CHATTER)
        if getattr(record, "exception", "") == "RuleException" and (found := ENDED.search(said)):
            status, number = found.groups()
            known = number in ("SIGINT", "SIGTERM") or (status and int(status) <= OURS)
            self._over |= status in ("130", "143")
            how = number or f"exit status {status}"
            self._how[record.thread] = "" if known else how
            return False
        if event == "job_error":
            how = self._how.pop(record.thread, "")
            record.event, record.msg = None, f"{record.rule_name}: ended by {how}"
            if log := ", ".join(record.log or ()):
                record.msg += f"; log: {log}"
            return bool(how) and not self._over
        if event == "group_error":  # a block on a cluster; the executor's own words are lost
            logs = ", ".join(map(str, record.aux_logs))
            why = "the scheduler refused it: is it the partition, account, minutes or memory?"
            why = f"ended early; log: {logs}" if logs else why
            record.event, record.msg = None, f"{record.groupid}: {why}"
            return not self._over
        return not said.startswith(ECHOES)


def _one_line(record: logging.LogRecord) -> bool:
    """Of a target that the session refuses, Snakemake has ten lines and the session one."""
    refused = getattr(record, "exception", "") == "InputFunctionException"
    if refused and (found := REFUSED.search(record.getMessage())):
        record.msg = found[1]
    return True


def hush(workflow) -> None:
    """Have Snakemake say no more than what helps, unless it was asked to: its `quiet` is then
    another than the profile's. A dry run is Snakemake's own.
    """
    from snakemake.logging import logger
    from snakemake.settings.enums import Quietness

    sys.excepthook = _end
    settings = workflow.output_settings
    quiet = Quietness.RULES in (settings.quiet or ()) and not settings.dryrun
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.filters[:0] = [_one_line, Hush()] if quiet else [_one_line]


def _end(kind, error, trace) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def main() -> None:
    del sys.argv[0]
    try:
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            if sys.stdout is not None:  # it may be closed
                sys.stdout.flush()
    except KeyboardInterrupt:  # make, or Snakemake, says that it was one
        sys.exit(130)
    except BrokenPipeError:  # who read it has gone, as of `make plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
