"""The kinds of job, by the names that the catalogue uses."""

from importlib import import_module

KINDS = {  # not imported here, because scripts need no torch
    "vision": "models.jobs.vision:VisionJob",
    "dlrm": "models.jobs.dlrm:DlrmJob",
    "lm": "models.jobs.lm:LmJob",
    "asr": "models.jobs.asr:AsrJob",
    "serve": "models.jobs.serve:ServingMember",
    "command": "models.jobs.command:ScriptMember",
    "loader": "models.shared:LoaderMember",
}


def class_of_kind(kind: str) -> type:
    """The class for a kind of job: a `Job` of models/jobs/base.py, or a member of its own.

    kind: a name, or "module:Class" for a user's `Job`. Raises ImportError or AttributeError where
    that class does not exist.
    """
    module, _, name = KINDS.get(kind, kind).partition(":")
    return getattr(import_module(module), name)
