"""The jobs of a session as Snakemake sees them: their files, order, memory and time."""

import math
import shutil
from itertools import accumulate
from pathlib import Path

from workflow.collocation import provenance
from workflow.collocation.cell.task import Task
from workflow.collocation.study.session import Session

FOLDER = "jobs"  # of a study, with the files of this run's jobs
TOLD = {"gpu", "mig_mode", "trainer", "timeout", "telemetry", "trace"}  # of config, to jobs
MEMORY_MB, MEMBER_MB = 4096, 4096  # of main memory: a conductor with its server; a member
RUNTIME_MIN, RUNTIME = 30, 3  # minutes, and times what a job will take


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
                spec=job.cell.spec,
                place=f"{place}/{len(jobs)}",
                left_s=round(total - until),
                estimate_s=round(job.estimate_s),
                **common,
            )
            task.write(Path(self.file(job.path)))
