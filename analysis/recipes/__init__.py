"""The command `make recipe`: a script that starts several copies of a command on one GPU."""

import json
import math
import shlex
from argparse import Namespace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.job_advice.request import CPU, SHELL
from workflow.collocation.spec.regular import read_bytes

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    comment_start_string="<#",  # bash has the usual one in ${#array[@]}
    comment_end_string="#>",
)
TEMPLATES.filters |= {"quoted": shlex.quote, "literal": repr, "json": json.dumps}
SWEEPS, METHODS = ("ray", "optuna", "wandb"), ("separate", "mps")
SYSTEMS = ("bash", "slurm", "kubernetes", *SWEEPS)
KEYS = ("run", "folder", "jobs", "method", "cores", "memory_gb")  # of an advice


def recipe(
    system: str,
    command: list[str],
    jobs: int,
    method: str,
    cores: int | None = None,
    memory_gb: float | None = None,
    folder: str = ".",
    note: str = "",
) -> str:
    """The script, or for Kubernetes the manifest, that starts equal jobs on one GPU.

    system: one of SYSTEMS. command: of one job, word by word. method: `separate` (processes; also
    `naive`) or `mps`. cores: logical CPUs of each job, no two jobs on the same. memory_gb: GPU
    memory of one job in GB; the script refuses a GPU that has less free. folder: where jobs run.
    note: a sentence for the script's first comment. Raises ValueError for what cannot be started.
    """
    method = method.lower().replace("naive", "separate")
    for name, value, allowed in (("system", system, SYSTEMS), ("method", method, METHODS)):
        if value not in allowed:
            raise ValueError(f"{name} {value!r}: allowed: {', '.join(allowed)}")
    if not command:
        raise ValueError("no command: name the program of one job and its arguments")
    if system in SWEEPS and command[:2] == ["bash", "-c"]:
        raise ValueError(f"{system} adds options to the command: give one that needs no shell")
    counts = {"jobs": jobs, "cores": cores, "memory_gb": memory_gb}
    for name, value in counts.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} {value}: must be above 0")
    return TEMPLATES.get_template(f"{system}.j2").render(
        **counts,
        command=command,
        method=method,
        workers=1 if system == "ray" else jobs,  # Ray starts its trials itself, on all the cores
        memory_mib=memory_gb and math.ceil(jobs * memory_gb * 1e9 / 2**20),
        folder=str(Path(folder).resolve()),
        note=note,
    )


def run(given: Namespace) -> str:
    """The recipe for what the command line, or a file of advice, says."""
    said = vars(given)
    if given.advice:
        try:
            said = json.loads(read_bytes(given.advice))
        except OSError as error:
            why = f"{error.strerror}; 'make advise' names the file"
            raise ValueError(f"ADVICE={given.advice}: {why}") from None
        except ValueError as error:
            raise ValueError(f"{given.advice}: no JSON: {error}") from None
        if missing := [key for key in KEYS if key not in said]:
            raise ValueError(f"{given.advice}: the advice lacks {', '.join(missing)}")
    elif None in (given.jobs, given.method):
        raise ValueError("say JOBS=4 METHOD=mps RUN='python train.py', or ADVICE=FILE")
    else:
        line = given.run
        said["run"] = ["bash", "-c", line] if SHELL.search(line) else shlex.split(line)
    note = "Advised on a CPU, which says nothing about sharing a GPU. "
    set_ = {key: said[key] for key in KEYS if key != "run"}
    set_["note"] = note if said.get("card") == CPU else ""
    return recipe(given.system, said["run"], **set_).rstrip()
