"""`python -m tests.terminated ...`: Snakemake, told to end while its scheduler holds its lock."""

import os
import signal

from snakemake import cli
from snakemake.scheduling.job_scheduler import JobScheduler

finish_jobs = JobScheduler._finish_jobs


def told_to_end(scheduler: JobScheduler) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    finish_jobs(scheduler)


JobScheduler._finish_jobs = told_to_end
cli.main()
