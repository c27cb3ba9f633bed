"""What the jobs of a session need beside their files: an environment, packages, a warm server."""

import importlib.util
import os
import sys
from contextlib import AbstractContextManager, nullcontext

import psutil

from workflow.collocation import ROOT, provenance
from workflow.collocation.digest import code_digest
from workflow.collocation.processes.preloaded import hold, stamp
from workflow.collocation.study.session import Session

TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL")


def set_environment() -> None:
    """What jobs inherit: this Python, this repository to import from."""
    path = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    os.environ["PYTHONSAFEPATH"] = "1"  # not from the working directory: it may be a clone
    os.environ["PYTHON"] = sys.executable


def missing_packages(session: Session) -> list[str]:
    """What the jobs' training processes would fail to import."""
    if not session.jobs or session.config.trainer != "models.train":
        return []
    return [name for name in TRAINING if importlib.util.find_spec(name) is None]


def preloaded(session: Session) -> AbstractContextManager[str | None]:
    """The name of a server with one import of the trainer, where more than one job will train."""
    training = [job for job in session.jobs if session.refusal(job.cell) is None]
    if len(training) < 2:
        return nullcontext()
    trainer = session.config.trainer
    known = {"digest": code_digest(), "versions": provenance.versions(None)}
    return hold(trainer, session.folder / "log" / "preloaded.log", stamp(trainer, known))


def holder(session: Session) -> dict:
    """What a lock says of this invocation."""
    return {"pid": os.getpid(), "user": psutil.Process().username(), "study": session.name}
