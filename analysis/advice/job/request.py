"""What is asked: a script, a job of the catalogue or a model of timm; within which bounds."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from workflow.collocation.study import variables
from workflow.collocation.study.errors import not_allowed
from workflow.collocation.study.load import load_workloads, validate
from workflow.collocation.study.redaction import redacted_words
from workflow.collocation.study.workloads import PYTHON, CommandWorkload

MOST = 8  # jobs
BUDGET_S = 180.0
CPU = "CPU"  # in an answer, in place of a card's name
# Of the terminal: another one asks the same question.
OF_A_SHELL = re.compile(
    r"\W.*|_|[A-Z]*PWD|SHLVL|TERM.*|COLUMNS|LINES|LS_COLORS|PS\d|SSH_\w+|\w*\W.*"
)
# Pixels up to which a model gets images of that dataset.
IMAGES = {38: "cifar10", 64: "imagenet64"}


@dataclass(frozen=True)
class Request:
    """job: its name in the study. entry: as the catalogue has it. words: of a script, the command
    of one job, for a recipe. most: jobs. slowdown: of the slowest job, times. memory_gb: of the
    set. budget_s: seconds for all. verify: whether sets are measured, or predicted alone.
    """

    job: str
    title: str
    entry: dict
    words: list[str] = field(default_factory=list)
    directory: str = "."
    implementation: str = "bf16"
    most: int = MOST
    slowdown: float = inf
    memory_gb: float = inf
    budget_s: float = BUDGET_S
    verify: bool = True

    @property
    def unit(self) -> str:
        """What a step is counted as: steps, where nobody says how many samples it has."""
        return "steps" if self.words and self.entry["batch_size"] == 1 else "samples"

    @cached_property
    def study(self) -> str:
        """`advise-train-1a2b3c`: the same question has the same study, which goes on."""
        entry = {key: value for key, value in self.entry.items() if key != "environment"}
        entry |= {"run": redacted_words(self.words)} if self.words else {}  # a token may be renewed
        told = [entry, self.implementation, self.most]
        said = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return f"advise-{self.job}-{said[:6]}"


def of_script(
    words: Sequence[str],
    folder: Path,
    samples: int = 1,
    steps: str = "",
    first_step_s: float = 0.0,
    **bounds: Any,
) -> Request:
    """A question about a script.

    words: its command, word by word; no shell reads them. folder: where it runs. samples: of a
    step; 1 counts steps. steps: a pattern of its output that counts them, else its optimizer does.
    first_step_s: seconds to wait for the first one, 0 for the default. bounds: the other fields of
    Request. Raises ValueError with one line that says what is wrong.
    """
    checked = [*words]
    words = [_program(words[0], folder), *words[1:]]
    entry = {"kind": "command", "run": words, "folder": str(folder), "batch_size": samples}
    entry |= {"steps": steps} if steps else {}
    entry |= {"first_step_s": first_step_s} if first_step_s else {}
    entry["environment"] = _environment()
    missing = validate(CommandWorkload, entry | {"run": checked}, "command").missing
    if missing:
        raise ValueError(" ".join(missing.values()))
    files = [word for word in checked if re.search(r"\w\.(py|sh)$", word)]
    name = _name(Path(files[0] if files else words[0]).stem)
    asked = {"title": shlex.join(checked), "entry": entry, "words": words}
    # `paper_step` alters no script.
    return Request(name, **asked, directory=str(folder), implementation="paper_step", **bounds)


def of_catalogue(name: str, catalogue: Path, **bounds: Any) -> Request:
    """A question about a workload of the catalogue. Raises ValueError with those that there are."""
    workloads = load_workloads(catalogue)
    if name not in workloads:
        raise ValueError(not_allowed(f"{catalogue}: workload", name, workloads))
    entry = workloads[name].model_dump(exclude_unset=True)
    return Request(name, title=name, entry=entry, **bounds)


def of_model(model: str, batch: int = 32, size: int = 224, **bounds: Any) -> Request:
    """A question about a model of timm. batch: images of a step. size: their pixels."""
    dataset = next((name for most, name in IMAGES.items() if size <= most), "imagenet")
    entry = {"kind": "vision", "model": model, "dataset": dataset, "input_size": size}
    entry |= {"batch_size": batch}
    title = f"{model}, batch {batch}, {size} pixels"
    return Request(_name(f"{model}_b{batch}"), title=title, entry=entry, **bounds)


def _environment() -> dict[str, str | None]:
    """The shell's, as the script has it without us: by name alone, but for variables whose values
    are recorded.
    """

    def ours(name: str) -> bool:
        return variables.SET_BY_STUDY.fullmatch(name) or variables.is_passed(name)

    names = [name for name in sorted(os.environ) if not (ours(name) or OF_A_SHELL.fullmatch(name))]
    return {name: os.environ[name] if variables.is_recorded(name) else None for name in names}


def _program(word: str, directory: Path) -> str:
    """`python` is that of PATH, if an environment is active or it has torch; else the project's."""
    if word in PYTHON:
        found, active = shutil.which(word), {"VIRTUAL_ENV", "CONDA_PREFIX"} & os.environ.keys()
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        if not found or not active and subprocess.run([found, "-c", code]).returncode:
            return sys.executable
    if "/" in word:
        return str(directory / word)
    if (found := shutil.which(word)) is None:
        raise ValueError(f"'{word}' is not on PATH")
    return found


def _name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    return name if re.match(r"[a-z]", name) else f"job_{name}"
