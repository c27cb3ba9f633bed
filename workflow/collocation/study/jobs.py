"""The jobs of a session as Snakemake sees them, and what they need: files, packages, a server."""

import importlib.util
import math
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path

import psutil

from workflow.collocation import ROOT, provenance
from workflow.collocation.cell.task import Task
from workflow.collocation.digest import code, code_digest
from workflow.collocation.processes import zygote
from workflow.collocation.processes.server import server_environment
from workflow.collocation.study.session import Session

FOLDER = "jobs"  # of a study, with the files of this run's jobs
TOLD = {"gpu", "mig_mode", "trainer", "timeout", "telemetry", "trace"}  # of config, to jobs
MEMORY_MB, MEMBER_MB = 4096, 4096  # of main memory: a conductor with its server; a member
RUNTIME_MIN, RUNTIME = 30, 3  # minutes, and times what a job will take
TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL")


class Jobs:
    """Asked by a job's path, which is its attempt's folder below results/<study>/cells."""

    def __init__(self, session: Session):
        self.session = session
        self._jobs = {job.path: job for job in session.jobs}

    def priority(self, path: str) -> int:
        """Snakemake runs high priorities first."""
        return len(self.session.cells) - self._jobs[path].rank

    def memory_mb(self, path: str) -> int:
        """Main memory that a job is to be given."""
        return MEMORY_MB + MEMBER_MB * self._jobs[path].cell.n

    def runtime_min(self, path: str) -> int:
        """Minutes after which a job may be ended from outside: it ends itself long before."""
        return math.ceil(RUNTIME_MIN + RUNTIME * self._jobs[path].estimate_s / 60)

    def file(self, path: str) -> str:
        """The file that says all that a job needs: what workflow.collocation.cell.run gets."""
        return (self.session.folder / FOLDER / f"{path}.json").as_posix()

    def write(self, preloaded: str | None) -> None:
        """A file for each job; those of earlier runs go.

        preloaded: the name of the server that has imported the trainer.
        """
        session, jobs = self.session, self.session.jobs
        shutil.rmtree(session.folder / FOLDER, ignore_errors=True)
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
        spent = accumulate(job.estimate_s for job in jobs)
        total = sum(job.estimate_s for job in jobs)
        for place, (job, until) in enumerate(zip(jobs, spent, strict=True), 1):
            task = Task(
                cell=job.cell.id,
                attempt=job.attempt,
                output=session.cells_folder / job.path / "run.json",
                spec=job.cell.spec.to_json(),
                place=f"{place}/{len(jobs)}",
                left_s=round(total - until),
                estimate_s=round(job.estimate_s),
                **common,
            )
            task.write(Path(self.file(job.path)))


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


def preloaded(session: Session) -> AbstractContextManager[zygote.Zygote | None]:
    """One import of the trainer for all jobs, where more than one will train."""
    training = [job for job in session.jobs if session.refusal(job.cell) is None]
    if len(training) < 2:
        return nullcontext()
    return zygote.hold(
        session.config.trainer,
        zygote.stamp({"digest": code_digest(), "versions": provenance.versions(None)}),
        server_environment(threads=1),  # members set their own number
        session.folder / "log" / "zygote.log",
    )


def holder(session: Session) -> dict:
    """What a lock says of this invocation."""
    return {"pid": os.getpid(), "user": psutil.Process().username(), "study": session.name}
