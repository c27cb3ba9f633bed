"""What the jobs of a session find, and what it writes in its study's folder and sweeps from it.

Jobs find an environment, a file each that says all that they need, and a warm server.
"""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate

import psutil

from workflow.collocation import ROOT, provenance
from workflow.collocation.cell.task import Task
from workflow.collocation.digest import code, code_digest
from workflow.collocation.processes.preloaded import hold, stamp
from workflow.collocation.study.session import Session

TOLD = {"gpu", "mig_mode", "trainer", "timeout", "telemetry", "trace"}  # of config, to jobs
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
    return absent(TRAINING)


def absent(packages: Iterable[str]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


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


def write_plan(session: Session) -> None:
    """plan.json, runs.txt: what analysis may expect, and where it is."""
    session.folder.mkdir(parents=True, exist_ok=True)
    (session.folder / "plan.json").write_text(session.expected)
    (session.folder / "runs.txt").write_text("".join(f"{path}\n" for path in session.run_files()))


def write(session: Session, preloaded: str | None) -> None:
    """A file for each job; those of earlier runs go.

    preloaded: the name of the server that has imported the trainer.
    """
    shutil.rmtree(session.folder / "jobs", ignore_errors=True)
    common = {
        "study": session.name,
        "needs_gpu": session.device is not None,
        "data": session.datasets.ready_files(),
        "session": session.id,
        "machine": provenance.machine_alias(),
        "code": code(),
        "preloaded": preloaded,
        "deadline": session.deadline,
        **session.config.model_dump(include=TOLD),
    }
    *spent, total = accumulate((job.estimate_s for job in session.jobs), initial=0)
    for place, (job, before) in enumerate(zip(session.jobs, spent, strict=True), 1):
        task = Task(
            cell=job.cell.id,
            attempt=job.attempt,
            output=session.cells_folder / job.path / "run.json",
            spec=job.cell.spec,
            place=f"{place}/{len(session.jobs)}",
            left_s=round(total - before - job.estimate_s),
            estimate_s=round(job.estimate_s),
            **common,
        )
        task.write(session.folder / "jobs" / f"{job.path}.json")


def sweep_postponed(session: Session) -> None:
    """Remove the markers of cells that the budget left for later: nothing was measured.

    A study that lacks them is not complete.
    """
    written = [path for path in session.coming if path.exists()]
    swept = [p for p in written if json.loads(p.read_text())["status"] == "postponed"]
    for path in swept:
        path.unlink()
    if swept or session.later:
        (session.folder / "complete").unlink(missing_ok=True)
