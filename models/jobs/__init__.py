"""The kinds of job, by the names that the catalogue uses."""

from importlib import import_module

from models.jobs.asr import AsrJob
from models.jobs.command import ScriptMember
from models.jobs.dlrm import DlrmJob
from models.jobs.lm import LmJob
from models.jobs.serve import ServingMember
from models.jobs.vision import VisionJob
from models.shared import LoaderMember

KINDS = {
    "vision": VisionJob,
    "dlrm": DlrmJob,
    "lm": LmJob,
    "asr": AsrJob,
    "serve": ServingMember,
    "command": ScriptMember,
    "loader": LoaderMember,
}


def class_of_kind(kind: str) -> type:
    """The class for a kind of job: a `Job` of models/jobs/base.py, or a member of its own.

    kind: a name, or "module:Class" for a user's `Job`. Raises ImportError or AttributeError where
    that class does not exist.
    """
    module, colon, name = kind.partition(":")
    return getattr(import_module(module), name) if colon else KINDS[kind]
