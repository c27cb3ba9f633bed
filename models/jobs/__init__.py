"""The kinds of job: vision, dlrm, lm, asr, serve, command, or a class of one's own (base.py);
and the loader that jobs share."""

from importlib import import_module

from models.jobs.asr import AsrJob
from models.jobs.command import Command
from models.jobs.dlrm import DlrmJob
from models.jobs.lm import LmJob
from models.jobs.serve import Serve
from models.jobs.vision import VisionJob
from models.shared import Loader

KINDS = {"vision": VisionJob, "dlrm": DlrmJob, "lm": LmJob, "asr": AsrJob}
KINDS |= {"serve": Serve, "command": Command, "loader": Loader}


def find(kind: str) -> type:
    """The kind of that name, or `module:Class`.

    Raises ImportError or AttributeError for a class that is not there.
    """
    module, colon, name = kind.partition(":")
    return getattr(import_module(module), name) if colon else KINDS[kind]
