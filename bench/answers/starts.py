"""Runs the real commands: `collocate advise` on a job, and recipes that start copies of it afresh.

A fresh start takes no turns and has no counter: its rate comes from the clocks of the jobs alone.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.answers.scores import rate_in, rate_of_runs, step_ends
from workflow.collocation import ROOT
from workflow.collocation.process_lifetime import end_with_parent, is_running, kill_all

SETTLE_S = 5.0  # after the first step of the last copy, before what counts
WRITTEN_S = 1.5  # after which the steps made until now stand in the clocks' files
START_TIMEOUT_S = 180.0  # until the first step of the last copy, which may compile
RUN_TIMEOUT_S = 240.0  # of a job that ends by itself
STOP_TIMEOUT_S = 60.0
ADVISE_TIMEOUT_S = 300.0  # beside its budget
LOOK_S = 0.05


class Failed(RuntimeError):
    """A command of a job failed; the message is one line."""


@dataclass(frozen=True)
class ScriptJob:
    """A script of jobs/.

    words: after `python`. ends: whether it ends by itself, so that whole runs are its rate.
    """

    words: Sequence[str]
    ends: bool = False


def ask(
    jobs: Sequence[ScriptJob],
    folder: Path,
    results: Path,
    budget_s: float,
    max_jobs: int,
    settings: Sequence[str],
) -> tuple[dict, Path, float]:
    """Run `collocate advise` in the jobs' folder: its answer, advice.json, and its wall seconds.

    jobs: one, or a pair. results: a new folder. max_jobs: of one job. settings: key=value words of
    --set. Raises Failed.
    """
    options = ["--json", "--results", str(results), "--budget", f"{budget_s:g}s"]
    options += ["--max-jobs", str(max_jobs)] if len(jobs) == 1 else []
    options += [word for setting in settings for word in ("--set", setting)]
    asked = [word for job in jobs for word in ("---", sys.executable, *job.words)][1:]
    command = ["advise", *options, "--", *asked]
    began_s = time.monotonic()
    advice = json.loads(_collocate(command, folder, budget_s + ADVISE_TIMEOUT_S))
    wall_s = time.monotonic() - began_s
    [path] = results.glob("*/advice.json")
    return advice, path, wall_s


def true_rate(
    recipe: Sequence[str], copies: int, job: ScriptJob, folder: Path, seconds: float
) -> float:
    """Start copies of a job by `collocate recipe`, and read the rate of all by their own clocks.

    recipe: words after `collocate recipe`. seconds: that count, once all copies step; a job that
    ends runs once instead, as a whole. Returns steps/s. Raises Failed.
    """

    def measure(process: subprocess.Popen, clocks: Path, output: Path) -> float:
        if job.ends:
            return _rate_of_whole_runs(process, copies, clocks, output)
        ends, *window = _steps_once_all_step(process, copies, clocks, seconds)
        return rate_in(ends.values(), *window)

    return _measure_recipe(recipe, folder, measure)


def rates_of_pair(
    jobs: Sequence[ScriptJob], method: str, cores: int, folder: Path, seconds: float
) -> list[float]:
    """Start two jobs together by `collocate recipe`, and read the rate of each by its own clock.

    method: as of `collocate recipe`. cores: of each. Other arguments, value, errors: as true_rate.
    """
    words = [shlex.join([sys.executable, *job.words]) for job in jobs]
    script = f"if [ $RECIPE_JOB = 1 ]; then exec {words[0]}; else exec {words[1]}; fi"
    recipe = ["--jobs", "2", "--method", method, "--cores", str(cores), "--", "bash", "-c", script]

    def measure(process: subprocess.Popen, clocks: Path, output: Path) -> list[float]:
        ends, *window = _steps_once_all_step(process, 2, clocks, seconds)
        return [rate_in([ends[pid]], *window) for pid in _pids(output)]

    return _measure_recipe(recipe, folder, measure)


def _measure_recipe(recipe: Sequence[str], folder: Path, measure: Callable) -> Any:
    """What `measure` gives of a recipe that runs: of its process, its clocks and its output."""
    script = _collocate(["recipe", *recipe], folder, STOP_TIMEOUT_S)
    with tempfile.TemporaryDirectory(prefix="truth-") as name:
        clocks, output = Path(name, "clocks"), Path(name, "output")
        clocks.mkdir()
        Path(name, "start.sh").write_text(script, encoding="utf-8")
        before = {*folder.glob("recipe-*")}
        with _running(["bash", f"{name}/start.sh"], folder, output, clocks) as process:
            try:
                return measure(process, clocks, output)
            except Failed as failure:
                logs = [log for new in {*folder.glob("recipe-*")} - before for log in new.iterdir()]
                lines = [_last_line(log.read_text("utf-8")) for log in [output, *sorted(logs)]]
                raise Failed(" / ".join([str(failure), *filter(None, lines)])) from None


def _steps_once_all_step(
    process: subprocess.Popen, copies: int, clocks: Path, seconds: float
) -> tuple[dict[int, np.ndarray], int, int]:
    """When steps ended, by PID, and the first and last nanosecond of what counts."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while (stepping := sum(path.stat().st_size > 0 for path in clocks.iterdir())) < copies:
        if time.monotonic() > deadline_s:
            raise Failed(f"{stepping} of {copies} copies step after {START_TIMEOUT_S:g} s")
        _sleep_while_running(process, LOOK_S)
    _sleep_while_running(process, SETTLE_S + seconds)
    stop_ns = time.monotonic_ns()
    _sleep_while_running(process, WRITTEN_S)
    ends = step_ends(clocks)
    start_ns = stop_ns - round(seconds * 1e9)
    if silent := [pid for pid, each in ends.items() if not (each >= start_ns).any()]:
        raise Failed(f"{len(silent)} of {copies} copies made no step in {seconds:g} s")
    return ends, start_ns, stop_ns


