"""The jobs of a session as Snakemake sees them: their files, order, memory and time."""

import math
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow.collocation import provenance
from workflow.collocation.cell.task import Task
from workflow.collocation.digest import code
from workflow.collocation.study import pending
from workflow.collocation.study.session import Session

FOLDER = "jobs"  # of a study, with the files of this run's jobs
TOLD = {"gpu", "mig_mode", "trainer", "timeout", "telemetry", "trace"}  # of config, to jobs
MEMORY_MB, MEMBER_MB = 4096, 4096  # of main memory: a conductor with its server; a member
RUNTIME_MIN, RUNTIME = 30, 3  # minutes, and times what a job will take


@dataclass
class Jobs:
    """Asked by a job's path, which is its attempt's folder below results/<study>/cells."""

    session: Session

    @cached_property
    def _by_path(self) -> dict[str, tuple[pending.Job, int, float]]:
        """A job's path → the job, its place from 1, and the seconds that those after it take."""
        found, left = {}, sum(job.estimate_s for job in self.session.jobs)
        for place, job in enumerate(self.session.jobs, 1):
            left -= job.estimate_s
            found[job.path] = job, place, left
        return found

    def priority(self, path: str) -> int:
        """Snakemake runs high priorities first."""
        job, _, _ = self._by_path[path]
        return len(self.session.cells) - job.rank

    def file(self, path: str) -> str:
        """The file that says all that a job needs: what workflow.collocation.cell.run gets."""
        return (self.session.folder / FOLDER / f"{path}.json").as_posix()

    def task(self, path: str, preloaded: str | None = None) -> Task:
        """What that file says; preloaded: the name of the server that has imported the trainer."""
        job, place, left = self._by_path[path]
        return Task(
            study=self.session.name,
            cell=job.cell.id,
            attempt=job.attempt,
            output=self.session.cells_folder / path / "run.json",
            spec=job.cell.spec.to_json(),
            needs_gpu=self.session.device is not None,
            data=self.session.datasets.ready_files(),
            session=self.session.id,
            machine=provenance.machine_alias(),
            code=self._code,
            preloaded=preloaded,
            place=f"{place}/{len(self.session.jobs)}",
            left_s=round(left),
            deadline=self.session.deadline,
            estimate_s=round(job.estimate_s),
            **self.session.config.model_dump(include=TOLD),
        )

    @cached_property
    def _code(self) -> tuple[str, str]:
        return code()

    def memory_mb(self, path: str) -> int:
        """Main memory that a job is to be given."""
        job, _, _ = self._by_path[path]
        return MEMORY_MB + MEMBER_MB * job.cell.n

    def runtime_min(self, path: str) -> int:
        """Minutes after which a job may be ended from outside: it ends itself long before."""
        job, _, _ = self._by_path[path]
        return math.ceil(RUNTIME_MIN + RUNTIME * job.estimate_s / 60)

    def write(self, preloaded: str | None) -> None:
        """A file for each job; those of earlier runs go."""
        shutil.rmtree(self.session.folder / FOLDER, ignore_errors=True)
        for job in self.session.jobs:
            self.task(job.path, preloaded).write(Path(self.file(job.path)))
