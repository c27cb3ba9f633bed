"""What a session prepares for its jobs in the study's folder, and removes after them.

Jobs get an environment, a file each with all that they need, and a server with torch imported.
"""

import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.plan.session import Session
from workflow.collocation.record.source_digest import source_file
from workflow.collocation.run.preloaded import running_fork_server
from workflow.collocation.run.task import Task
from workflow.collocation.run.waiting import LATE
from workflow.collocation.study.errors import suggestion
from workflow.collocation.study.layout import PLAN
from workflow.collocation.study.regular_files import read_json
from workflow.collocation.study.workloads import TrainedWorkload

TASK_KEYS = {"gpu", "trainer", "timeout", "telemetry", "wait"}  # keys of config that jobs get
REGISTERED_MODEL = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)  # in timm's files
TRAINING_PACKAGES = ("torch", "torchvision", "timm", "sklearn", "PIL")


def set_environment() -> None:
    """Set the environment variables that jobs inherit: this Python, and this repository."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYTHONSAFEPATH"] = "1"  # the working directory may be another clone
    os.environ["PYTHON"] = sys.executable
    os.environ["COLLOCATION_PARENT"] = str(os.getpid())  # jobs end when this process does


def obstacle(session: Session) -> str:
    """Why the session's jobs cannot begin, a line for each reason; empty if they can."""
    will_train = session.jobs and session.config.trainer == "models.train"
    if will_train and (missing := missing_packages(TRAINING_PACKAGES)):
        return (
            f"{len(session.jobs)} cells to run, but not installed: {', '.join(missing)}; "
            "they are in the extra 'train' of pyproject.toml, and drawing needs none of them"
        )
    if session.is_outdated():
        return "another run has just changed this study; start again"
    return "\n".join(workload_mistakes(session))


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def workload_mistakes(session: Session) -> list[str]:
    """A line for each model, class or script that a workload names and that does not exist.

    Names are looked up in source files, so no code is imported.
    """
    workloads = {}
    for job in session.jobs:
        if session.refusal(job.cell) is None:
            workloads |= {member.workload: member.job for member in job.cell.spec.members}
    lines = []
    for name, workload in workloads.items():
        mistakes = workload.missing
        if session.config.trainer == "models.train" and isinstance(workload, TrainedWorkload):
            mistakes = unknown_names(workload)
        for key, sentence in mistakes.items():
            lines.append(f"{session.config.workloads}: {name}.{key}: {sentence}")
    return lines


def unknown_names(workload: TrainedWorkload) -> dict[str, str]:
    """Key → a sentence on the model or class that neither timm nor the user's file has."""
    for key, code in workload.user_code.items():
        module, _, name = code.partition(":")
        if path := source_file(code):
            words = re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace"))
            if name not in words:
                return {key: f"'{module}' has no '{name}'{suggestion(name, words)}"}
        elif not importlib.util.find_spec(module.partition(".")[0]):
            return {key: f"there is no module '{module}'"}
    if workload.kind == "vision" and ":" not in workload.model:
        name = workload.model.partition(".")[0]  # without the name of pretrained weights
        if name not in _timm_models():
            close = suggestion(name, _timm_models())
            return {"model": f"'{workload.model}' is no model of timm{close}"}
    return {}


@cache
def _timm_models() -> set[str]:
    spec = importlib.util.find_spec("timm")
    models: set[str] = set()
    for path in Path(spec.origin).with_name("models").glob("*.py") if spec else ():
        models.update(REGISTERED_MODEL.findall(path.read_text(encoding="utf-8")))
    return models


def preloaded_server(session: Session) -> AbstractContextManager[str | None]:
    """The name of a server that has imported the trainer, if more than one job will train."""
    training = [job for job in session.jobs if session.refusal(job.cell) is None]
    if len(training) < 2:
        return nullcontext()
    return running_fork_server(session.config.trainer, session.folder / "log" / "preloaded.log")


