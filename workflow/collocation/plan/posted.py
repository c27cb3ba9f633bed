"""What a job of a cluster, which reads the Snakefile again, knows of the session it is from."""

from pathlib import Path

from workflow.collocation.plan import pending
from workflow.collocation.plan.session import Session, find_file
from workflow.collocation.run.task import Task
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.load import load_config, load_study, load_workloads


def open_posted(values: dict) -> Session:
    """For a job of a cluster, which reads the Snakefile again: it plans nothing, and knows of a
    cell what the file of its job says. Raises ConfigError.
    """
    config = load_config(values)
    workloads = load_workloads(find_file(config.workloads), config.modules)
    study = load_study(find_file(config.studies), config.study, workloads)
    session = Session(config, config.study, "as asked for", study, [], [], {}, remote=True)
    session.job_at = _Posted(session.folder / "jobs")
    return session


class _Posted(dict):
    """Jobs by their attempt's folder, read from the files in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __contains__(self, path: str) -> bool:
        return (self.folder / f"{path}.json").exists()

    def __missing__(self, path: str) -> pending.Job:
        task = Task.read(self.folder / f"{path}.json")
        scenario, arm, method, replicate = task.cell.split("/")
        cell = Cell(scenario, arm, method, int(replicate[1:]), task.spec)
        rank = int(task.place.partition("/")[0])
        self[path] = pending.Job(cell, task.attempt, "posted", rank, task.estimate_s)
        return self[path]
