"""A script that starts several copies of a command on one GPU."""

import json
import math
import shlex
from pathlib import Path
from typing import Annotated, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, BeforeValidator, Field

from analysis.advice.job.request import COMMAND_FILE, CPU
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.load import validate
from workflow.collocation.study.methods import MAX_MEMBERS
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


def _method(name: object) -> str:
    return str(name).lower().replace("naive", "separate")


class Recipe(BaseModel, strict=True, allow_inf_nan=False):
    """Equal jobs that a script starts on one GPU; other keys of advice.json are ignored.

    run: the command of one job, word by word. folder: where jobs run. method: `separate` processes,
    also called `naive`, or `mps`. cores: logical CPUs of each job. memory_gb: GPU memory of one
    job; the script refuses a GPU that has less free for all. card: what the advice was measured on.
    """

    run: Annotated[list[Annotated[str, Field(pattern=r"^[^\x00]*$")]], Field(min_length=1)]
    folder: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
    jobs: Annotated[int, Field(ge=1, le=MAX_MEMBERS)]
    method: Annotated[Literal["separate", "mps"], BeforeValidator(_method)]
    cores: Annotated[int, Field(ge=1, le=8192)] | None = None  # the most that Linux knows
    memory_gb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    card: str | None = None

    @property
    def memory_mib(self) -> int | None:
        """GPU memory of all jobs."""
        return self.memory_gb and math.ceil(self.jobs * self.memory_gb * 1e9 / 2**20)


def script_of(recipe: Recipe, system: str = "bash") -> str:
    """The script that starts the jobs of a recipe; system: one of SYSTEMS."""
    note = ""
    if recipe.card == CPU:
        note = "Advised on a CPU, which says nothing about sharing a GPU. "
    folder = str(Path(recipe.folder).resolve())
    variables = dict(recipe) | {"memory_mib": recipe.memory_mib, "folder": folder, "note": note}
    return TEMPLATES.get_template(f"{system}.j2").render(variables)


def read_advice(path: Path) -> Recipe:
    """Read what advice.json says to start, with the secrets of its command.

    Raises ValueError with one line that names the file.
    """
    try:
        content = json.loads(read_text(path))
        if isinstance(content, dict) and not {"run", "folder"} & content.keys():
            wanted = "give an advice.json that stands beside its measurements"
            raise ConfigError(f"{path}: it says of no job how to start it; {wanted}")
        recipe = validate(Recipe, content, str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ValueError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from None
    if any(HIDDEN in word for word in recipe.run):
        return recipe.model_copy(update={"run": _with_secrets(path, recipe.run)})
    return recipe


def _with_secrets(advice: Path, redacted: list[str]) -> list[str]:
    """The command of advice.json with its secrets, from the private file beside it."""
    path = advice.with_name(COMMAND_FILE)
    try:
        command = json.loads(read_text(path))
    except (OSError, ValueError):
        command = None
    if not isinstance(command, list) or redacted_words(command) != redacted:
        raise ValueError(f"{advice}: {path} has not its command; give the command itself")
    return command