def lock_holder(session: Session) -> dict:
    """What the lock of a study's folder says of this process."""
    return {"pid": os.getpid(), "user": psutil.Process().username(), "study": session.name}


def write_plan(session: Session) -> None:
    """Write plan.json, and mark a study with pending cells as not complete."""
    session.folder.mkdir(parents=True, exist_ok=True)
    path = session.folder / PLAN
    path.unlink(missing_ok=True)  # it may be a pipe, and writing would wait for a reader
    path.write_text(session.plan_json, encoding="utf-8")
    if session.jobs:
        (session.folder / "complete").unlink(missing_ok=True)


def date_future_files_now(session: Session, inputs: Iterable[str]) -> None:
    """Set times in the future to now: Snakemake removes outputs that are older than their inputs.

    inputs: files that jobs read outside the study's folder. Raises OSError with one line.
    """
    for path in (*map(Path, inputs), *session.folder.rglob("*.*")):
        if path.is_file() and path.stat().st_mtime > time.time():
            try:
                os.utime(path)
            except PermissionError:
                reason = (
                    "is of the future and cannot be dated now; set the clock, or have it touched"
                )
                raise OSError(f"{path}: {reason}") from None


def write_job_files(session: Session, preloaded: str | None) -> None:
    """Write a file for each job, and the list of records; those of earlier runs are removed.

    preloaded: the name of the server that has imported the trainer.
    """
    folder = session.folder / "jobs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    records = "".join(f"{path}\n" for path in (*session.measured_records, *session.planned_records))
    (folder / "records.txt").write_text(records, encoding="utf-8")
    common = {
        "study": session.name,
        "needs_gpu": session.on_gpu if session.remote else session.device is not None,
        "data": session.datasets.ready_files(),
        "session": session.id,
        "preloaded": preloaded,
        "deadline": session.deadline,
        **session.config.model_dump(include=TASK_KEYS),
    }
    if session.remote and not session.on_gpu:
        common["gpu"] = "cpu"
    device_seconds: dict[str, float] = {}  # of this job and those after it
    for position, job in reversed([*enumerate(session.jobs, 1)]):
        if len(session.usable_gpus) > 1:  # with one GPU a job finds it by itself
            common["gpu"] = job.device
        remaining_s = job.add_to(device_seconds)
        task = Task(
            cell=job.cell.id,
            attempt=job.attempt,
            output=session.record_path(job.path),
            spec=job.cell.spec,
            place=f"{position}/{len(session.jobs)}",
            left_s=round(remaining_s - job.estimate_s),
            estimate_s=round(job.estimate_s),
            given_up=folder / f"given_up-{session.device_names.index(job.device)}",
            **common,
        )
        task.write(folder / f"{job.path}.json")


def sweep_postponed(session: Session) -> tuple[str, bool]:
    """Remove the records of postponed cells, of which nothing was measured.

    Returns a sentence on the cells that are left, empty if none is, and whether anything but the
    budget kept them from running. A study with cells left is marked as not complete.
    """
    paths = [Path(path) for path in session.planned_records]
    records = {path: read_json(path) for path in paths if path.exists()}
    postponed = [path for path, record in records.items() if record["status"] == "postponed"]
    for path in postponed:
        path.unlink()
    reasons = {records[path].get("reason") for path in postponed} - {None, LATE}
    too_large = [
        path
        for path, record in records.items()
        if record["status"] == "out_of_memory" and "--interleaved/" in path.as_posix()
    ]
    unmeasured = len(postponed) + len(session.later)
    if unmeasured or too_large:
        (session.folder / "complete").unlink(missing_ok=True)
    if unmeasured:
        cause = f": {'; '.join(sorted(reasons))}; " if reasons else " for later (budget): "
        return f"{unmeasured} cells are left{cause}the same command carries on", bool(reasons)
    if too_large:
        remedy = "the same command measures their sets in cells of their own"
        return f"{len(too_large)} cells have no room for all conditions at once: {remedy}", False
    return "", False
