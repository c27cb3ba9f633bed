"""The only module that uses undocumented parts of Snakemake. Tested with Snakemake 9.27.1."""

import logging
import re
import sys
from pathlib import Path

from workflow.collocation.study.errors import ConfigError

# Snakemake's messages on a failed job, which repeat what our own commands have printed.
REPEATED_ERROR = re.compile(
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
        # Only executors of clusters take --jobs; the executor itself is not known yet.
        self.on_cluster: bool = workflow.resource_settings.nodes is not None
        self.main_snakefile: str = workflow.main_snakefile

    def refuse_use_as_module(self, folder: str) -> None:
        """Raises ConfigError if another workflow reads the Snakefile of this folder."""
        if Path(self.main_snakefile).resolve().parent != Path(folder).resolve():
            raise ConfigError(
                "this workflow is no module of another one: it plans from its own folder of "
                "results; run it by itself, and name its tables as inputs"
            )

    def resource(self, name: str, default: int = 1) -> int:
        """The total of a resource; `default` if the command line does not set it."""
        return self._workflow.global_resources.setdefault(name, default).value

    def set_resource(self, name: str, number: int) -> None:
        """Set the total of a resource, whatever the command line says."""
        self._workflow.global_resources[name] = number

    def require_one_gpu(self, rule: str) -> None:
        """Raises ConfigError if --set-resources gives the rule's jobs another number of GPUs."""
        settings = self._workflow.resource_settings.overwrite_resources
        gpus = settings.get(rule, {}).get("gpu")
        if gpus is not None and gpus.raw != 1:
            raise ConfigError(f"--set-resources {rule}:gpu={gpus.raw}: allowed: 1")
        if "--no-hooks" in sys.argv:
            raise ConfigError("--no-hooks is not supported: a hook locks the study's folder")

    def names_of_groups(self) -> dict[str, str]:
        """Group → its name in --group-components."""
        return self._workflow.parent_groupids

    def hush(self) -> None:
        """Hide Snakemake's messages that matter to nobody, unless the user changed `quiet`."""
        from snakemake.logging import logger  # noqa: PLC0415, rules read this module only to plan
        from snakemake.settings.enums import Quietness  # noqa: PLC0415

        # Snakemake logs a second Ctrl-C after it has removed its handlers.
        logger.addFilter(lambda record: "\nKeyboardInterrupt" not in record.getMessage())
        settings = self._workflow.output_settings
        if Quietness.RULES in (settings.quiet or ()) and not settings.dryrun:
            for handler in logger.handlers:
                if handler.name == "DefaultStreamHandler":
                    handler.filters.insert(0, _matters)


def _matters(record: logging.LogRecord) -> bool:
    """Whether a person has to see a message of Snakemake."""
    if getattr(record, "event", None) == "group_error":  # of a replicate on a cluster
        logs = ", ".join(map(str, record.aux_logs)) or "none: the scheduler refused it"
        record.event, record.msg = None, f"{record.groupid}: ended early; log: {logs}"
        return True
    message = record.getMessage()
    if record.levelno < logging.WARNING:
        return message.startswith("Nothing to be done")
    return not REPEATED_ERROR.search(message)
