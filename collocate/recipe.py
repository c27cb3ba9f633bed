"""`collocate recipe`: a script that starts several copies of a job on one GPU."""

import os
import stat
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from collocate.app import Mistyped, app


class SharingMethod(StrEnum):
    """How jobs share the GPU."""

    separate = "separate"
    mps = "mps"


class RecipeSystem(StrEnum):
    """What starts the jobs."""

    bash = "bash"
    slurm = "slurm"


@app.command(context_settings={"allow_interspersed_args": False})
def recipe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ADVICE.json | [--] COMMAND...",
            help="what `collocate advise` wrote; or the command of one job, with --jobs, --method",
        ),
    ],
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="copies")] = None,
    method: Annotated[SharingMethod | None, typer.Option(help="how they share the GPU")] = None,
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="CPUs of each job")] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0, metavar="GB", help="GPU memory of a job, checked at the start"),
    ] = None,
    system: Annotated[RecipeSystem, typer.Option(help="what starts the jobs")] = RecipeSystem.bash,
) -> None:
    """Print a script that starts copies of a job.

    It needs nothing of this project, and ends what it started.

    \b
    collocate recipe collocate/train-1/advice.json > start.sh
    collocate recipe --jobs 4 --method mps -- python train.py > start.sh
    bash start.sh
    """
    from analysis.advice import recipes
    from workflow.collocation.study.load import validate

    if len(words) == 1 and words[0].endswith(".json"):
        if jobs or method or cores or memory:
            raise Mistyped("--jobs, --method, --cores, --memory: an ADVICE.json says them")
        path = Path(words[0])
        if not path.exists():
            raise Mistyped(f"{path}: no such file")
        content = recipes.read_advice(path)
    elif jobs is None or method is None:
        raise Mistyped("give an ADVICE.json, or --jobs and --method before the command")
    else:
        numbers = {"jobs": jobs, "cores": cores, "memory_gb": memory}
        place = {"run": words, "folder": str(Path.cwd()), "method": method.value}
        content = validate(recipes.Recipe, place | numbers, "recipe")
    script = recipes.script_of(content, system.value).rstrip()
    with suppress(OSError):
        # A script that is written to a file may hold secrets: nobody else reads it.
        if stat.S_ISREG(os.fstat(1).st_mode):
            os.fchmod(1, 0o700)
    print(script)
