"""What Snakemake does not document and this workflow needs: used in this module alone.

Tried with Snakemake 9.27.1.
"""

import logging
import re
import sys
from pathlib import Path

from workflow.collocation.study.errors import ConfigError

# Snakemake on a job that has failed: our commands, which end with these, have said why.
SAID_BY_A_COMMAND = re.compile(
    r"CalledProcessError.*(exit status (1|2|130|143)\b|Signals\.SIG(INT|TERM))"
    r"|^(Exiting because a job|At least one job did not|WorkflowError:\nAt least one job did not)",
    re.S,
)


class Invocation:
    """How Snakemake was called; `workflow` is the object of that name in a Snakefile."""

    def __init__(self, workflow):
        self._workflow = workflow
        self.is_main_process: bool = workflow.is_main_process
        self.runs_locally: bool = workflow.local_exec
        # Executors of clusters are told --jobs; which one it is, nobody knows yet.
        self.on_cluster: bool = workflow.resource_settings.nodes is not None
        self.main_snakefile: str = workflow.main_snakefile

    def refuse_import(self, folder: str) -> None:
        """Raises ConfigError if another workflow reads the Snakefile of this folder."""
        if Path(self.main_snakefile).resolve().parent != Path(folder).resolve():
            raise ConfigError(
                "this workflow is no module of another one: it plans from its own folder of "
                "results; run it by itself, and name its tables as inputs"
            )

    def resource(self, name: str, default: int = 1) -> int:
        """How many there are of a resource in all; `default` where nobody said."""
        return self._workflow.global_resources.setdefault(name, default).value

    def set_resource(self, name: str, number: int) -> None:
        """There are so many of a resource in all, whatever was said."""
        self._workflow.global_resources[name] = number

    def require_one_gpu(self, rule: str) -> None:
        """Raises ConfigError if --set-resources gives a job of the rule another number of GPUs: of
        a fraction Snakemake makes 0.
        """
        settings = self._workflow.resource_settings.overwrite_resources
        given = settings.get(rule, {}).get("gpu")
        if given is not None and given.raw != 1:
            raise ConfigError(f"--set-resources {rule}:gpu={given.raw}: allowed: 1")
        if "--no-hooks" in sys.argv:
            raise ConfigError("--no-hooks is not supported: a hook locks the study's folder")

    def names_of_groups(self) -> dict[str, str]:
        """Group → what --group-components calls it."""
        return self._workflow.parent_groupids

    def hush(self) -> None:
        """Keep Snakemake quiet, unless it was asked to speak: `quiet` is then not the profile's.
        What a dry run prints is Snakemake's own.
        """
        from snakemake.logging import logger  # noqa: PLC0415, rules read this module only to plan
        from snakemake.settings.enums import Quietness  # noqa: PLC0415

        # On a second Ctrl-C, which Snakemake tells when its handlers are gone.
        logger.addFilter(lambda record: "\nKeyboardInterrupt" not in record.getMessage())
        settings = self._workflow.output_settings
        if Quietness.RULES in (settings.quiet or ()) and not settings.dryrun:
            for handler in logger.handlers:
                if handler.name == "DefaultStreamHandler":
                    handler.filters.insert(0, _matters)


def _matters(record: logging.LogRecord) -> bool:
    """Whether a person has to see what Snakemake logs."""
    if getattr(record, "event", None) == "group_error":  # a replicate on a cluster
        logs = ", ".join(map(str, record.aux_logs)) or "none: the scheduler refused it"
        record.event, record.msg = None, f"{record.groupid}: ended early; log: {logs}"
        return True
    message = record.getMessage()
    if record.levelno < logging.WARNING:
        return message.startswith("Nothing to be done")
    return not SAID_BY_A_COMMAND.search(message)
