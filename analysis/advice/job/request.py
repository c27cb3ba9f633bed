"""What advice is asked for: a script, a job of the catalogue or a model of timm, and the bounds."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from analysis.advice.job.trackers import offline_trackers
from workflow.collocation.study import variables
from workflow.collocation.study.errors import not_allowed
from workflow.collocation.study.load import load_workloads, validate
from workflow.collocation.study.workloads import PYTHON, CommandWorkload

COMMAND_FILE = "command.json"  # beside advice.json, private: the command with its secrets
CPU = "CPU"  # in advice, in place of a card's name
# Variables that only tell which terminal is used.
_OF_TERMINAL = re.compile(
    r"\W.*|_|[A-Z]*PWD|SHLVL|TERM.*|COLUMNS|LINES|LS_COLORS|PS\d|SSH_\w+|\w*\W.*"
)
_SMALL_IMAGES = {38: "cifar10", 64: "imagenet64"}  # largest pixels → dataset; else imagenet
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@dataclass(frozen=True)
class Request:
    """A job, and the bounds within which copies of it may share the GPU.

    job: its name in records. entry: its entry in the catalogue. command: of a script, as a recipe
    starts it. max_jobs: at once. max_slowdown: of the slowest job, times its duration alone.
    max_memory_gb: of all jobs. budget_s: seconds to measure. measure_sets: False to predict only.
    """

    job: str
    title: str
    entry: dict
    command: list[str] = field(default_factory=list)
    directory: str = "."
    implementation: str = "bf16"
    max_jobs: int = 8
    max_slowdown: float = inf
    max_memory_gb: float = inf
    budget_s: float = 180.0
    measure_sets: bool = True

    @property
    def unit(self) -> str:
        """What progress is counted in: steps if the samples of a step are not known."""
        return "steps" if self.command and self.entry["batch_size"] == 1 else "samples"


def of_script(
    command: Sequence[str],
    folder: Path,
    samples: int = 1,
    steps: str = "",
    first_step_s: float = 0.0,
    **bounds: Any,
) -> Request:
    """Request advice on a script.

    command: word by word; no shell reads it. folder: where it runs. samples: of a step; 1 counts
    steps. steps: a regular expression that counts steps in its output; without one its optimizer
    counts. first_step_s: how long to wait for the first step; 0 for the default. bounds: other
    fields of Request. Raises ValueError with one line that says what is wrong.
    """
    program = _program(command[0], folder)
    words = [program, *command[1:]]
    entry = {"kind": "command", "run": words, "folder": str(folder), "batch_size": samples}
    if steps:
        entry["steps"] = steps
    if first_step_s:
        entry["first_step_s"] = first_step_s
    entry["environment"] = _environment() | offline_trackers(os.environ)
    missing = validate(CommandWorkload, entry | {"run": [*command]}, "command").missing
    if missing:
        raise ValueError(" ".join(missing.values()))
    scripts = [word for word in command if re.search(r"\w\.(py|sh)$", word)]
    return Request(
        job=_job_name(Path(scripts[0] if scripts else program).stem),
        title=shlex.join(command),
        entry=entry,
        command=words,
        directory=str(folder),
        implementation="paper_step",  # the one that alters no script
        **bounds,
    )


def of_catalogue(name: str, catalogue: Path, **bounds: Any) -> Request:
    """Request advice on a workload of the catalogue. Raises ValueError if there is none."""
    workloads = load_workloads(catalogue)
    if name not in workloads:
        raise ValueError(not_allowed(f"{catalogue}: workload", name, workloads))
    entry = workloads[name].model_dump(exclude_unset=True)
    return Request(name, title=name, entry=entry, **bounds)


def of_model(model: str, batch: int = 32, size: int = 224, **bounds: Any) -> Request:
    """Request advice on a model of timm. batch: images of a step. size: their pixels."""
    datasets = [name for pixels, name in _SMALL_IMAGES.items() if size <= pixels]
    dataset = datasets[0] if datasets else "imagenet"
    entry = {"kind": "vision", "model": model, "dataset": dataset, "input_size": size}
    entry["batch_size"] = batch
    title = f"{model}, batch {batch}, {size} pixels"
    return Request(_job_name(f"{model}_b{batch}"), title=title, entry=entry, **bounds)


def _environment() -> dict[str, str | None]:
    """Variables of the shell that the script would have without us.

    Values are recorded of some variables only; the others are None.
    """
    environment = {}
    for name in sorted(os.environ):
        ours = variables.SET_BY_STUDY.fullmatch(name) or variables.is_passed(name)
        if not ours and not _OF_TERMINAL.fullmatch(name):
            environment[name] = os.environ[name] if variables.is_recorded(name) else None
    return environment


def _program(word: str, directory: Path) -> str:
    """The program that a shell would run.

    `python` is the project's if that of PATH has no torch and no environment is active.
    """
    path = shutil.which(word)
    if word in PYTHON:
        active = {"VIRTUAL_ENV", "CONDA_PREFIX"} & os.environ.keys()
        if not path or (not active and subprocess.run([path, "-c", _HAS_TORCH]).returncode):
            return sys.executable
    if "/" in word:
        return str(directory / word)
    if path is None:
        raise ValueError(f"'{word}' is not on PATH")
    return path


def _job_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    return name if re.match(r"[a-z]", name) else f"job_{name}"
