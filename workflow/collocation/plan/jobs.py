"""What the jobs of a session find, and what it writes in its study's folder and sweeps from it.

Jobs find an environment, a file each that says all that they need, and a warm server.
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
from workflow.collocation.record.source_digest import source_of
from workflow.collocation.run.preloaded import running_fork_server
from workflow.collocation.run.task import Task
from workflow.collocation.run.waiting import LATE
from workflow.collocation.study.errors import meant
from workflow.collocation.study.regular_files import read_json
from workflow.collocation.study.workloads import Trained

# Of config, to jobs.
TOLD = {"gpu", "trainer", "timeout", "telemetry", "wait"}
REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)  # in timm's files
TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL")


def set_environment() -> None:
    """What jobs inherit: this Python, this repository to import from, with whom they end."""
    path = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    os.environ["PYTHONSAFEPATH"] = "1"  # not from the working directory: it may be a clone
    os.environ["PYTHON"] = sys.executable
    os.environ["COLLOCATION_PARENT"] = str(os.getpid())


def obstacle(session: Session) -> str:
    """Why its jobs cannot begin, a line for each reason; empty if they can."""
    trained = session.jobs and session.config.trainer == "models.train"
    if trained and (missing := absent(TRAINING)):
        return (
            f"{len(session.jobs)} cells to run, but not installed: {', '.join(missing)}; "
            "they are in the extra 'train' of pyproject.toml, and drawing needs none of them"
        )
    if session.outdated():
        return "another run has just changed this study; start again"
    return "\n".join(mistakes(session))


def absent(packages: Iterable[str]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def mistakes(session: Session) -> list[str]:
    """One line for each model, class or script of the jobs' workloads that is not there.

    Nothing is imported: it is looked up in files, which takes no torch and runs nobody's code.
    """
    jobs = [job.cell.spec for job in session.jobs if session.refusal(job.cell) is None]
    wanted = {member.workload: member.job for spec in jobs for member in spec.members}
    found = {name: job.missing for name, job in wanted.items()}
    if session.config.trainer == "models.train":
        found |= {n: unknown(job) for n, job in wanted.items() if isinstance(job, Trained)}
    source = session.config.workloads
    return [f"{source}: {n}.{key}: {said}" for n, of in found.items() for key, said in of.items()]


def unknown(job: Trained) -> dict[str, str]:
    """Key → what it names that neither timm nor the user's own file has, in a sentence."""
    for key, own in job.own_code.items():
        module, _, name = own.partition(":")
        if file := source_of(own):
            words = re.findall(r"\w+", file.read_text(encoding="utf-8", errors="replace"))
            if name not in words:
                return {key: f"'{module}' has no '{name}'{meant(name, words)}"}
        elif not importlib.util.find_spec(module.partition(".")[0]):
            return {key: f"there is no module '{module}'"}
    name = job.model.partition(".")[0]  # of weights nothing is said
    if job.kind == "vision" and ":" not in job.model and name not in _timms():
        return {"model": f"'{job.model}' is no model of timm{meant(name, _timms())}"}
    return {}


@cache
def _timms() -> set[str]:
    spec = importlib.util.find_spec("timm")
    files = Path(spec.origin).with_name("models").glob("*.py") if spec else ()
    return {name for file in files for name in REGISTERED.findall(file.read_text(encoding="utf-8"))}


def preloaded(session: Session) -> AbstractContextManager[str | None]:
    """The name of a server with one import of the trainer, where more than one job will train."""
    training = [job for job in session.jobs if session.refusal(job.cell) is None]
    if len(training) < 2:
        return nullcontext()
    return running_fork_server(session.config.trainer, session.folder / "log" / "preloaded.log")


def holder(session: Session) -> dict:
    """What a lock says of this invocation."""
    return {"pid": os.getpid(), "user": psutil.Process().username(), "study": session.name}


def write_plan(session: Session) -> None:
    """plan.json: what analysis may expect. A study with cells to measure is not complete."""
    session.folder.mkdir(parents=True, exist_ok=True)
    plan = session.folder / "plan.json"
    plan.unlink(missing_ok=True)  # in its place may be a pipe, which would be waited for
    plan.write_text(session.expected, encoding="utf-8")
    if session.jobs:
        (session.folder / "complete").unlink(missing_ok=True)


def bring_back_to_now(session: Session, more: Iterable[str]) -> None:
    """Date files of the future now: Snakemake removes an output that is older than its input.

    more: what jobs read beside the study's files. Raises OSError with one line.
    """
    for path in (*map(Path, more), *session.folder.rglob("*.*")):
        if path.is_file() and path.stat().st_mtime > time.time():
            try:
                os.utime(path)
            except PermissionError:
                said = "is of the future and cannot be dated now; set the clock, or have it touched"
                raise OSError(f"{path}: {said}") from None


def write(session: Session, preloaded: str | None) -> None:
    """A file for each job, and the list of records; those of earlier runs go.

    preloaded: the name of the server that has imported the trainer.
    """
    shutil.rmtree(session.folder / "jobs", ignore_errors=True)
    (session.folder / "jobs").mkdir(parents=True, exist_ok=True)
    records = "".join(f"{path}\n" for path in (*session.measured, *session.coming))
    (session.folder / "jobs" / "records.txt").write_text(records, encoding="utf-8")
    common = {
        "study": session.name,
        "needs_gpu": session.on_gpu if session.remote else session.device is not None,
        "data": session.datasets.ready_files(),
        "session": session.id,
        "preloaded": preloaded,
        "deadline": session.deadline,
        **session.config.model_dump(include=TOLD),
    }
    if session.remote and not session.on_gpu:
        common["gpu"] = "cpu"  # whatever there is
    left: dict[str, float] = {}  # device → seconds of the jobs that follow
    for place, job in reversed([*enumerate(session.jobs, 1)]):
        if session.usable[1:]:  # else a job finds the one there is
            common["gpu"] = job.device
        with_it = job.spend(left)
        task = Task(
            cell=job.cell.id,
            attempt=job.attempt,
            output=session.record(job.path),
            spec=job.cell.spec,
            place=f"{place}/{len(session.jobs)}",
            left_s=round(with_it - job.estimate_s),
            estimate_s=round(job.estimate_s),
            given_up=session.folder / "jobs" / f"given_up-{session.keys.index(job.device)}",
            **common,
        )
        task.write(session.folder / "jobs" / f"{job.path}.json")


def sweep_postponed(session: Session) -> tuple[str, bool]:
    """Remove the markers of cells that were left for later: nothing was measured of them.

    A study that lacks them is not complete. Gives what to tell of cells that are left and why,
    empty if none is, and whether something else than the budget was in their way.
    """
    written = {p: read_json(p) for p in map(Path, session.coming) if p.exists()}
    swept = {path: said for path, said in written.items() if said["status"] == "postponed"}
    for path in swept:
        path.unlink()
    left = len(swept) + len(session.later)
    full = sum(
        said["status"] == "out_of_memory" and "--interleaved/" in path.as_posix()
        for path, said in written.items()
    )
    if left or full:
        (session.folder / "complete").unlink(missing_ok=True)
    reasons = {said.get("reason") for said in swept.values()} - {None, LATE}
    if left:
        why = f": {'; '.join(sorted(reasons))}; " if reasons else " for later (budget): "
        return f"{left} cells are left{why}the same command carries on", bool(reasons)
    if full:
        sets = "the same command measures their sets in cells of their own"
        return f"{full} cells have no room for all conditions at once: {sets}", False
    return "", False
