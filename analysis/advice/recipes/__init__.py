"""A script that starts several copies of a command on one GPU."""

import json
import math
import shlex
from pathlib import Path
from typing import Annotated, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, BeforeValidator, Field

from analysis.advice.job.request import CPU
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.load import check, load_workloads
from workflow.collocation.study.methods import MOST_MEMBERS
from workflow.collocation.study.redaction import HIDDEN, redacted_words
from workflow.collocation.study.regular_files import read_text

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    comment_start_string="<#",  # bash has the usual one in ${#array[@]}
    comment_end_string="#>",
)
TEMPLATES.filters["quoted"] = shlex.quote
SYSTEMS = ("bash", "slurm")


def _method(given) -> str:
    return str(given).lower().replace("naive", "separate")


class Recipe(BaseModel, strict=True, allow_inf_nan=False):
    """What a script starts: equal jobs on one GPU. Other keys of an advice are let be.

    run: the command of one job, word by word. method: processes, also called `naive`, or MPS.
    cores: logical CPUs of each job. memory_gb: GPU memory of one job in GB; the script refuses a
    GPU that has less free. folder: where jobs run.
    """

    run: Annotated[list[Annotated[str, Field(pattern=r"^[^\x00]*$")]], Field(min_length=1)]
    folder: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
    jobs: Annotated[int, Field(ge=1, le=MOST_MEMBERS)]
    method: Annotated[Literal["separate", "mps"], BeforeValidator(_method)]
    cores: Annotated[int, Field(ge=1, le=8192)] | None = None  # the most that Linux knows
    memory_gb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    card: str | None = None

    @property
    def memory_mib(self) -> int | None:
        """GPU memory of all jobs."""
        return self.memory_gb and math.ceil(self.jobs * self.memory_gb * 1e9 / 2**20)


def recipe(given: Recipe, system: str = "bash") -> str:
    """The script for one of SYSTEMS."""
    folder = str(Path(given.folder).resolve())
    note = "Advised on a CPU, which says nothing about sharing a GPU. " * (given.card == CPU)
    values = dict(given) | {"memory_mib": given.memory_mib, "folder": folder, "note": note}
    return TEMPLATES.get_template(f"{system}.j2").render(values)


def read_advice(path: Path) -> Recipe:
    """What an advice.json advises to start. Raises ValueError with one line that names the file."""
    try:
        content = json.loads(read_text(path))
        if isinstance(content, dict) and not {"run", "folder"} & content.keys():
            wanted = "give an advice.json that stands beside its measurements"
            raise ConfigError(f"{path}: it says of no job how to start it; {wanted}")
        given = check(Recipe, content, str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ValueError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from None
    hidden = any(HIDDEN in word for word in given.run)
    return given.model_copy(update={"run": _with_secrets(path, given.run)}) if hidden else given


def _with_secrets(advice: Path, shown: list[str]) -> list[str]:
    """The command of an advice with its secrets, from the catalogue beside it."""
    catalogue = advice.parent / "plan" / "workloads.yaml"
    for job in load_workloads(catalogue).values():
        if job.kind == "command" and redacted_words(job.run) == shown:
            return job.run
    raise ValueError(f"{advice}: {catalogue} has another command; give the command itself")