def _rate_of_whole_runs(
    process: subprocess.Popen, copies: int, clocks: Path, output: Path
) -> float:
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    jobs: dict[int, tuple[psutil.Process, float]] = {}  # and when it began
    lived_s: dict[int, float] = {}
    while len(lived_s) < copies:
        if time.monotonic() > deadline_s:
            raise Failed(f"{len(lived_s)} of {copies} copies ended within {RUN_TIMEOUT_S:g} s")
        if process.poll():
            raise Failed(f"ended with status {process.returncode}")
        time.sleep(LOOK_S)
        now_s = time.monotonic()
        for pid in _pids(output):
            if pid not in jobs:
                jobs[pid] = psutil.Process(pid), now_s
            job, began_s = jobs[pid]
            if pid not in lived_s and not is_running(job):
                lived_s[pid] = now_s - began_s
    if status := process.wait(STOP_TIMEOUT_S):
        raise Failed(f"ended with status {status}")
    return rate_of_runs(step_ends(clocks), lived_s)


def _pids(output: Path) -> list[int]:
    """Of the jobs that a recipe has started, by their numbers."""
    return [int(pid) for pid in re.findall(r"^job \d+: PID (\d+)", output.read_text(), re.M)]


@contextmanager
def _running(
    command: Sequence[str], folder: Path, output: Path, clocks: Path
) -> Iterator[subprocess.Popen]:
    """A recipe while it runs; afterwards it is ended as by Ctrl-C, with all that it started."""
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment() | {"TRUTH": str(clocks)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                kill_all(process.pid)


def _sleep_while_running(process: subprocess.Popen, seconds: float) -> None:
    """Raises Failed if the process ends meanwhile."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise Failed(f"ended with status {process.returncode}")


def _collocate(words: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Standard output of a command of this project. Raises Failed with the last line it wrote."""
    command = [sys.executable, "-m", "collocate", *words]
    options = {"capture_output": True, "text": True, "timeout": timeout_s}
    try:
        done = subprocess.run(command, cwd=folder, env=_environment(), **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{words[0]}: not done within {timeout_s:g} s") from None
    if done.returncode:
        raise Failed(f"{words[0]}: {_last_line(done.stderr) or f'status {done.returncode}'}")
    return done.stdout


def _environment() -> dict[str, str]:
    """This process's, in which this project can be imported, without a folder for clocks."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("TRUTH", None)
    return environment


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][-300:]
