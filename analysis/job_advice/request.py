"""What is asked: a script, a job of the catalogue or a model of timm; within which bounds."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from workflow.collocation.spec import variables
from workflow.collocation.spec.errors import allowed, bounded, not_allowed
from workflow.collocation.spec.load import check, load_workloads
from workflow.collocation.spec.redaction import redacted_words
from workflow.collocation.spec.study import seconds, with_unit
from workflow.collocation.spec.workloads import PYTHON, CommandWorkload

MOST = 8  # jobs, unless MAX says otherwise
BUDGET_S, LEAST_S = 180.0, 60.0
CPU = "CPU"  # in an answer, in place of a card's name
SHELL = re.compile(r"[|&;<>`$()*?]|(^|\s)~|^\w+=")  # a line that only a shell understands
# Of the terminal and of make: another one asks the same question.
OF_A_SHELL = re.compile(
    r"\W.*|_|[A-Z]*PWD|SHLVL|TERM.*|COLUMNS|LINES|LS_COLORS|PS\d|SSH_\w+|MAKE\w*|MFLAGS|RUN|\w*\W.*"
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

    @property
    def study(self) -> str:
        """`advise-train-1a2b3c`: the same question has the same study, which goes on."""
        entry = {key: value for key, value in self.entry.items() if key != "environment"}
        entry |= {"run": redacted_words(self.words)} if self.words else {}  # a token may be renewed
        told = [entry, self.implementation, self.most]
        said = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return f"advise-{self.job}-{said[:6]}"


def read(given: Namespace) -> Request:
    """Raises ValueError: one line that says what is wrong."""
    asked = [name for name in ("run", "job", "model") if getattr(given, name)]
    if len(asked) != 1:
        raise ValueError(
            'say one of RUN="python train.py", JOB=name of the catalogue, MODEL=resnet50'
        )
    bounded(vars(given), {"batch": 1, "slowdown": 1, "memory": 0})
    if not 2 <= given.most <= 48:
        raise ValueError(f"MAX={given.most}: allowed: 2 to 48 jobs")
    make = {"run": _script, "job": _of_catalogue, "model": _of_timm}[asked[0]]
    try:
        budget_s = seconds(with_unit(given.budget)) if given.budget else BUDGET_S
        if budget_s < LEAST_S:
            raise ValueError(f"allowed: {LEAST_S:g}s or more")
    except ValueError as error:
        raise ValueError(f"BUDGET={given.budget}: {error}") from None
    bounds = {"most": given.most, "slowdown": given.slowdown, "memory_gb": given.memory}
    return Request(**make(given), **bounds, budget_s=budget_s, verify=given.verify)


def _script(given: Namespace) -> dict:
    directory = Path(given.directory).resolve()
    if not directory.is_dir():
        raise ValueError(f"FOLDER={given.directory}: is no folder")
    try:
        typed = shlex.split(given.run)
    except ValueError as error:
        raise ValueError(f"RUN={given.run}: {error}") from None
    if SHELL.search(given.run):
        words = checked = ["bash", "-c", given.run]
    else:
        words, checked = [_program(typed[0], directory), *typed[1:]], typed
    entry = {"kind": "command", "run": words, "folder": str(directory)}
    entry |= {"batch_size": given.batch or 1}
    entry |= {"steps": given.steps} if given.steps else {}
    entry |= {"first_step_s": given.first_step} if given.first_step else {}
    entry["environment"] = _environment()
    if said := check(CommandWorkload, entry | {"run": checked}, "RUN").missing:
        raise ValueError(f"RUN: {' '.join(said.values())}")
    files = [word for word in typed if re.search(r"\w\.(py|sh)$", word)]
    name = files[0] if files else words[0]
    asked = {"job": _name(Path(name).stem), "title": given.run, "entry": entry, "words": words}
    return asked | {"directory": str(directory), "implementation": "paper_step"}  # alters no script


def _environment() -> dict[str, str | None]:
    """The shell's, as the script has it without us: by name alone, but for variables whose values
    are recorded.
    """

    def ours(name: str) -> bool:
        return variables.OF_THE_STUDY.fullmatch(name) or variables.passes(name)

    names = [name for name in sorted(os.environ) if not (ours(name) or OF_A_SHELL.fullmatch(name))]
    return {name: os.environ[name] if variables.recorded(name) else None for name in names}


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
        raise ValueError(f"RUN: '{word}' is not on PATH")
    return found


def _of_catalogue(given: Namespace) -> dict:
    known = load_workloads(Path("config/workloads.yaml"))
    if given.job not in known:
        raise ValueError(not_allowed("JOB", given.job, known))
    entry = known[given.job].model_dump(exclude_unset=True)
    return {"job": given.job, "title": given.job, "entry": entry}


def _of_timm(given: Namespace) -> dict:
    size = given.size
    dataset = next((name for most, name in IMAGES.items() if size <= most), "imagenet")
    entry = {"kind": "vision", "model": given.model, "dataset": dataset, "input_size": size}
    entry |= {"batch_size": given.batch or 32}
    title = f"{given.model}, batch {entry['batch_size']}, {size} pixels"
    return {"job": _name(f"{given.model}_b{entry['batch_size']}"), "title": title, "entry": entry}


def _name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    return name if re.match(r"[a-z]", name) else f"job_{name}"


def settings(pairs: str) -> list[str]:
    """CONFIG: `key=value` words for the study beneath. Raises ValueError for keys that are ours."""
    words = shlex.split(pairs)
    ours = ("study", "studies", "workloads", "attempts", "budget")
    for word in words:
        key, found, _ = word.partition("=")
        if not found or key in ours:
            raise ValueError(
                f"CONFIG: '{word}': give key=value; {allowed(key, ['gpu', 'results'])}"
            )
    return words
